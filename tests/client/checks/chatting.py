"""OpenAI's paths."""

from .asking import A, capture, check, generate, ok, post, stream


@check
def chat():
    body = dict(model="policy", messages=[dict(role="user", content="What is 2+2?")], max_tokens=5, temperature=0, logprobs=True, return_meta_info=True)
    a = post("/v1/chat/completions", body)
    r = ok(a)
    c = r["choices"][0]
    assert r["object"] == "chat.completion" and c["index"] == 0 and c["message"]["role"] == "assistant", r
    assert isinstance(c["message"]["content"], str) and c["finish_reason"] in ("length", "stop"), c
    assert len(c["logprobs"]["content"]) == r["usage"]["completion_tokens"] <= 5, r
    assert r["usage"]["total_tokens"] == r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"]
    m = c["meta_info"]
    assert len(m["output_token_logprobs"]) == r["usage"]["completion_tokens"] and m["prompt_tokens"] == r["usage"]["prompt_tokens"], m
    capture("chat", "POST", "/v1/chat/completions", body, a)


@check
def chat_stream():
    body = dict(model="policy", messages=[dict(role="user", content="What is 2+2?")], max_tokens=4, temperature=0, stream=True, stream_options=dict(include_usage=True))
    events = list(stream("/v1/chat/completions", body))
    assert events.pop() == "[DONE]"
    assert events[0]["choices"][0]["delta"]["role"] == "assistant", events[0]
    usage = events.pop()
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 4, usage
    assert events[-1]["choices"][0]["finish_reason"] == "length", events[-1]
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events)
    whole = ok(post("/v1/chat/completions", {k: v for k, v in body.items() if not k.startswith("stream")}))
    assert text == whole["choices"][0]["message"]["content"], (text, whole)


@check
def completions():
    for prompt in (A.prompt, A.ids):
        body = dict(model="policy", prompt=prompt, max_tokens=3, temperature=0, logprobs=1)
        r = ok(post("/v1/completions", body))
        assert r["object"] == "text_completion" and r["choices"][0]["finish_reason"] == "length", r
        assert r["usage"]["prompt_tokens"] == len(A.ids) and r["usage"]["completion_tokens"] == 3, r
        assert len(r["choices"][0]["logprobs"]["token_logprobs"]) == 3
        assert r["choices"][0]["text"] == ok(generate(max_new_tokens=3))["text"]


@check
def any_model_name_is_accepted():
    r = ok(post("/v1/completions", dict(model="whatever", prompt=A.prompt, max_tokens=1)))
    assert r["model"] == "whatever", r
