"""`/generate`: log-probs of what was sent."""

from .asking import A, capture, check, generate, ok, post


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
