"""What a server says of itself."""

from .asking import capture, check, get, ok


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
