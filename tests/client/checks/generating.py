"""`/generate`: shapes of answers, temperature, seeds, batches, streams."""

import time

from .asking import A, CAPTURED, capture, check, finish, generate, ok, post, stream


@check
def generate_ids_with_logprobs():
    body = dict(input_ids=A.ids, sampling_params=dict(temperature=0, max_new_tokens=6), return_logprob=True, rid=f"shape-{time.time()}")
    a = post("/generate", body)
    r = ok(a)
    m = r["meta_info"]
    assert isinstance(r["text"], str) and len(r["output_ids"]) == 6, r
    assert m["id"] == body["rid"]
    assert m["finish_reason"] == {"type": "length", "length": 6}, m
    assert m["prompt_tokens"] == len(A.ids) and m["completion_tokens"] == 6
    assert 0 <= m["cached_tokens"] < len(A.ids), m
    assert isinstance(m["weight_version"], str) and isinstance(m["e2e_latency"], (int, float))
    assert m["input_token_logprobs"] == []
    assert [x[1] for x in m["output_token_logprobs"]] == r["output_ids"]
    assert all(len(x) == 3 and x[0] <= 0 and x[2] is None for x in m["output_token_logprobs"]), m["output_token_logprobs"]
    assert m["weight_versions"] == [{"version": m["weight_version"], "start": 0, "end": 6}], m
    capture("generate with log-probs", "POST", "/generate", body, a)


@check
def generate_without_logprobs():
    m = ok(generate())["meta_info"]
    assert "output_token_logprobs" not in m and "input_token_logprobs" not in m, m
    assert m["id"], "an id is made when none is given"


@check
def unknown_top_level_fields_are_ignored():
    assert ok(generate(some_field_of_tomorrow=1))["output_ids"]


@check
def greedy_is_deterministic():
    a, b = (ok(generate(max_new_tokens=12, return_logprob=True)) for _ in range(2))
    assert a["output_ids"] == b["output_ids"] and a["text"] == b["text"], (a, b)
    for x, y in zip(a["meta_info"]["output_token_logprobs"], b["meta_info"]["output_token_logprobs"]):
        assert abs(x[0] - y[0]) < 1e-3, (x, y)


@check
def text_input_equals_its_ids():
    a, b = ok(generate()), ok(generate(text=A.prompt))
    assert a["output_ids"] == b["output_ids"], (a, b)
    assert b["meta_info"]["prompt_tokens"] == len(A.ids), b


@check
def sampling_differs_between_requests():
    seen = {tuple(ok(generate(temperature=1.5, max_new_tokens=16))["output_ids"]) for _ in range(3)}
    assert len(seen) > 1, seen


@check
def a_sampling_seed_is_accepted():
    """63 bits, as the host makes them. Whether it fixes the sample is the server's mode."""
    assert len(ok(generate(temperature=1.0, sampling=dict(sampling_seed=2**63 - 1)))["output_ids"]) > 0


@check
def temperature_scales_logprobs():
    """log_softmax(z / T): the gap between two tokens shrinks by T. Greedy reports T = 1."""
    gap = {}
    for t in (0, 2.0, 0.5):
        top = ok(generate(temperature=t, max_new_tokens=1, return_logprob=True, top_logprobs_num=2))["meta_info"]["output_top_logprobs"][0]
        assert len(top) == 2 and top[0][0] >= top[1][0]
        gap[t] = top[0][0] - top[1][0]
    assert abs(gap[2.0] - gap[0] / 2) < 2e-3 and abs(gap[0.5] - gap[0] * 2) < 2e-3, gap


@check
def top_k_one_is_greedy():
    assert ok(generate(temperature=1.0, sampling=dict(top_k=1)))["output_ids"] == ok(generate())["output_ids"]


@check
def text_in_logprobs_on_request():
    r = ok(generate(return_logprob=True, return_text_in_logprobs=True))
    pieces = [x[2] for x in r["meta_info"]["output_token_logprobs"]]
    assert all(isinstance(p, str) for p in pieces), pieces


@check
def n_two_is_an_array():
    """Each sample gets an id of its own; the parent's rid is gone."""
    r = ok(generate(temperature=1.0, sampling=dict(n=2), rid="parent"))
    assert isinstance(r, list) and len(r) == 2, r
    assert len({x["meta_info"]["id"] for x in r}) == 2, r


@check
def batch_keeps_order_and_rids():
    rids = [f"batch-{k}-{time.time()}" for k in "ab"]
    body = dict(input_ids=[A.ids, A.ids[:2]], rid=rids, sampling_params=[dict(temperature=0, max_new_tokens=2), dict(temperature=0, max_new_tokens=3)])
    a = post("/generate", body)
    r = ok(a)
    assert [x["meta_info"]["id"] for x in r] == rids, r
    assert [len(x["output_ids"]) for x in r] == [2, 3] and [x["meta_info"]["prompt_tokens"] for x in r] == [len(A.ids), 2], r
    capture("batch", "POST", "/generate", body, a)


@check
def ignore_eos_and_eos():
    r = ok(generate(temperature=1.0, max_new_tokens=40, sampling=dict(ignore_eos=True)))
    assert finish(r["meta_info"])["type"] == "length" and len(r["output_ids"]) == 40, r


@check
def streaming_is_cumulative():
    body = dict(input_ids=A.ids, stream=True, return_logprob=True, sampling_params=dict(temperature=0, max_new_tokens=6))
    events = list(stream("/generate", body))
    assert events.pop() == "[DONE]" and events, events
    text, n = "", 0
    for e in events:
        assert e["text"].startswith(text) and len(e["output_ids"]) >= n, events
        assert [x[1] for x in e["meta_info"]["output_token_logprobs"]] == e["output_ids"], e
        text, n = e["text"], len(e["output_ids"])
    assert all(finish(e["meta_info"]) is None for e in events[:-1])
    assert finish(events[-1]["meta_info"]) == {"type": "length", "length": 6} and n == 6, events[-1]
    whole = ok(generate(max_new_tokens=6))
    assert (text, events[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    CAPTURED.append(dict(name="stream", method="POST", path="/generate", request=body, status=200, response=events + ["[DONE]"]))
