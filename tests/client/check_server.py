#!/usr/bin/env python3
"""The same questions for any server that speaks SGLang's HTTP API (stdlib only).

    check_server.py URL [--prompt-ids 504,3575,282,4649,314] [--prompt "The capital of France is"]
                    [--weights DIR] [--only WORD] [--captured FILE]

--prompt-ids and --prompt must be the same text. --weights is a directory of safetensors with the
weights the server already has, on the server's disk (default: its model_path). Leaves the server
running, unpaused and with a new weight version. One line a check, then `N passed, M failed`.
Checked against SGLang 0.5.23 on CPU; a note says where an answer is that server's habit.
"""

import argparse
import http.client
import json
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from urllib.parse import urlsplit

CHECKS = []
CAPTURED = []
A = None  # arguments


def check(f):
    CHECKS.append(f)
    return f


# --- talking -------------------------------------------------------------------------------------

class Answer:
    def __init__(self, status, raw):
        self.status, self.raw = status, raw
        try:
            self.json = json.loads(raw)
        except ValueError:
            self.json = None

    def __repr__(self):
        return f"{self.status} {self.raw[:300]!r}"


def call(method, path, body=None, timeout=120):
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    request = urllib.request.Request(A.url + path, data=data, method=method, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as r:
            return Answer(r.status, r.read().decode())
    except urllib.error.HTTPError as e:
        return Answer(e.code, e.read().decode())


def get(path, **more):
    return call("GET", path, **more)


def post(path, body, **more):
    return call("POST", path, body, **more)


def ok(answer):
    assert answer.status == 200, answer
    return answer.json


def generate(temperature=0, max_new_tokens=8, sampling=None, **body):
    if not {"input_ids", "text"} & body.keys():
        body["input_ids"] = A.ids
    body["sampling_params"] = {"temperature": temperature, "max_new_tokens": max_new_tokens} | (sampling or {})
    return post("/generate", body)


def capture(name, method, path, body, answer):
    CAPTURED.append(dict(name=name, method=method, path=path, request=body, status=answer.status, response=answer.json if answer.json is not None else answer.raw))


class Later(threading.Thread):
    """A request whose answer is asked for afterwards."""

    def __init__(self, f):
        super().__init__(daemon=True)
        self.f, self.answer, self.error = f, None, None
        self.start()

    def run(self):
        try:
            self.answer = self.f()
        except Exception as e:
            self.error = e

    def wait(self, seconds=120):
        self.join(seconds)
        assert not self.is_alive(), f"no answer within {seconds} s"
        if self.error:
            raise self.error
        return self.answer


def stream(path, body, timeout=120):
    """SSE events of a request; the last one is the string "[DONE]"."""
    at = urlsplit(A.url)
    c = http.client.HTTPConnection(at.hostname, at.port, timeout=timeout)
    c.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, (r.status, r.read()[:300])
    assert r.headers.get("content-type", "").startswith("text/event-stream"), r.headers.get("content-type")
    try:
        for line in r:
            line = line.decode().rstrip("\r\n")
            if not line:
                continue
            assert line.startswith("data: "), line
            yield "[DONE]" if line == "data: [DONE]" else json.loads(line[6:])
    finally:
        r.close()
        c.close()


def long_request(rid, tokens):
    """Started in the background; returns once the server has it running."""
    started = threading.Event()
    last = {}

    def run():
        body = dict(input_ids=A.ids, rid=rid, stream=True, return_logprob=True, sampling_params=dict(temperature=1.0, max_new_tokens=tokens, ignore_eos=True))
        for event in stream("/generate", body):
            if event == "[DONE]":
                return last["event"]
            last["event"] = event
            started.set()
        raise AssertionError("the stream ended without [DONE]")

    later = Later(run)
    if not started.wait(60):
        later.wait(0)
    return later


def finish(meta):
    return meta["finish_reason"]


# --- looking -------------------------------------------------------------------------------------

@check
def health():
    """200, body empty. An idle SGLang takes a second over it: it waits for a token."""
    a = get("/health")
    assert (a.status, a.raw) == (200, ""), a


@check
def health_generate():
    a = get("/health_generate")
    assert (a.status, a.raw) == (200, ""), a


@check
def ready():
    assert get("/ready").status == 200


@check
def model_info():
    a = ok(get("/model_info"))
    assert a["is_generation"] is True, a
    for key in ("model_path", "tokenizer_path", "weight_version"):
        assert isinstance(a[key], str), (key, a)
    assert ok(get("/get_model_info")) == a


@check
def server_info():
    for path in ("/server_info", "/get_server_info"):
        a = ok(get(path))
        assert isinstance(a["version"], str) and a["model_path"], a.keys()


@check
def models():
    a = get("/v1/models")
    m = ok(a)
    assert m["object"] == "list" and len(m["data"]) >= 1
    assert m["data"][0]["object"] == "model" and m["data"][0]["id"] and m["data"][0]["max_model_len"] > 0, m
    capture("models", "GET", "/v1/models", None, a)


@check
def loads():
    """What runs and waits, for each data-parallel rank."""
    ranks = ok(get("/v1/loads"))["loads"]
    assert len(ranks) >= 1
    for rank in ranks:
        for key in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens", "token_usage", "gen_throughput", "cache_hit_rate"):
            assert isinstance(rank[key], (int, float)), (key, rank)


@check
def paths_can_be_probed():
    paths = ok(get("/openapi.json"))["paths"]
    for path in ("/generate", "/pause_generation", "/continue_generation", "/update_weights_from_disk", "/weights_checker", "/get_weights_by_name", "/abort_request"):
        assert path in paths, path


@check
def weight_version():
    """0.5.23 has no /get_weight_version (404) and /model_info says it; older ones have the path."""
    a = get("/get_weight_version")
    now = ok(get("/model_info"))["weight_version"]
    assert a.status == 404 or ok(a)["weight_version"] == now, a


# --- generating ----------------------------------------------------------------------------------

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


def stop_piece():
    """(text, index) of a token of the greedy answer that can serve as a stop string."""
    r = ok(generate(max_new_tokens=16, return_logprob=True, return_text_in_logprobs=True))
    pieces = [x[2] for x in r["meta_info"]["output_token_logprobs"]]
    for i, p in enumerate(pieces):
        if i and p.strip() and "\ufffd" not in p and p not in "".join(pieces[:i]):
            return r["output_ids"], pieces, i
    raise AssertionError(f"no usable stop string in {pieces}")


@check
def stop_string_trims_text_and_not_ids():
    ids, pieces, i = stop_piece()
    body = dict(input_ids=A.ids, sampling_params=dict(temperature=0, max_new_tokens=16, stop=[pieces[i]]))
    a = post("/generate", body)
    r = ok(a)
    assert finish(r["meta_info"]) == {"type": "stop", "matched": pieces[i]}, r
    assert r["text"] == "".join(pieces[:i]), (r["text"], pieces)
    assert r["output_ids"] == ids[: i + 1] and r["meta_info"]["completion_tokens"] == i + 1, r
    capture("stop string", "POST", "/generate", body, a)
    kept = ok(generate(max_new_tokens=16, sampling=dict(stop=pieces[i], no_stop_trim=True)))
    assert kept["text"] == "".join(pieces[: i + 1]), kept


@check
def stop_token_ids():
    ids, _, i = stop_piece()
    i = next(k for k in range(i, len(ids)) if ids[k] not in ids[:k])
    r = ok(generate(max_new_tokens=16, return_logprob=True, sampling=dict(stop_token_ids=[ids[i]])))
    assert finish(r["meta_info"]) == {"type": "stop", "matched": ids[i]}, r
    assert r["output_ids"] == ids[: i + 1] and len(r["meta_info"]["output_token_logprobs"]) == i + 1, r


@check
def length_zero():
    r = ok(generate(max_new_tokens=0))
    assert r["output_ids"] == [] and r["text"] == "" and r["meta_info"]["completion_tokens"] == 0, r
    assert finish(r["meta_info"]) == {"type": "length", "length": 0}, r


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
def input_logprobs_begin_with_null():
    body = dict(input_ids=A.ids, sampling_params=dict(temperature=0, max_new_tokens=0), return_logprob=True, logprob_start_len=0)
    a = post("/generate", body)
    lp = ok(a)["meta_info"]["input_token_logprobs"]
    assert [x[1] for x in lp] == A.ids and lp[0] == [None, A.ids[0], None] and all(x[0] <= 0 for x in lp[1:]), lp
    capture("input log-probs", "POST", "/generate", body, a)


@check
def scoring_agrees_with_sampling():
    r = ok(generate(max_new_tokens=6, return_logprob=True))
    scored = ok(generate(input_ids=A.ids + r["output_ids"], max_new_tokens=0, return_logprob=True, logprob_start_len=0))
    for x, y in zip(scored["meta_info"]["input_token_logprobs"][len(A.ids):], r["meta_info"]["output_token_logprobs"], strict=True):
        assert x[1] == y[1] and abs(x[0] - y[0]) < 5e-3, (x, y)


@check
def logprob_start_len_in_the_middle():
    """From position k: the entry for k itself comes first, and its value is null."""
    k = len(A.ids) - 2
    lp = ok(generate(max_new_tokens=0, return_logprob=True, logprob_start_len=k))["meta_info"]["input_token_logprobs"]
    assert [x[1] for x in lp] == A.ids[k:] and lp[0][0] is None, lp


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


# --- the prefix cache ----------------------------------------------------------------------------

@check
def flush_cache_forgets_the_prefix():
    """A prompt of several cache pages: only SGLang's default page is one token."""
    def again():
        return ok(generate(input_ids=A.ids * 30, max_new_tokens=1))

    for method in ("POST", "GET"):
        again()
        assert again()["meta_info"]["cached_tokens"] > 0
        a = call(method, "/flush_cache", b"" if method == "POST" else None)
        assert a.status == 200 and a.raw.startswith("Cache flushed."), a
        assert again()["meta_info"]["cached_tokens"] == 0


# --- abort, pause --------------------------------------------------------------------------------

@check
def abort_keeps_partial_tokens():
    later = long_request("abort-me", A.long)
    a = post("/abort_request", {"rid": "abort-me"})
    assert a.status == 200, a
    r = later.wait(60)
    m = r["meta_info"]
    assert finish(m)["type"] == "abort", finish(m)
    assert 0 < len(r["output_ids"]) < A.long and len(m["output_token_logprobs"]) == len(r["output_ids"]) == m["completion_tokens"], m
    CAPTURED.append(dict(name="aborted while running (tokens cut to 3)", method="POST", path="/generate", request=None, status=200, response=dict(finish_reason=finish(m), output_ids=r["output_ids"][:3], output_token_logprobs=m["output_token_logprobs"][:3], meta_info_keys=sorted(m))))


@check
def abort_of_a_plain_request():
    """Not streaming: the answer is an ordinary 200 with what there is."""
    later = Later(lambda: generate(temperature=1.0, max_new_tokens=A.long, rid="abort-plain", return_logprob=True, sampling=dict(ignore_eos=True)))
    time.sleep(0.7)
    assert post("/abort_request", {"rid": "abort-plain"}).status == 200
    r = ok(later.wait(60))
    assert finish(r["meta_info"])["type"] == "abort" and len(r["output_ids"]) == len(r["meta_info"]["output_token_logprobs"]) < A.long, finish(r["meta_info"])


@check
def abort_all():
    both = [long_request(f"all-{k}", A.long) for k in range(2)]
    assert post("/abort_request", {"abort_all": True}).status == 200
    assert [finish(x.wait(60)["meta_info"])["type"] for x in both] == ["abort"] * 2


@check
def a_client_that_leaves_frees_its_request():
    """Its connection is dropped; a while later (SGLang: seconds) the id is free again."""
    body = dict(input_ids=A.ids, rid="leaver", stream=True, sampling_params=dict(temperature=1.0, max_new_tokens=A.long, ignore_eos=True))
    events = stream("/generate", body)
    next(events)
    events.close()
    for _ in range(40):
        a = generate(rid="leaver", max_new_tokens=1)
        if a.status == 200:
            return
        time.sleep(0.5)
    raise AssertionError(f"still there after 20 s: {a}")


@check
def abort_of_nothing():
    """Always 200, also for an id nobody has; a prefix of an id is not that id."""
    for body in ({"rid": "nobody"}, {}):
        assert post("/abort_request", body).status == 200
    later = long_request("prefix-1", 24)
    post("/abort_request", {"rid": "prefix"})
    assert finish(later.wait()["meta_info"])["type"] == "length"


def pause(mode):
    a = post("/pause_generation", {"mode": mode})
    r = ok(a)
    assert r == {"message": "Generation paused successfully.", "status": "ok"}, r
    return a


def resume():
    return ok(post("/continue_generation", {}))


def held_until_continue():
    """A request that arrives during a pause is answered after it."""
    later = Later(lambda: generate(max_new_tokens=2))
    time.sleep(1.0)
    assert later.is_alive(), "a paused server answered"
    return later


@check
def pause_abort():
    later = long_request("pause-abort", A.long)
    try:
        a = pause("abort")
        r = later.wait(60)
        assert finish(r["meta_info"])["type"] == "abort" and len(r["output_ids"]) > 0, finish(r["meta_info"])
        assert get("/ready").status == 503 and get("/model_info").status == 200
        waiting = held_until_continue()
    finally:
        resume()
    assert len(ok(waiting.wait())["output_ids"]) == 2 and get("/ready").status == 200
    capture("pause", "POST", "/pause_generation", {"mode": "abort"}, a)


@check
def pause_retract():
    """Running requests go back to the queue, the cache can be flushed, then they finish in full."""
    later = long_request("pause-retract", A.medium)
    try:
        pause("retract")
        assert post("/flush_cache", b"").status == 200
        time.sleep(0.5)
        assert later.is_alive(), "a retracted request was answered during the pause"
    finally:
        resume()
    r = later.wait()
    assert finish(r["meta_info"]) == {"type": "length", "length": A.medium} and len(r["output_ids"]) == A.medium, r["meta_info"]
    assert r["meta_info"]["num_retractions"] >= 1, r["meta_info"]


@check
def pause_in_place():
    """Running requests freeze and go on with the KV they have, so a flush is refused meanwhile."""
    later = long_request("pause-in-place", A.medium)
    try:
        pause("in_place")
        a = post("/flush_cache", b"")
        assert a.status == 400 and a.raw.startswith("Flush cache failed."), a
        assert later.is_alive(), "a frozen request was answered during the pause"
    finally:
        resume()
    r = later.wait()
    assert finish(r["meta_info"])["type"] == "length" and len(r["output_ids"]) == A.medium, r["meta_info"]


@check
def pause_twice_and_continue_twice():
    try:
        pause("abort"), pause("abort")
    finally:
        resume(), resume()
    assert ok(generate())["output_ids"]


@check
def pause_in_an_unknown_mode():
    assert post("/pause_generation", {"mode": "sideways"}).status == 400
    assert ok(generate())["output_ids"]


# --- weights -------------------------------------------------------------------------------------

@check
def weights_checker():
    r = ok(post("/weights_checker", {"action": "checksum"}))
    again = ok(post("/weights_checker", {"action": "checksum"}))
    assert r["success"] is True and r["ranks"] and r["ranks"][0]["checksums"], r
    assert r["ranks"][0]["per_gpu_checksum"] == again["ranks"][0]["per_gpu_checksum"]


@check
def update_weights_from_disk():
    before = ok(generate(max_new_tokens=8))
    label = f"step-{int(time.time())}"
    pause("retract")
    try:
        body = dict(model_path=A.weights, weight_version=label, flush_cache=True)
        a = post("/update_weights_from_disk", body)
    finally:
        resume()
    r = ok(a)
    assert r["success"] is True and label in r["message"], r
    assert ok(get("/model_info"))["weight_version"] == label
    after = ok(generate(max_new_tokens=8))
    assert after["meta_info"]["weight_version"] == label and after["output_ids"] == before["output_ids"], after
    assert after["meta_info"]["cached_tokens"] == 0, "the old version's prefix cache was used again"
    capture("update from disk", "POST", "/update_weights_from_disk", body | {"model_path": "WEIGHTS"}, a)


@check
def a_request_that_spans_an_update_says_so():
    """Retracted, updated, finished: spans of output tokens, one per version."""
    later = long_request("span", A.medium)
    label = f"span-{int(time.time())}"
    pause("retract")
    try:
        ok(post("/update_weights_from_disk", dict(model_path=A.weights, weight_version=label, flush_cache=True)))
    finally:
        resume()
    m = later.wait()["meta_info"]
    spans = m["weight_versions"]
    assert len(spans) == 2 and spans[1]["version"] == label and spans[0]["version"] != label, spans
    assert spans[0]["start"] == 0 and spans[0]["end"] == spans[1]["start"] and spans[1]["end"] == A.medium, spans
    assert m["weight_version"] == label
    CAPTURED.append(dict(name="a request that spans an update", method="POST", path="/generate", request=None, status=200, response=dict(weight_version=label, weight_versions=spans, num_retractions=m["num_retractions"])))


@check
def weights_by_name():
    """The first values along the first axis; an unknown name is refused."""
    values = ok(post("/get_weights_by_name", dict(name="model.norm.weight", truncate_size=4)))
    assert len(values) == 4 and all(isinstance(x, float) for x in values), values
    rows = ok(post("/get_weights_by_name", dict(name="model.embed_tokens.weight", truncate_size=2)))
    assert len(rows) == 2 and len(rows[0]) > 4 and all(isinstance(x, float) for x in rows[1]), rows
    refused(post("/get_weights_by_name", dict(name="no.such.weight", truncate_size=4)), 400, "Get parameter by name failed")


class Skip(Exception):
    pass


def needs(path):
    if path not in ok(get("/openapi.json"))["paths"]:
        raise Skip(f"the server has no {path}")


@check
def tensors_outside_a_session_are_refused():
    needs("/update_weights_from_tensor")
    a = post("/update_weights_from_tensor", dict(serialized_named_tensors=["gASVAAAAAAAAAAB9lC4="], load_format="flattened_bucket"))
    assert a.status == 400 and "begin_weight_update" in a.json["message"], a


@check
def a_weight_session_opens_once_and_closes():
    needs("/begin_weight_update")
    assert post("/begin_weight_update", dict(selector="all")).status == 200
    try:
        assert post("/begin_weight_update", dict(selector="all")).status == 400
        assert ok(generate())["output_ids"], "generation goes on in a session"
    finally:
        assert post("/end_weight_update", {}).status == 200
    assert post("/end_weight_update", {}).status == 400


@check
def update_from_a_missing_directory():
    version = ok(get("/model_info"))["weight_version"]
    a = post("/update_weights_from_disk", dict(model_path="/no/such/directory", weight_version="never"))
    assert a.status == 400 and a.json["success"] is False and a.json["message"], a
    assert ok(generate())["meta_info"]["weight_version"] == version
    capture("update from a missing directory", "POST", "/update_weights_from_disk", dict(model_path="/no/such/directory", weight_version="never"), a)


@check
def update_weight_version():
    r = ok(post("/update_weight_version", dict(new_version="named", abort_all_requests=False)))
    assert r["success"] is True and r["new_version"] == "named", r
    assert ok(generate())["meta_info"]["weight_version"] == "named"


# --- OpenAI's paths ------------------------------------------------------------------------------

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


# --- refusals ------------------------------------------------------------------------------------

def refused(answer, status=400, *words):
    assert answer.status == status, answer
    e = answer.json.get("error", answer.json)
    message = e if isinstance(e, str) else e.get("message", e.get("detail"))
    assert isinstance(message, str) and all(w in message for w in words), answer
    return answer


@check
def too_long_an_input():
    n = ok(get("/v1/models"))["data"][0]["max_model_len"]
    a = refused(generate(input_ids=[A.ids[0]] * (n + 8)), 400, "longer than the model's context length", str(n))
    refused(generate(input_ids=[A.ids[0]] * (n - 8), max_new_tokens=n), 400, "exceeds the model's maximum context length")
    capture("input too long", "POST", "/generate", {"input_ids": f"[id] * {n + 8}"}, a)


@check
def empty_or_no_input():
    refused(generate(input_ids=[]), 400, "input_ids cannot be empty")
    refused(post("/generate", {"sampling_params": {}}), 400, "should be provided")


@check
def unknown_sampling_parameter():
    """Here `error` is a string, not an object."""
    a = refused(generate(sampling=dict(bogus=1)), 400, "bogus")
    assert isinstance(a.json["error"], str), a
    a.json["error"] = a.json["error"].split(", expected")[0] + ", expected one of ..."
    capture("unknown sampling parameter", "POST", "/generate", {"text": "a", "sampling_params": {"bogus": 1}}, a)


@check
def sampling_parameters_out_of_range():
    for key, value in (("temperature", -1), ("top_p", 0), ("top_p", 1.5), ("top_k", 0), ("max_new_tokens", -1)):
        a = refused(generate(temperature=1.0, sampling={key: value}), 400, key)  # temperature 0 would overwrite top_k
        assert isinstance(a.json["error"], dict), a


@check
def broken_json():
    a = post("/generate", b'{"text":')
    assert a.status == 400 and a.json["object"] == "error" and a.json["code"] == 400, a


@check
def bad_chat_requests():
    for body in (dict(model="policy"), dict(model="policy", messages=[]), dict(model="policy", messages=[dict(role="user", content="a")], temperature=-1)):
        a = refused(post("/v1/chat/completions", body))
        assert a.json["object"] == "error" and a.json["code"] == 400, a


@check
def unknown_path_and_wrong_method():
    assert get("/no/such/path").status == 404
    assert get("/generate").status == 405


@check
def a_request_id_in_use_is_refused():
    later = long_request("twice", A.long)
    try:
        refused(generate(rid="twice"), 400, "Duplicate request ID")
    finally:
        post("/abort_request", {"rid": "twice"})
    later.wait(60)


@check
def still_alive_after_all_that():
    assert get("/health").status == 200 and ok(generate())["output_ids"]


# --- the list ------------------------------------------------------------------------------------

def main():
    global A
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("url")
    p.add_argument("--prompt-ids", default="504,3575,282,4649,314")
    p.add_argument("--prompt", default="The capital of France is")
    p.add_argument("--weights")
    p.add_argument("--only", default="")
    p.add_argument("--captured")
    p.add_argument("--long", type=int, default=3000, help="tokens of a request that is meant to be cut short")
    p.add_argument("--medium", type=int, default=40, help="tokens of a request that is meant to be interrupted and to finish")
    A = p.parse_args()
    A.url = A.url.rstrip("/")
    A.ids = [int(x) for x in A.prompt_ids.split(",")]
    A.weights = A.weights or ok(get("/model_info"))["model_path"]
    passed = failed = skipped = 0
    for f in CHECKS:
        name = f.__name__.replace("_", " ")
        if A.only not in f.__name__:
            continue
        start = time.time()
        try:
            f()
            passed += 1
            print(f"ok    {name} ({time.time() - start:.2f} s)", flush=True)
        except Skip as e:
            skipped += 1
            print(f"skip  {name}: {e}", flush=True)
        except Exception as e:
            failed += 1
            where = next((t for t in reversed(traceback.extract_tb(e.__traceback__)) if t.name == f.__name__), None)
            print(f"FAIL  {name} (line {where.lineno if where else '?'}): {type(e).__name__} {str(e)[:600]}", flush=True)
    if A.captured:
        with open(A.captured, "w") as out:
            out.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in CAPTURED) + "\n]\n")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
