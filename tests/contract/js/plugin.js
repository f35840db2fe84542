// The contract suite's guest in JavaScript; see tests/contract/README.md.
import { verifier, generator, filter, shaper, groupVerifier, source, toolbox } from "slime-plugin";
import log from "slime:plugin/log@0.1.0";

const size = (text) => {
  let bytes = 0;
  for (const c of text) {
    const code = c.codePointAt(0);
    bytes += code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  }
  return bytes;
};

export const verification = verifier((item) => {
  switch (item.prompt) {
    case "equal": {
      if (item.label === undefined) throw invalidGold("no label, no verdict");
      return [item.response.trim() === item.label.trim() ? 1 : 0, { bytes: size(item.response) }];
    }
    case "metadata":
      return JSON.stringify(item.metadata) === '{"level":3}' ? 1 : 0;
    case "finish":
      return [1, { finish: { stop: 0, length: 1, abort: 2 }[item.finishReason] ?? -1 }];
    case "fail":
      throw new PluginError("other", "I give up");
    case "invalid":
      throw invalidInput("not this");
    case "half":
      return [0.5, { a: 1, b: -2.5 }];
    case "two":
      return 2;
    case "nan":
      return NaN;
    case "log":
      for (let line = 0; line < 100; line++) log.log("debug", `line ${line}`);
      return 1;
    case "throw":
      return undefined.thrown;
    case "loop":
      for (;;) {}
    case "memory": {
      const hoard = [];
      for (;;) hoard.push(new Uint8Array(1 << 20).fill(1));
    }
    default:
      return 0;
  }
});

export const generation = generator((start) => {
  const prompt = start.prompt;
  const word = prompt.tag === "text" ? prompt.val : prompt.val[prompt.val.length - 1].content;
  const short = { maxTokens: 4, stop: ["\n"] };
  switch (word) {
    case "two-turns": {
      const turn = start.sample(short);
      start.append("user", `you said ${turn.text}`);
      start.sample(short);
      return start;
    }
    case "fork": {
      start.sample(short);
      const copy = start.fork();
      copy.sample(short);
      return [start, copy];
    }
    case "fail":
      start.sample(short);
      throw new PluginError("other", "no use");
    default:
      start.sample();
      return start;
  }
});

const items = (group) => Array.from({ length: group.size }, (_, index) => group.get(index));
const isShort = (group) => items(group).some((item) => item.prompt === "short-list");

export const filtering = filter((group) => {
  if (items(group).some((item) => item.prompt === "fail")) throw new PluginError("other", "no opinion");
  const rewards = new Set(group.rewards.filter((reward) => reward !== undefined));
  return rewards.size > 1 ? undefined : "one-sided";
});

export const shaping = shaper((group) => {
  const sizes = items(group).map((item) => size(item.response));
  const shaped = group.rewards.map((reward, index) => (reward === undefined ? undefined : reward - sizes[index] / 8));
  return isShort(group) ? shaped.slice(0, -1) : shaped;
});

export const groupVerification = groupVerifier((group) => {
  const sizes = items(group).map((item) => size(item.response));
  const least = Math.min(...sizes);
  const scores = sizes.map((bytes) => (bytes === least ? 1 : 0));
  return isShort(group) ? scores.slice(0, -1) : scores;
});

export const drawing = source((index, seed, difficulty) => {
  if (index === 13) throw new PluginError("other", "unlucky");
  return { prompt: `${index} ${difficulty}`, label: String(index) };
});

export const tools = toolbox(
  [
    {
      name: "add",
      description: "Adds two integers.",
      parameters: {
        type: "object",
        properties: { a: { type: "integer" }, b: { type: "integer" } },
        required: ["a", "b"],
      },
    },
  ],
  (name, { a, b }) => {
    if (!Number.isInteger(a) || !Number.isInteger(b)) throw invalidInput("a and b must be integers");
    return a + b;
  },
);
