"""What OpenAI's own client makes of a run's gateway: a conversation of two turns, and its errors by their types.

    slime-host run plugins/arith -c configs/demo.toml --set run.gateway=127.0.0.1:8900 --set run.gateway_rewards=true &
    python tests/gateway/check.py http://127.0.0.1:8900/v1
"""

import json
import sys
import urllib.error
import urllib.request

import openai

base = sys.argv[1]
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(path, body, key=""):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with direct.open(urllib.request.Request(f"{base}/{path}", json.dumps(body).encode(), headers)) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def take():
    while True:
        status, offer = post("sessions", {})
        if status == 200:
            return offer


def client(key):
    return openai.OpenAI(base_url=base, api_key=key)


def refused(kind, words, policy, **fields):
    try:
        policy.chat.completions.create(**fields)
    except kind as error:
        assert words in str(error), error
        print("✓", kind.__name__, words)
    else:
        raise AssertionError(f"{fields} was answered")


offer = take()
messages, policy = offer["messages"], client(offer["api_key"])
assert [m.id for m in policy.models.list()] == ["policy"]
first = policy.chat.completions.create(model="policy", messages=messages, max_tokens=4)
assert first.object == "chat.completion" and first.choices[0].message.role == "assistant"
assert 1 <= first.usage.completion_tokens <= 4 and first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
again = policy.chat.completions.create(model="policy", messages=messages, max_tokens=4)
assert again.choices[0].message.content == first.choices[0].message.content, "the same request, the same turn"
print("✓ a turn, and the same turn again")
went = messages + [{"role": "assistant", "content": first.choices[0].message.content}]
refused(openai.BadRequestError, "history cannot be rewritten", policy, model="p", messages=went[:-1] + [{"role": "assistant", "content": "other"}])
refused(openai.BadRequestError, "the policy spoke last", policy, model="p", messages=went)
refused(openai.BadRequestError, "leave it out", policy, model="p", messages=messages, temperature=0.2)
refused(openai.BadRequestError, "not streamed", policy, model="p", messages=messages, stream=True)
refused(openai.AuthenticationError, "no open session", client("mine"), model="p", messages=messages)
if first.choices[0].finish_reason == "stop":
    more = went + [{"role": "user", "content": "+"}]
    second = policy.chat.completions.create(model="policy", messages=more, max_completion_tokens=2, stop=["9"])
    assert second.usage.prompt_tokens > first.usage.total_tokens
    print("✓ a second turn, on the tokens of the first")
key = offer["api_key"]
assert post("sessions/end", {}, key)[0] == 400
assert post("sessions/end", {"reward": 0.5}, key) == (200, {"ended": True})
refused(openai.AuthenticationError, "no open session", policy, model="p", messages=messages)
