"""Pauses, in each mode."""

import time

from .asking import A, Later, capture, check, finish, generate, get, long_request, ok, pause, post, resume


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
