"""The contract suite's guest in Python; see tests/contract/README.md."""

import slime_plugin
from slime_plugin import InvalidGold, InvalidInput, PluginError, log


@slime_plugin.verifier()
def score(item):
    word = item.prompt
    if word == "equal":
        if item.label is None:
            raise InvalidGold("no label, no verdict")
        response = item.response
        return response.strip() == item.label.strip(), {"bytes": len(response.encode())}
    if word == "metadata":
        return item.metadata == {"level": 3}
    if word == "finish":
        return 1.0, {"finish": {"stop": 0, "length": 1, "abort": 2, None: -1}[item.finish_reason]}
    if word == "fail":
        raise PluginError("I give up")
    if word == "invalid":
        raise InvalidInput("not this")
    if word == "half":
        return 0.5, {"a": 1, "b": -2.5}
    if word == "two":
        return 2.0
    if word == "nan":
        return float("nan")
    if word == "log":
        for line in range(100):
            log(f"line {line}", "debug")
        return 1.0
    if word == "throw":
        raise ValueError("thrown")
    if word == "loop":
        while True:
            pass
    if word == "memory":
        hoard = []
        while True:
            hoard.append(bytearray(1 << 20))
    return 0.0


@slime_plugin.generator
def generate(start):
    prompt = start.prompt
    word = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    if word == "two-turns":
        turn = start.sample(4, ["\n"])
        start.append("user", f"you said {turn.text}")
        start.sample(4, ["\n"])
    elif word == "fork":
        start.sample(4, ["\n"])
        copy = start.fork()
        copy.sample(4, ["\n"])
        return [start, copy]
    elif word == "fail":
        start.sample(4, ["\n"])
        raise PluginError("no use")
    else:
        start.sample()
    return start


@slime_plugin.filter
def decide(group):
    if any(item.prompt == "fail" for item in group):
        raise PluginError("no opinion")
    rewards = {reward for reward in group.rewards if reward is not None}
    return None if len(rewards) > 1 else "one-sided"


def lengths(group):
    return [len(item.response.encode()) for item in group]


def is_short(group):
    return any(item.prompt == "short-list" for item in group)


@slime_plugin.shaper
def shape(group):
    pairs = zip(group.rewards, lengths(group))
    shaped = [None if reward is None else reward - length / 8 for reward, length in pairs]
    return shaped[:-1] if is_short(group) else shaped


@slime_plugin.group_verifier()
def score_group(group):
    sizes = lengths(group)
    scores = [float(size == min(sizes)) for size in sizes]
    return scores[:-1] if is_short(group) else scores


@slime_plugin.source()
def draw(index, seed, difficulty):
    if index == 13:
        raise PluginError("unlucky")
    return {"prompt": f"{index} {difficulty:g}", "label": str(index)}


@slime_plugin.tools(
    {
        "name": "add",
        "description": "Adds two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    }
)
def call(name, arguments):
    a, b = arguments.get("a"), arguments.get("b")
    if not (isinstance(a, int) and isinstance(b, int)):
        raise InvalidInput("a and b must be integers")
    return a + b
