// The same component under wasmtime and under a JavaScript engine: equal scores on every row.
//
//     npm install @bytecodealliance/jco@1.35.0 @bytecodealliance/preview2-shim
//     slime-host score plugins/math --input rows.jsonl --output scores.jsonl
//     node tests/jco/parity.mjs "$(slime-host plugin build plugins/math)" rows.jsonl scores.jsonl
//
// jco is no sandbox (its WASI shim shows guests the host's files); it is here as a second opinion about the component.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [component, rowsFile, scoresFile] = process.argv.slice(2);
const modules = resolve(process.env.NODE_MODULES ?? "node_modules");
const dir = mkdtempSync(join(tmpdir(), "parity-"));
symlinkSync(modules, join(dir, "node_modules"));
writeFileSync(join(dir, "package.json"), '{"type":"module"}');
writeFileSync(
  join(dir, "host.js"),
  `export const log = { log() {} };
   export class Finished {
     constructor(row) { this.row = row; }
     prompt() { return this.row.prompt ?? ""; }
     response() { return this.row.response; }
     label() { return this.row.label ?? undefined; }
     metadata(key) { const v = (this.row.metadata ?? {})[key]; return v === undefined ? undefined : JSON.stringify(v); }
     metadataJson() { return JSON.stringify(this.row.metadata ?? {}); }
     finishReason() { return undefined; }
   }
   export const rollouts = { Finished };
   export const types = {};
   export const verdicts = {};`,
);
execFileSync(
  join(modules, ".bin", "jco"),
  ["transpile", resolve(component), "--out-dir", join(dir, "out"), "--name", "plugin", "--map", "slime:plugin/*=../host.js#*"],
  { stdio: ["ignore", "ignore", "inherit"] },
);
const { Finished } = await import(pathToFileURL(join(dir, "host.js")));
const plugin = await import(pathToFileURL(join(dir, "out", "plugin.js")));
const verification = plugin.verification ?? plugin["slime:plugin/verification@0.1.0"];

const lines = (file) => readFileSync(file, "utf8").split("\n").filter((line) => line.trim() !== "");
const rows = lines(rowsFile).map((line) => JSON.parse(line));
const scores = lines(scoresFile).map((line) => JSON.parse(line));
let differences = 0;
rows.forEach((row, index) => {
  let reward = null;
  let metrics = {};
  try {
    const verdict = verification.score(new Finished(row));
    reward = verdict.reward;
    metrics = Object.fromEntries(verdict.metrics.map(({ name, value }) => [name, value]));
  } catch (error) {
    if (error?.payload === undefined) throw error;
  }
  const wanted = scores[index];
  if (reward !== wanted.reward || JSON.stringify(metrics) !== JSON.stringify(wanted.metrics ?? {})) {
    differences += 1;
    console.log(`row ${index}: wasmtime ${wanted.reward}, JavaScript ${reward}`);
  }
});
console.log(`${rows.length} rows, ${differences} differences`);
process.exit(differences === 0 && rows.length === scores.length ? 0 : 1);
