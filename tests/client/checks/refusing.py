"""What is refused, and that the server outlives it."""

from .asking import A, capture, check, generate, get, long_request, ok, post, refused


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
