"""Closed forms of advantages, losses, KL, importance weights and schedules -> algo.json (stdlib only, float64).

    python make.py [OUT_FILE]

An entry is `{case, inputs, expected}`; the first word of `case` says which function it is for, the
second is the failure it guards against. `known(...)` pins a value worked out by hand.
"""

import json
import math
import sys
from pathlib import Path

ENTRIES = []


def add(case, inputs, expected):
    ENTRIES.append(dict(case=case, inputs=inputs, expected=expected))
    return expected


def known(got, want, tol=1e-6):
    got, want = (x if isinstance(x, list) else [x] for x in (got, want))
    assert len(got) == len(want) and all(abs(a - b) <= tol * max(1.0, abs(b)) for a, b in zip(got, want)), (got, want)


def mean(x):
    return math.fsum(x) / len(x)


# --- advantages ----------------------------------------------------------------------------------

def grpo(rewards, std="sample", eps=1e-6):
    """Centre; divide by std + eps. A constant group, or one of a single rollout, is exactly zero."""
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mu = mean(rewards)
    if std == "none":
        return [r - mu for r in rewards]
    n = len(rewards) - (std == "sample")
    sd = math.sqrt(math.fsum((r - mu) ** 2 for r in rewards) / n)
    return [(r - mu) / (sd + eps) for r in rewards]


def advantages():
    groups = {"half": [1.0, 1.0, 0.0, 0.0], "one-right": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], "real": [0.25, -1.5, 3.0], "pair": [-0.1, 0.1], "near-equal": [0.5, 0.5 + 1e-5, 0.5]}
    for name, r in groups.items():
        add(f"grpo C01 sample std, {name}", dict(rewards=r, std="sample", eps=1e-6), grpo(r))
        add(f"grpo C01 population std, {name}", dict(rewards=r, std="population", eps=1e-6), grpo(r, "population"))
        add(f"grpo dr-grpo, {name}", dict(rewards=r, std="none"), grpo(r, "none"))
    known(grpo(groups["half"]), [0.866024] * 2 + [-0.866024] * 2)
    known(grpo(groups["half"], "population", 0.0), [1, 1, -1, -1])
    for n in (1, 3, 7, 8, 16):
        for r in (0.1, 0.35, 0.7, 0.95):
            add(f"grpo {'C06 group of one' if n == 1 else 'C02 constant group'} n={n} reward={r}", dict(rewards=[r] * n, std="sample", eps=1e-6), [0.0] * n)
    ids, r = ["a", "b", "a"], [1.0, 4.0, 3.0]
    add("grouped C05 by id after one was removed, population std", dict(group_ids=ids, rewards=r, std="population", eps=0.0), [-1.0, 0.0, 1.0])
    ids = ["a"] * 4 + ["b"] * 4
    add("grouped C15 no group is skipped", dict(group_ids=ids, rewards=[1.0, 0.0, 0.0, 1.0, 3.0, 1.0, 1.0, 3.0], std="none"), [0.5, -0.5, -0.5, 0.5, 1.0, -1.0, -1.0, 1.0])
    a, b = grpo([1.0, 0.0, 0.5]), grpo([2.0, -1.0])
    add("grouped C05 interleaved, sample std", dict(group_ids=["a", "b", "a", "b", "a"], rewards=[1.0, 2.0, 0.0, -1.0, 0.5], std="sample", eps=1e-6), [a[0], b[0], a[1], b[1], a[2]])
    r = [1.0, 0.0, 0.5, 0.25]
    add("rloo", dict(rewards=r), [x - (sum(r) - x) / (len(r) - 1) for x in r])

    # a rollout that was not scored neither votes nor is trained
    ok = grpo([1.0, 3.0], "population", 0.0)
    add("grouped C07 unscored member, population std", dict(group_ids=["a"] * 3, rewards=[1.0, None, 3.0], std="population", eps=0.0), [ok[0], None, ok[1]])
    known(ok, [-1, 1])

    def returns(kl, mask, coef, gamma, reward):
        r = [-coef * k * m for k, m in zip(kl, mask)]
        r[max(t for t, m in enumerate(mask) if m)] += reward
        out, g = [0.0] * len(r), 0.0
        for t in reversed(range(len(r))):
            g = out[t] = r[t] + gamma * g
        return out

    for gamma in (1.0, 0.9):
        x = add(f"reinforce-plus-plus C09 gamma={gamma}", dict(kl=[0.1, 5.0, 0.2, 0.3], mask=[1, 0, 1, 1], kl_coef=0.1, gamma=gamma, reward=1.0), returns([0.1, 5.0, 0.2, 0.3], [1, 0, 1, 1], 0.1, gamma, 1.0))
        if gamma == 1.0:
            known(x, [0.94, 0.95, 0.95, 0.97])
    add("reinforce-plus-plus C09 last token masked", dict(kl=[0.1, 0.2, 9.0], mask=[1, 1, 0], kl_coef=0.1, gamma=1.0, reward=2.0), returns([0.1, 0.2, 9.0], [1, 1, 0], 0.1, 1.0, 2.0))

    def gae(rewards, values, gamma, lam):
        out, acc = [0.0] * len(rewards), 0.0
        for t in reversed(range(len(rewards))):
            nxt = values[t + 1] if t + 1 < len(values) else 0.0
            acc = out[t] = rewards[t] + gamma * nxt - values[t] + gamma * lam * acc
        return out

    r, v = [0.0, -0.05, 0.1, 0.0, 1.0], [0.3, 0.25, 0.6, 0.55, 0.8]
    for gamma, lam in ((1.0, 1.0), (0.99, 0.95), (0.9, 0.0)):
        a = gae(r, v, gamma, lam)
        add(f"gae gamma={gamma} lambda={lam}", dict(rewards=r, values=v, gamma=gamma, lam=lam), dict(advantages=a, returns=[x + y for x, y in zip(a, v)]))
    # tokens the policy did not write are skipped: the scan runs over the trained ones only
    mask = [1, 1, 0, 0, 1]
    keep = [t for t, m in enumerate(mask) if m]
    a = gae([r[t] for t in keep], [v[t] for t in keep], 0.99, 0.95)
    full = [0.0] * 5
    for t, x in zip(keep, a):
        full[t] = x
    add("gae masked tokens are skipped", dict(rewards=r, values=v, mask=mask, gamma=0.99, lam=0.95), dict(advantages=full, returns=[x + v[t] if mask[t] else 0.0 for t, x in enumerate(full)]))

    def whiten(x, mask, ddof, eps):
        m = [a for a, k in zip(x, mask) if k]
        mu = mean(m)
        var = math.fsum((a - mu) ** 2 for a in m) / (len(m) - ddof)
        return [(a - mu) / math.sqrt(var + eps) for a in x]

    x = add("whiten C12 population, eps 0", dict(advantages=[1.0, 2.0, 3.0, 4.0], mask=[1] * 4, ddof=0, eps=0.0), whiten([1.0, 2.0, 3.0, 4.0], [1] * 4, 0, 0.0))
    known(x, [-1.341641, -0.447214, 0.447214, 1.341641])
    add("whiten C12 sample variance, eps 1e-8 in the root", dict(advantages=[1.0, 2.0, 30.0, 4.0], mask=[1, 1, 0, 1], ddof=1, eps=1e-8), [y if m else None for y, m in zip(whiten([1.0, 2.0, 30.0, 4.0], [1, 1, 0, 1], 1, 1e-8), [1, 1, 0, 1])])
    for row, m in (([1.0, 2.0, 3.0], [1, 1, 1]), ([10.0, 20.0, 99.0], [1, 1, 0])):
        add(f"whiten C14 row {row}, population, eps 0", dict(advantages=row, mask=m, ddof=0, eps=0.0), [y if k else None for y, k in zip(whiten(row, m, 0, 0.0), m)])


# --- losses --------------------------------------------------------------------------------------

def clipped(a, log_ratio, low, high, dual=None):
    """(loss, dloss/dlogp, clipped?) of one token."""
    ratio = math.exp(max(-20.0, min(20.0, log_ratio)))
    held_ratio = max(1 - low, min(1 + high, ratio))
    free, held = -ratio * a, -held_ratio * a
    loss, grad = (free, free) if free >= held else (held, 0.0)
    if dual and a < 0 and loss > -dual * a:
        loss, grad = -dual * a, 0.0
    return dict(loss=loss, dloss_dlogp=grad, clipped=held > free)


def losses():
    L = math.log
    for a in (1.0, -1.0):
        for r, want in ((1.5, {1.0: -1.2, -1.0: 1.5}), (0.5, {1.0: -0.5, -1.0: 0.8}), (1.1, {1.0: -1.1, -1.0: 1.1}), (1.0, {1.0: -1.0, -1.0: 1.0})):
            x = add(f"clip D01 A={a} ratio={r}", dict(advantage=a, log_ratio=L(r), eps_clip=0.2, eps_clip_high=0.2), clipped(a, L(r), 0.2, 0.2))
            known(x["loss"], want[a])
    x = add("clip D02 higher upper bound", dict(advantage=1.0, log_ratio=L(1.5), eps_clip=0.2, eps_clip_high=0.28), clipped(1.0, L(1.5), 0.2, 0.28))
    known(x["loss"], -1.28)
    known(add("clip D02 swapped bounds", dict(advantage=1.0, log_ratio=L(1.5), eps_clip=0.28, eps_clip_high=0.2), clipped(1.0, L(1.5), 0.28, 0.2))["loss"], -1.2)
    add("clip D02 lower bound", dict(advantage=-0.5, log_ratio=L(0.7), eps_clip=0.2, eps_clip_high=0.28), clipped(-0.5, L(0.7), 0.2, 0.28))
    for a, r, c, want in ((-1.0, 10.0, 3.0, 3.0), (-1.0, 10.0, None, 10.0), (1.0, 10.0, 3.0, -1.2), (-1.0, 2.0, 3.0, 2.0), (-2.0, 4.0, 3.0, 6.0)):
        x = add(f"clip D03 A={a} ratio={r} c={c}", dict(advantage=a, log_ratio=L(r), eps_clip=0.2, eps_clip_high=0.2, eps_clip_c=c), clipped(a, L(r), 0.2, 0.2, c))
        known(x["loss"], want)
    for a, lr in ((-1.0, 200.0), (0.0, 200.0), (1.0, 200.0), (1.0, -200.0)):
        x = clipped(a, lr, 0.2, 0.2)
        if abs(lr) > 20:
            x["num_ratio_clamped"], x["reported_ppo_kl"] = 1, -lr
        add(f"clip D04 A={a} log-ratio={lr}", dict(advantage=a, log_ratio=lr, eps_clip=0.2, eps_clip_high=0.2), x)
    known(clipped(-1.0, 200.0, 0.2, 0.2)["loss"], 485165195.4)

    def gspo(lr, mask, a, low, high):
        s = math.exp(math.fsum(x * m for x, m in zip(lr, mask)) / sum(mask))
        free, held = -s * a, -max(1 - low, min(1 + high, s)) * a
        g = free if free >= held else 0.0
        return dict(ratio=s, loss_per_token=max(free, held), dloss_dlogp=[g * m / sum(mask) for m in mask])  # of the masked mean

    x = add("gspo D14 masked tokens stay out of the ratio", dict(log_ratio=[0.2, 0.4, 9.0], mask=[1, 1, 0], advantage=-1.0, eps_clip=0.2, eps_clip_high=0.28), gspo([0.2, 0.4, 9.0], [1, 1, 0], -1.0, 0.2, 0.28))
    known(x["ratio"], 1.349859)
    add("gspo clipped", dict(log_ratio=[0.2, 0.4, 9.0], mask=[1, 1, 0], advantage=1.0, eps_clip=0.2, eps_clip_high=0.28), gspo([0.2, 0.4, 9.0], [1, 1, 0], 1.0, 0.2, 0.28))
    for a, r in ((1.0, 3.0), (1.0, 0.5), (-0.7, 1.1)):
        w = max(0.0, min(1.28, r))
        add(f"cispo D15 A={a} ratio={r}", dict(advantage=a, log_ratio=L(r), logp=-1.25, eps_clip=1.0, eps_clip_high=0.28), dict(weight=w, loss=-w * a * -1.25, dloss_dlogp=-w * a))
    for v, old, ret in ((1.0, 0.5, 2.0), (0.6, 0.5, 2.0), (3.0, 0.5, 2.0), (0.9, 0.5, 0.0)):
        u = old + max(-0.2, min(0.2, v - old))
        free, held = (v - ret) ** 2, (u - ret) ** 2
        add(f"value-clip V={v}", dict(value=v, old_value=old, target=ret, value_clip=0.2), dict(loss=max(free, held), dloss_dvalue=2 * (v - ret) if free >= held or abs(v - old) <= 0.2 else 0.0, clipped=abs(v - old) > 0.2))

    def kl(kind, logp, ref):
        d = logp - ref
        if kind == "k1":
            return d, 1.0
        if kind == "k2":
            return d * d / 2, d
        x, g = math.exp(-d) - 1 + d, 1 - math.exp(-d)
        if kind == "low_var_kl" and not -10 <= x <= 10:
            return max(-10.0, min(10.0, x)), 0.0
        return x, g

    for kind in ("k1", "k2", "k3", "low_var_kl"):
        for logp, ref in ((-1.0, -1.5), (-1.5, -1.0), (-0.3, -0.3), (-6.0, -1.0), (-1.0, -14.0)):
            v, g = kl(kind, logp, ref)
            add(f"kl D05 {kind} logp={logp} ref={ref}", dict(kind=kind, logp=logp, ref_logp=ref), dict(value=v, dvalue_dlogp=g))
    known([kl(k, -1.0, -1.5)[0] for k in ("k1", "k2", "k3")], [0.5, 0.125, 0.106531])
    known(kl("k3", -1.5, -1.0)[0], 0.148721)
    assert kl("low_var_kl", -6.0, -1.0) == (10.0, 0.0)
    for logp, old, ref in ((-1.0, -1.2, -1.5), (-2.0, -1.5, -1.1)):
        k, g = kl("k3", logp, ref)
        rho = math.exp(logp - old)
        add(f"kl unbiased k3 logp={logp} old={old} ref={ref}", dict(kind="k3", unbiased=True, logp=logp, old_logp=old, ref_logp=ref), dict(value=rho * k, dvalue_dlogp=rho * (k + g)))

    lr = [0.0, 1.0, -1.0]
    w = add("tis D12 token level", dict(log_ratio=lr, low=0.0, high=2.0), dict(weights=[max(0.0, min(2.0, math.exp(x))) for x in lr], clipfrac=1 / 3))
    known(w["weights"], [1, 2, 0.367879])
    add("tis D12 lower bound too", dict(log_ratio=lr, low=0.5, high=2.0), dict(weights=[max(0.5, min(2.0, math.exp(x))) for x in lr], clipfrac=2 / 3))
    add("icepop outside the band is dropped", dict(log_ratio=lr, low=0.5, high=2.0), dict(weights=[math.exp(x) if 0.5 <= math.exp(x) <= 2.0 else 0.0 for x in lr]))
    add("tis D12 the weight is a constant", dict(log_ratio=1.0, high=2.0, advantage=1.5, ratio=1.0), dict(weight=2.0, dloss_dlogp=-2.0 * 1.5))
    add("tis D13 sequence product", dict(log_ratio_each=-0.003, num_tokens=1000, level="sequence"), math.exp(-3.0))
    add("tis D13 sequence geometric mean", dict(log_ratio_each=-0.003, num_tokens=1000, level="geometric"), math.exp(-0.003))
    known([math.exp(-3), math.exp(-0.003)], [0.049787, 0.997004])

    # aggregation: the weight of each trained token, and what sum(weight * loss) gives
    def weights(masks, how, length=None):
        if how == "token-mean":
            n = sum(map(sum, masks))
            return [[k / n if n else 0.0 for k in m] for m in masks]
        n = len(masks)
        return [[k / ((length or max(sum(m), 1)) * n) for k in m] for m in masks]

    def total(w, x):
        return math.fsum(a * b for r, s in zip(w, x) for a, b in zip(r, s))

    def aggregate(case, masks, values, how, want=None, **more):
        w = weights(masks, how, more.get("length"))
        x = add(f"aggregate {case}", dict(loss_mask=masks, per_token_loss=values, how=how, **more), dict(weights=w, loss=total(w, values)))
        if want is not None:
            known(x["loss"], want)

    aggregate("D08 global token mean over two ranks", [[1], [1, 1, 1]], [[4.0], [1.0, 1.0, 1.0]], "token-mean", 1.75)
    aggregate("D08 per-rollout token mean", [[1], [1, 1, 1]], [[4.0], [1.0, 1.0, 1.0]], "rollout-mean", 2.5)
    aggregate("D16 on-policy, rollout mean", [[1], [1, 1, 1]], [[-1.0], [1.0, 1.0, 1.0]], "rollout-mean", 0.0)
    aggregate("D16 on-policy, token mean", [[1], [1, 1, 1]], [[-1.0], [1.0, 1.0, 1.0]], "token-mean", 0.5)
    aggregate("constant length", [[1], [1, 0, 1]], [[4.0], [1.0, 9.0, 3.0]], "constant-length", 1.0, length=4)
    aggregate("masked tokens do not count", [[1, 0], [1, 0, 1]], [[4.0, 7.0], [1.0, 9.0, 3.0]], "rollout-mean", 3.0)
    aggregate("D10 one fully masked rollout, still counted", [[1, 1], [0, 0]], [[2.0, 4.0], [5.0, 5.0]], "rollout-mean", 1.5)
    aggregate("D10 one fully masked rollout, token mean", [[1, 1], [0, 0]], [[2.0, 4.0], [5.0, 5.0]], "token-mean", 3.0)
    aggregate("D10 nothing to train", [[0], [0, 0]], [[2.0], [5.0, 5.0]], "token-mean", 0.0)
    # two trajectories of one rollout share that rollout's denominator
    masks, values, of = [[1, 1], [1], [1, 1, 1]], [[1.0, 2.0], [6.0], [2.0, 2.0, 5.0]], [0, 0, 1]
    den = {0: 3, 1: 3}
    w = [[k / (den[o] * 2) for k in m] for m, o in zip(masks, of)]
    add("aggregate rollouts that fan out", dict(loss_mask=masks, per_token_loss=values, rollout_ids=of, how="rollout-mean"), dict(weights=w, loss=total(w, values)))


# --- log-probs -----------------------------------------------------------------------------------

def log_softmax(z, t=1.0):
    u = [x / t for x in z]
    m = max(u)
    lse = m + math.log(math.fsum(math.exp(x - m) for x in u))
    return [x - lse for x in u]


def entropy(lp):
    return -math.fsum(math.exp(x) * x for x in lp if x > -700)


def logprobs():
    rows, tokens = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0]], [0, 2, 1]
    for t in (1.0, 0.7, 0.6, 2.0):
        lps = [log_softmax(r, t) for r in rows]
        x = add(f"logprob E01 row t predicts token t+1, T={t}", dict(logits=rows, tokens=tokens, temperature=t), dict(logprobs=[lps[i][tokens[i + 1]] for i in range(2)], entropy=[entropy(lps[i]) for i in range(2)]))
        if t == 1.0:
            known(x["logprobs"], [-2.407606, -0.169846])
    add("response-rows E02", dict(prompt_length=3, response_length=2, total_length=5), [2, 3])
    add("response-rows E02 no response", dict(prompt_length=3, response_length=0, total_length=3), [])
    z = [2.0, 1.0, 0.0]
    for t, want in ((1.0, -0.407606), (0.7, -0.260118), (0.6, -0.202574)):
        lp = log_softmax(z, t)
        known(lp[0], want)
        # d logp[y] / dz = (onehot - p) / T ;  dH/dz = -p (log p + H) / T
        h = entropy(lp)
        add(f"logprob E03 T={t}", dict(logits=[z], target=0, temperature=t), dict(logprob=lp[0], entropy=h, dlogprob_dlogits=[((i == 0) - math.exp(x)) / t for i, x in enumerate(lp)], dentropy_dlogits=[-math.exp(x) * (x + h) / t for x in lp]))
    raw, temp = log_softmax(z)[0], log_softmax(z, 0.6)[0]
    add("ratio E03 tempered trainer, raw engine", dict(trainer_logprob=temp, engine_logprob=raw), math.exp(temp - raw))
    known([math.exp(temp - raw), math.exp(raw - temp)], [1.227565, 0.814620])
    for z in ([1000.0, 1000.0], [-1e4, 0.0], [88.0, 89.0, 710.0], [0.0] * 5):
        lp = log_softmax(z)
        add(f"logprob D20 {z[:3]}", dict(logits=[z], target=0, temperature=1.0), dict(logprob=lp[0], entropy=entropy(lp), lse=z[0] - lp[0]))


# --- shaping and schedules -----------------------------------------------------------------------

def shaping():
    for length, want in ((1, 0.0), (79, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (99, -0.95), (100, -1.0), (101, -1.0), (500, -1.0)):
        most, buffer = 100, 20
        p = 0.0 if length <= most - buffer else -1.0 if length > most else ((most - buffer) - length) / buffer
        known(p, want, 1e-12)
        add(f"overlong B27 length={length}", dict(length=length, max_length=most, buffer=buffer), p)


def lr_at(n, style, max_lr, min_lr, init_lr, warmup, decay, wsd_decay=None, wsd_style=None):
    """Megatron's schedule; `n` counts samples already trained, so the first update runs at n = 0."""
    if warmup > 0 and n <= warmup:
        return init_lr + (max_lr - init_lr) * n / warmup
    if style == "constant":
        return max_lr
    if n > decay:
        return min_lr
    if style == "inverse-square-root":
        return max(min_lr, max_lr * math.sqrt(max(warmup, 1)) / math.sqrt(max(n, 1)))
    if style == "WSD":
        start = decay - wsd_decay
        x = 0.0 if n <= start else (n - start) / wsd_decay
        coeff = {"linear": 1 - x, "cosine": 0.5 * (1 + math.cos(math.pi * x)), "exponential": 2 * 0.5**x - 1, "minus_sqrt": 1 - math.sqrt(x)}[wsd_style]
    else:
        x = (n - warmup) / (decay - warmup)
        coeff = 1 - x if style == "linear" else 0.5 * (1 + math.cos(math.pi * x))
    return min_lr + coeff * (max_lr - min_lr)


def schedules():
    batch = 16
    at = [batch * s for s in (0, 1, 2, 5, 9, 10, 11, 20, 30, 40, 49, 50, 51, 60, 69, 70, 80, 99, 100, 101)]
    base = dict(max_lr=1e-5, min_lr=1e-6, init_lr=0.0, decay=100 * batch)
    for style in ("constant", "linear", "cosine", "inverse-square-root"):
        for warmup in (0, 10 * batch):
            h = base | dict(style=style, warmup=warmup)
            add(f"lr {style} warmup={warmup}", h | dict(num_samples=at), [lr_at(n, **h) for n in at])
    for kind in ("linear", "cosine", "exponential", "minus_sqrt"):
        h = base | dict(style="WSD", warmup=10 * batch, wsd_decay=50 * batch, wsd_style=kind)
        add(f"lr WSD {kind}", h | dict(num_samples=at), [lr_at(n, **h) for n in at])
    h = base | dict(style="cosine", warmup=10 * batch, init_lr=5e-7)
    add("lr cosine from an initial rate", h | dict(num_samples=at), [lr_at(n, **h) for n in at])


def main():
    advantages(), losses(), logprobs(), shaping(), schedules()
    names = [e["case"] for e in ENTRIES]
    assert len(set(names)) == len(names), "cases need names of their own"
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("algo.json")
    out.write_text("[\n" + ",\n".join(json.dumps(e) for e in ENTRIES) + "\n]\n")
    print(len(ENTRIES), out.stat().st_size)


if __name__ == "__main__":
    main()
