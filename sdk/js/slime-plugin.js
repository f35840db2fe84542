// Write a plugin in JavaScript: a function and a call.
//
//     import { verifier, invalidGold } from "slime-plugin";
//
//     export const verification = verifier((item) => {
//       if (item.label === undefined) throw invalidGold("exact-match needs a label");
//       return item.response.trim() === item.label.trim() ? 1 : 0;
//     });
//
// `slime-host plugin build` puts QuickJS, this file and the plugin into one component. Nothing survives between
// calls. Read `wit/` next; it is the contract that this file wraps.

class PluginError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** The input is not what this plugin expects; the message should name the cure. */
function invalidInput(message) {
  return new PluginError("invalid-input", message);
}

/** The label cannot be used, so no response can be judged by it. */
function invalidGold(message) {
  return new PluginError("invalid-gold", message);
}

/** A finished rollout, to be read and not changed. What is never read costs nothing. */
class Rollout {
  #handle;
  constructor(handle) {
    this.#handle = handle;
  }
  get prompt() {
    return this.#handle.prompt();
  }
  get response() {
    return this.#handle.response();
  }
  get label() {
    return this.#handle.label() ?? undefined;
  }
  get metadata() {
    return JSON.parse(this.#handle.metadataJson());
  }
  get finishReason() {
    return this.#handle.finishReason() ?? undefined;
  }
}

/** All rollouts of one prompt, in order. */
class Group {
  #handle;
  constructor(handle) {
    this.#handle = handle;
  }
  get size() {
    return this.#handle.size();
  }
  get(index) {
    const item = this.#handle.get(index) ?? undefined;
    return item === undefined ? undefined : new Rollout(item);
  }
  get rewards() {
    return Array.from({ length: this.size }, (_, index) => this.#handle.reward(index) ?? undefined);
  }
  get outcomes() {
    return Array.from({ length: this.size }, (_, index) => this.#handle.outcome(index));
  }
}

/** A token sequence that the host grows. Tokens and log-probs stay there. */
class Trajectory {
  constructor(handle) {
    this.handle = handle;
  }
  get prompt() {
    return this.handle.prompt();
  }
  get metadata() {
    return JSON.parse(this.handle.metadataJson());
  }
  get response() {
    return this.handle.response();
  }
  get remainingTokens() {
    return this.handle.remainingTokens();
  }
  append(role, content, extra) {
    const more = extra === undefined ? null : JSON.stringify(extra);
    this.handle.append({ role, content, extra: more });
  }
  sample({ maxTokens = 0, stop = [] } = {}) {
    return this.handle.sample(maxTokens, stop);
  }
  fork() {
    return new Trajectory(this.handle.fork());
  }
}

const about = () => ({ name: NAME, version: VERSION });

function asError(error) {
  if (error instanceof PluginError) return { code: error.code, message: error.message, detail: null };
  // An error that the host gave: hand it on.
  const given = error?.payload ?? error;
  if (typeof given?.code === "string" && typeof given?.message === "string" && !(given instanceof Error)) {
    return { code: given.code, message: given.message, detail: given.detail ?? null };
  }
  return { code: "internal", message: String(error), detail: null };
}

/** Call the plugin; what it throws becomes an error of this rollout. */
function guarded(call) {
  return (...args) => {
    try {
      return call(...args);
    } catch (error) {
      // Out of memory stays a trap: it is no opinion of the plugin's.
      if (error instanceof InternalError) throw error;
      throw asError(error);
    }
  };
}

function asVerdict(said) {
  const [reward, metrics] = Array.isArray(said) ? said : [said, {}];
  if (reward === undefined || reward === null) throw new PluginError("other", "the plugin returned no reward");
  return {
    reward: Number(reward),
    metrics: Object.entries(metrics ?? {}).map(([name, value]) => ({ name, value: Number(value) })),
  };
}

/** `score(item)` returns a reward, or `[reward, { metric: value }]`. Same input, same verdict. */
function verifier(score, { rewardMin = 0, rewardMax = 1 } = {}) {
  return {
    describe: () => ({ about: about(), rewardMin, rewardMax }),
    score: guarded((item) => asVerdict(score(new Rollout(item)))),
  };
}

/** `score(group)` returns one reward a rollout. */
function groupVerifier(score, { rewardMin = 0, rewardMax = 1 } = {}) {
  return {
    describe: () => ({ about: about(), rewardMin, rewardMax }),
    score: guarded((group) => score(new Group(group)).map((said) => ({ tag: "ok", val: asVerdict(said) }))),
  };
}

/** `decide(group)` returns undefined to keep the group, or the reason to drop it. */
function filter(decide) {
  return {
    describe: about,
    decide: guarded((group) => {
      const reason = decide(new Group(group));
      return reason === undefined ? { tag: "keep" } : { tag: "drop", val: String(reason) };
    }),
  };
}

/** `shape(group)` returns new rewards, undefined exactly where the raw one is. */
function shaper(shape) {
  return { describe: about, shape: guarded((group) => shape(new Group(group)).map((reward) => reward ?? null)) };
}

/** `generate(start)` drives one rollout and returns the trajectory, or an array of them. */
function generator(generate) {
  return {
    describe: about,
    generate: guarded((start) => [generate(new Trajectory(start))].flat().map((one) => one.handle)),
  };
}

/** `draw(index, seed, difficulty)` returns `{ prompt, label?, metadata?, tools? }`. */
function source(draw, { numRows } = {}) {
  const packed = (value) => (value === undefined ? null : JSON.stringify(value));
  return {
    describe: () => ({ about: about(), numRows: numRows ?? null }),
    draw: guarded((index, seed, difficulty) => {
      const row = draw(Number(index), Number(seed), difficulty);
      const prompt =
        typeof row.prompt === "string"
          ? { tag: "text", val: row.prompt }
          : { tag: "messages", val: row.prompt.map(({ role, content }) => ({ role, content, extra: null })) };
      return { prompt, label: row.label ?? null, metadata: packed(row.metadata), tools: packed(row.tools) };
    }),
  };
}

/** `call(name, args)` answers the policy with text. */
function toolbox(definitions, call) {
  return {
    definitions: () =>
      definitions.map(({ name, description = "", parameters = {} }) => ({
        name,
        description,
        parameters: JSON.stringify(parameters),
      })),
    call: guarded((name, args) => String(call(name, JSON.parse(args)))),
  };
}
