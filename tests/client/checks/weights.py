"""New weights: from disk, by name, in sessions, and their versions."""

import time

from .asking import A, CAPTURED, capture, check, generate, get, long_request, needs, ok, pause, post, refused, resume


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
