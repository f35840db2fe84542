"""The prefix cache, and requests that are aborted."""

import time

from .asking import A, CAPTURED, Later, call, check, finish, generate, long_request, ok, post, stream


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
