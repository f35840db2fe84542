"""`/generate`: what ends an answer."""

from .asking import A, capture, check, finish, generate, ok, post


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
