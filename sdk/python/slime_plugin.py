"""Write a plugin in Python: a function and a decorator.

    from slime_plugin import verifier, InvalidGold

    @verifier()
    def score(item):
        if item.label is None:
            raise InvalidGold("exact-match needs a label")
        return item.response.strip() == item.label.strip()

`slime-host plugin build` puts CPython, this file and everything the plugin imports into one component. Import at
the top: what is not imported when the component is built does not exist when it runs. Nothing survives between
calls. Read `wit/` next; it is the contract that this file wraps.
"""

import importlib
import json

import slime_manifest
from componentize_py_types import Err
from wit_world import exports
from wit_world.imports import types


def _load(*names):
    """Import what the plugin's world has of these now: what is not imported while the component is built is not
    there when it runs."""
    for name in names:
        try:
            importlib.import_module(f"wit_world.imports.{name}")
        except ImportError:
            pass


_load("code_exec", "log", "models", "trajectories", "trajectories_async", "verdicts")


class PluginError(Exception):
    """A failure of this rollout only. `code` is one of the contract's, `detail` anything JSON can hold."""

    code = types.ErrorCode.OTHER

    def __init__(self, message="", code=None, detail=None):
        super().__init__(message)
        if code is not None:
            self.code = code
        self.detail = detail


class InvalidInput(PluginError):
    """The input is not what this plugin expects; the message should name the cure."""

    code = types.ErrorCode.INVALID_INPUT


class InvalidGold(PluginError):
    """The label cannot be used, so no response can be judged by it."""

    code = types.ErrorCode.INVALID_GOLD


class Rollout:
    """One finished rollout, to be read and not changed. What is never read costs nothing."""

    def __init__(self, handle):
        self._handle = handle

    @property
    def prompt(self):
        """The prompt as text; of a conversation, the last user message."""
        return self._handle.prompt()

    @property
    def response(self):
        """What the policy wrote, special tokens left out."""
        return self._handle.response()

    @property
    def label(self):
        """The gold answer; None where the row has none. An empty string is an answer."""
        return self._handle.label()

    @property
    def metadata(self):
        """All metadata, as a dict."""
        return json.loads(self._handle.metadata_json())

    @property
    def finish_reason(self):
        """"stop", "length", "abort", or None where the policy never wrote."""
        reason = self._handle.finish_reason()
        return None if reason is None else reason.name.lower()


class Group:
    """All rollouts of one prompt, in order."""

    def __init__(self, handle):
        self._handle = handle

    def __len__(self):
        return self._handle.size()

    def __getitem__(self, index):
        item = self._handle.get(index) if index >= 0 else None
        if item is None:
            raise IndexError(index)
        return Rollout(item)

    @property
    def rewards(self):
        """One a rollout; None where it was not scored, which is not the same as 0."""
        return [self._handle.reward(index) for index in range(len(self))]

    @property
    def outcomes(self):
        """How each scoring ended, by name."""
        return [self._handle.outcome(index) for index in range(len(self))]


class Turn:
    """What the policy wrote in one turn."""

    def __init__(self, turn):
        self.text = turn.text
        self.finish_reason = turn.finish_reason.name.lower()
        self.num_tokens = turn.num_tokens
        self.weight_version = turn.weight_version


class Trajectory:
    """A token sequence that the host grows. Tokens and log-probs stay there."""

    def __init__(self, handle):
        self._handle = handle

    @property
    def prompt(self):
        """Text, or a list of messages (dicts), or a list of token ids."""
        return _prompt(self._handle.prompt())

    @property
    def metadata(self):
        """All metadata of the prompt, as a dict."""
        return json.loads(self._handle.metadata_json())

    @property
    def response(self):
        """All text after the prompt."""
        return self._handle.response()

    @property
    def remaining_tokens(self):
        """Tokens that still fit."""
        return self._handle.remaining_tokens()

    def append(self, role, content, **extra):
        """Append text that the policy did not write. Never trained on."""
        more = json.dumps(extra) if extra else None
        self._handle.append(types.Message(role, content, more))

    def sample(self, max_tokens=0, stop=()):
        """Let the policy write the next turn; 0 tokens is as many as still fit."""
        return Turn(self._handle.sample(max_tokens, list(stop)))

    def fork(self):
        """A copy that shares the past. Return it to have it trained on."""
        return type(self)(self._handle.fork())


class AsyncTrajectory(Trajectory):
    """The same for `generator_async`. Away while the policy writes on it."""

    async def sample(self, max_tokens=0, stop=()):
        """Let the policy write the next turn, while other rollouts of this instance go on."""
        calls = importlib.import_module("wit_world.imports.trajectories_async")
        handle, self._handle = self._handle, None
        sampled = await calls.sample(handle, max_tokens, list(stop))
        self._handle = sampled.trajectory
        if isinstance(sampled.turn, Err):
            raise sampled.turn
        return Turn(sampled.turn.value)


def _prompt(prompt):
    if isinstance(prompt, types.Prompt_Text):
        return prompt.value
    if isinstance(prompt, types.Prompt_Messages):
        return [
            {"role": m.role, "content": m.content, **(json.loads(m.extra) if m.extra else {})}
            for m in prompt.value
        ]
    raw = prompt.value
    return [int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)]


def log(message, level="info"):
    """Write one line to the host's log."""
    lines = importlib.import_module("wit_world.imports.log")
    lines.log(getattr(lines.Level, level.upper()), str(message))


def _guarded(function):
    """Call the plugin; what it raises becomes an error of this rollout. Running out of memory stays a trap."""

    def call(*arguments):
        try:
            return function(*arguments)
        except (Err, MemoryError):
            raise
        except Exception as error:
            raise _error(error) from None

    return call


def _error(error):
    if isinstance(error, PluginError):
        detail = None if error.detail is None else json.dumps(error.detail)
        return Err(types.Error(error.code, str(error), detail))
    text = f"{type(error).__name__}: {error}"
    return Err(types.Error(types.ErrorCode.INTERNAL, text, None))


def _types(interface, member):
    """Where the types of an exported interface lie: beside its imports where the world imports it too."""
    for side in ("exports", "imports"):
        try:
            module = importlib.import_module(f"wit_world.{side}.{interface}")
        except ImportError:
            continue
        if hasattr(module, member):
            return module
    raise PluginError(f"the world has no {interface}")


def _about():
    return types.About(slime_manifest.NAME, slime_manifest.VERSION)


def _export(function, name, **methods):
    """Put the class that the component exports where the builder looks for it: into the plugin's own module."""
    base = getattr(exports, name)
    static = {key: (lambda m: lambda self, *a: m(*a))(method) for key, method in methods.items()}
    function.__globals__[name] = type(name, (base,), static)
    return function


def _verdict(said):
    verdicts = importlib.import_module("wit_world.imports.verdicts")
    metrics = {}
    if isinstance(said, tuple):
        said, metrics = said
    if said is None:
        raise PluginError("the plugin returned no reward")
    parts = [types.Metric(str(name), float(value)) for name, value in metrics.items()]
    return verdicts.Verdict(float(said), parts)


def _info(reward):
    verdicts = importlib.import_module("wit_world.imports.verdicts")
    return verdicts.Info(_about(), float(reward[0]), float(reward[1]))


def verifier(reward=(0.0, 1.0)):
    """`score(item)` returns a reward, or a reward and a dict of metrics. Same input, same verdict."""

    def export(function):
        call = _guarded(lambda item: _verdict(function(Rollout(item))))
        return _export(function, "Verification", describe=lambda: _info(reward), score=call)

    return export


def judge(reward=(0.0, 1.0)):
    """As `verifier`, for a plugin that asks a model with `ask`."""

    def export(function):
        call = _guarded(lambda item: _verdict(function(Rollout(item))))
        return _export(function, "Judgement", describe=lambda: _info(reward), score=call)

    return export


def ask(model, messages, max_tokens=512, temperature=0.0):
    """The text that a granted model answers."""
    models = importlib.import_module("wit_world.imports.models")
    turns = [types.Message(m["role"], m["content"], None) for m in messages]
    return models.ask(model, turns, max_tokens, temperature).text


def group_verifier(reward=(0.0, 1.0)):
    """`score(group)` returns a list: one reward (or reward and metrics) a rollout."""

    def export(function):
        ok = importlib.import_module("componentize_py_types").Ok
        call = _guarded(lambda group: [ok(_verdict(said)) for said in function(Group(group))])
        return _export(function, "GroupVerification", describe=lambda: _info(reward), score=call)

    return export


def filter(function):
    """`decide(group)` returns None to keep the group, or the reason to drop it."""
    kinds = _types("filtering", "Decision_Keep")

    def decide(group):
        reason = function(Group(group))
        return kinds.Decision_Keep() if reason is None else kinds.Decision_Drop(str(reason))

    return _export(function, "Filtering", describe=_about, decide=_guarded(decide))


def shaper(function):
    """`shape(group)` returns new rewards, None exactly where the raw one is."""
    return _export(
        function,
        "Shaping",
        describe=_about,
        shape=_guarded(
            lambda group: [None if r is None else float(r) for r in function(Group(group))]
        ),
    )


def generator(function):
    """`generate(start)` drives one rollout and returns the trajectory, or a list of them."""

    def generate(start):
        return _handles(function(Trajectory(start)))

    return _export(function, "Generation", describe=_about, generate=_guarded(generate))


def generator_async(function):
    """`async generate(start)`, in a world of its own: one interpreter drives up to 64 rollouts, and what they share
    (globals, random numbers, an endless loop) they share."""

    async def generate(start):
        try:
            return _handles(await function(AsyncTrajectory(start)))
        except (Err, MemoryError):
            raise
        except Exception as error:
            raise _error(error) from None

    return _export(function, "GenerationAsync", describe=_about, generate=generate)


def _handles(done):
    done = done if isinstance(done, (list, tuple)) else [done]
    return [trajectory._handle for trajectory in done]


def source(num_rows=None):
    """`draw(index, seed, difficulty)` returns a dict: `prompt`, and perhaps `label`, `metadata`, `tools`."""

    def export(function):
        kinds = _types("drawing", "Drawn")

        def draw(index, seed, difficulty):
            row = function(index, seed, difficulty)
            prompt = row["prompt"]
            if isinstance(prompt, str):
                prompt = types.Prompt_Text(prompt)
            elif prompt and isinstance(prompt[0], dict):
                prompt = types.Prompt_Messages(
                    [types.Message(m["role"], m["content"], None) for m in prompt]
                )
            else:
                prompt = types.Prompt_Tokens(b"".join(t.to_bytes(4, "little") for t in prompt))
            packed = [json.dumps(row[key]) if row.get(key) else None for key in ("metadata", "tools")]
            return kinds.Drawn(prompt, row.get("label"), *packed)

        return _export(
            function,
            "Drawing",
            describe=lambda: kinds.Info(_about(), num_rows),
            draw=_guarded(draw),
        )

    return export


def tools(*definitions):
    """`call(name, arguments)` answers the policy with text; `definitions` are OpenAI-style functions (dicts)."""

    def export(function):
        kinds = _types("tools", "Definition")
        described = [
            kinds.Definition(d["name"], d.get("description", ""), json.dumps(d.get("parameters", {})))
            for d in definitions
        ]
        call = _guarded(lambda name, arguments: str(function(name, json.loads(arguments))))
        return _export(function, "Tools", definitions=lambda: described, call=call)

    return export


def run_python(source, stdin=b"", time_limit_ms=0, memory_limit_bytes=0, output_limit_bytes=0):
    """Run a program that the model wrote, in a sandbox of its own. Needs `asks = ["code_exec"]` and the grant."""
    code = importlib.import_module("wit_world.imports.code_exec")
    return code.run(
        code.Program(
            code.Language.PYTHON, source, stdin, time_limit_ms, memory_limit_bytes, output_limit_bytes
        )
    )
