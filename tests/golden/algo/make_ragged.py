"""Advantages, losses and gradients of random ragged batches, by PyTorch in float64 -> ragged.json, ragged_*.safetensors.

    python make_ragged.py [OUT_DIR]

`ragged.json` has the batches and the configurations (`variants`, keys of the trainer's TrainConfig). A batch is a list of
records in shuffled order. Numbers of tokens are multiples of 1/64 (stored as integers), so they are exact in f32 too.
Everything here works on padded tensors and autograd; nothing is shared with the implementation under test.

Expected tensors, over all batches end to end: `<variant>/advantage`, `/returns`, `/dlogp`, `/dentropy`, `/dvalue` with one
number for each sampled token of each scored rollout (rollouts in order of first occurrence, their records in order), and
`/loss`, `/value_loss` with one number a batch.
"""

import json
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
SEED = 20260211
UNIT = 64


def make_batch(rng):
    records, rollout = [], 0
    for group in range(rng.randint(2, 4)):
        constant = rng.random() < 0.25
        reward = rng.choice([0.0, 0.1, 1.0])
        for _ in range(rng.choice([1, 2, 3, 4])):
            scored = rng.random() < 0.85
            own = reward if constant else rng.choice([0.0, 0.25, 0.5, 1.0, -1.0])
            for _ in range(rng.choice([1, 1, 1, 2])):
                length = rng.choice([0, 1, 2, 3, 4, 6])
                mask = [int(rng.random() < 0.75) for _ in range(length)]
                if rng.random() < 0.1:
                    mask = [0] * length
                near = lambda base, spread: [min(-1, b + rng.randint(-spread, spread)) for b in base]
                logp = [-rng.randint(1, 3 * UNIT) for _ in range(length)]
                old = near(logp, 40)
                records.append(dict(
                    group=group, rollout=rollout, reward=own if scored else None, mask=mask, logp=logp, old=old,
                    reference=near(old, 50), engine=near(old, 30), teacher=near(old, 60),
                    value=[rng.randint(-UNIT, UNIT) for _ in range(length)],
                    value_now=[rng.randint(-UNIT, UNIT) for _ in range(length)],
                    entropy=[rng.randint(0, 2 * UNIT) for _ in range(length)],
                ))
            rollout += 1
    rng.shuffle(records)
    return records


VARIANTS = {
    "grpo": {},
    "grpo_population": dict(grpo_std="population"),
    "dr_grpo": dict(disable_grpo_std_normalization=True, loss_aggregation="constant-length", loss_constant_length=5),
    "raw_rewards": dict(disable_rewards_normalization=True),
    "rloo": dict(advantage_estimator="rloo", loss_aggregation="token-mean"),
    "gspo": dict(advantage_estimator="gspo", loss_aggregation="sequence-mean", eps_clip=0.05),
    "cispo": dict(advantage_estimator="cispo", eps_clip=0.3, eps_clip_high=0.4),
    "reinforce_plus_plus": dict(advantage_estimator="reinforce_plus_plus", normalize_advantages=True, kl_coef=0.1, gamma=0.9),
    "reinforce_plus_plus_baseline": dict(advantage_estimator="reinforce_plus_plus_baseline", normalize_advantages=True, kl_coef=0.1, kl_loss_type="k2"),
    "max_rl": dict(advantage_estimator="max_rl"),
    "ppo": dict(advantage_estimator="ppo", kl_coef=0.05, gamma=0.95, lambd=0.9, value_clip=0.3),
    "ppo_plain": dict(advantage_estimator="ppo", normalize_advantages=True),
    "opd": dict(use_opd=True, opd_kl_coef=0.7),
    "opd_whitened": dict(use_opd=True, normalize_advantages=True, advantage_estimator="rloo"),
    "kl_in_reward": dict(kl_coef=0.2),
    "kl_in_reward_rloo": dict(advantage_estimator="rloo", kl_coef=0.2),
    "kl_in_reward_raw": dict(disable_rewards_normalization=True, kl_coef=0.2),
    "clip_higher_dual": dict(eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=1.5),
    "kl_k2": dict(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k2"),
    "kl_k3": dict(use_kl_loss=True, kl_loss_coef=0.1),
    "kl_unbiased": dict(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="low_var_kl", use_unbiased_kl=True),
    "gspo_kl_unbiased": dict(advantage_estimator="gspo", loss_aggregation="sequence-mean", use_kl_loss=True, kl_loss_coef=0.1, use_unbiased_kl=True),
    "kl_unbiased_k1": dict(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k1", use_unbiased_kl=True),
    "entropy": dict(entropy_coef=0.03),
    "tis": dict(use_tis=True, tis_clip=1.3, tis_clip_low=0.5),
    "icepop": dict(use_tis=True, tis_mode="icepop", tis_clip=1.3, tis_clip_low=0.7),
    "mis_mask": dict(use_tis=True, tis_mode="mask", tis_clip=1.3, tis_clip_low=0.7, use_kl_loss=True, kl_loss_coef=0.1, entropy_coef=0.01),
    "mis_sequence": dict(use_tis=True, tis_level="sequence", tis_clip=1.5),
    "mis_geometric": dict(use_tis=True, tis_level="geometric", tis_clip=1.1, tis_clip_low=0.9),
    "mis_normalised": dict(use_tis=True, tis_batch_normalize=True),
    "mis_sequence_normalised": dict(use_tis=True, tis_level="sequence", tis_batch_normalize=True, tis_clip=3.0),
    "reject_sequence_veto": dict(use_rs=True, rs_level="sequence", rs_clip=1.6, rs_veto_threshold=0.7),
    "reject_geometric": dict(use_tis=True, use_rs=True, rs_level="geometric", rs_clip=1.2, rs_clip_low=0.9),
    "opsm": dict(use_opsm=True, opsm_delta=0.05),
    "gspo_opsm_sequence": dict(advantage_estimator="gspo", use_opsm=True, use_tis=True, tis_level="sequence", tis_mode="icepop", tis_clip_low=0.5),
    "engine_is_old": dict(use_rollout_logprobs=True),
}


def padded(records, key):
    width = max([len(r["mask"]) for r in records] + [1])
    scale = 1 if key == "mask" else UNIT
    return torch.tensor([[x / scale for x in r[key]] + [0.0] * (width - len(r["mask"])) for r in records])


def kl_of(kind, logp, reference):
    d = logp - reference
    if kind == "k1":
        return d
    if kind == "k2":
        return d**2 / 2
    k3 = torch.exp(-d) - 1 + d
    return torch.clamp(k3, -10, 10) if kind == "low_var_kl" else k3


def whiten(x, mask):
    n = mask.sum()
    if n < 2:
        return torch.zeros_like(x)
    mean = (x * mask).sum() / n
    var = ((x - mean) ** 2 * mask).sum() / (n - 1)
    return (x - mean) * torch.rsqrt(var + 1e-8)


def group_scores(rewards, estimator, config):
    """One number a rollout of one group."""
    r = torch.tensor(rewards)
    if config.get("disable_rewards_normalization") or estimator in ("reinforce_plus_plus", "ppo"):
        return r
    if len(rewards) == 1 or max(rewards) == min(rewards):
        return torch.zeros_like(r)
    if estimator == "rloo":
        return torch.stack([r[i] - torch.cat([r[:i], r[i + 1:]]).mean() for i in range(len(r))])
    if estimator == "max_rl":
        return (r - r.mean()) / r.mean() if r.mean() > 0 else torch.zeros_like(r)
    centred = r - r.mean()
    if estimator == "reinforce_plus_plus_baseline" or config.get("disable_grpo_std_normalization"):
        return centred
    return centred / (r.std(unbiased=config.get("grpo_std", "sample") == "sample") + 1e-6)


def reference(records, config):
    estimator = config.get("advantage_estimator", "grpo")
    scored = torch.tensor([float(r["reward"] is not None) for r in records])
    mask = padded(records, "mask") * scored[:, None]
    logp = padded(records, "logp").requires_grad_()
    entropy = padded(records, "entropy").requires_grad_()
    value_now = padded(records, "value_now").requires_grad_()
    ref, engine, teacher, value = (padded(records, k) for k in ("reference", "engine", "teacher", "value"))
    old = engine if config.get("use_rollout_logprobs") else padded(records, "old")
    kind = config.get("kl_loss_type") or ("k3" if config.get("use_kl_loss") else "k1")
    coef = config.get("kl_coef", 0.0)
    kl = kl_of(kind, old, ref) * mask if coef else torch.zeros_like(old)

    # rewards of rollouts, then one number a rollout
    rewards = {r["rollout"]: r["reward"] for r in records if r["reward"] is not None}
    group_of = {r["rollout"]: r["group"] for r in records}
    score = {}
    for group in sorted(set(group_of.values())):
        members = [i for i in rewards if group_of[i] == group]
        if members:
            for i, x in zip(members, group_scores([rewards[i] for i in members], estimator, config)):
                score[i] = float(x)
        if members and coef and not estimator.startswith("reinforce") and estimator != "ppo":
            # How much farther from the reference than the rest of the group, in nats: never divided by a deviation.
            of = torch.tensor([sum(float(kl[j].sum()) for j, r in enumerate(records) if r["rollout"] == i) for i in members])
            n = len(members)
            if config.get("disable_rewards_normalization"):
                centre = torch.zeros(n)
            elif estimator == "rloo":
                centre = (of.sum() - of) / (n - 1) if n > 1 else of
            else:
                centre = of.mean().expand(n)
            for i, x in zip(members, of - centre):
                score[i] -= coef * float(x)

    advantage, returns = torch.zeros_like(old), torch.zeros_like(old)
    gamma, lambd = config.get("gamma", 1.0), config.get("lambd", 1.0)
    for i, r in enumerate(records):
        at = [t for t, m in enumerate(r["mask"]) if m]
        if r["reward"] is None or not at:
            continue
        base = score[r["rollout"]]
        if estimator == "reinforce_plus_plus":
            for n, t in enumerate(at):
                own = [-coef * float(kl[i, s]) + (base if s == at[-1] else 0.0) for s in at[n:]]
                advantage[i, t] = sum(gamma**k * x for k, x in enumerate(own))
        elif estimator == "reinforce_plus_plus_baseline":
            for t in at:
                advantage[i, t] = base - coef * kl[i, t]
        elif estimator == "ppo":
            v = [float(value[i, t]) for t in at] + [0.0]
            delta = [-coef * float(kl[i, t]) + (base if t == at[-1] else 0.0) + gamma * v[n + 1] - v[n] for n, t in enumerate(at)]
            for n, t in enumerate(at):
                advantage[i, t] = sum((gamma * lambd) ** k * d for k, d in enumerate(delta[n:]))
                returns[i, t] = advantage[i, t] + v[n]
        else:
            for t in at:
                advantage[i, t] = base
    if config.get("use_opd"):
        advantage = advantage - config.get("opd_kl_coef", 1.0) * (old - teacher) * mask
    if config.get("normalize_advantages"):
        advantage = whiten(advantage, mask)

    # weights of tokens
    lengths = mask.sum(1)
    num_scored = len(rewards)
    how = config.get("loss_aggregation", "rollout-mean")
    if how == "rollout-mean":
        of_rollout = torch.tensor([sum(float(lengths[j]) for j, q in enumerate(records) if q["rollout"] == r["rollout"]) for r in records])
        weight = 1 / (of_rollout.clamp(min=1) * max(num_scored, 1))
    elif how == "token-mean":
        weight = torch.ones(len(records)) / mask.sum().clamp(min=1)
    elif how == "sequence-mean":
        weight = 1 / (lengths.clamp(min=1) * max(float(scored.sum()), 1))
    else:
        weight = torch.ones(len(records)) / (config["loss_constant_length"] * max(num_scored, 1))
    weight = weight[:, None] * mask

    def mean_of(x):
        return (x * mask).sum(1, keepdim=True) / lengths.clamp(min=1)[:, None]

    # policy loss
    log_ratio = logp - old
    if estimator == "gspo":
        log_ratio = mean_of(log_ratio).expand_as(logp)
    ratio = torch.exp(log_ratio)
    low, high = 1 - config.get("eps_clip", 0.2), 1 + config.get("eps_clip_high", config.get("eps_clip", 0.2))
    if estimator == "cispo":
        pg = -torch.clamp(ratio, low, high).detach() * advantage * logp
    else:
        pg = torch.maximum(-ratio * advantage, -torch.clamp(ratio, low, high) * advantage)
        if "eps_clip_c" in config:
            pg = torch.where(advantage < 0, torch.minimum(pg, -config["eps_clip_c"] * advantage), pg)
    if config.get("use_opsm"):
        drift = mean_of(old - logp.detach())
        pg = pg * (1 - ((advantage < 0) & (drift > config.get("opsm_delta", 1e-4))).to(pg.dtype))

    # correction between trainer and engine
    d = (padded(records, "old") - engine)
    levels = {
        "token": d,
        "sequence": (d * mask).sum(1, keepdim=True).expand_as(d),
        "geometric": mean_of(d).expand_as(d),
    }
    at_level = lambda level: torch.exp(torch.clamp(levels[level], -20, 20))
    keep, w = mask.clone(), torch.ones_like(d)
    if config.get("use_tis"):
        a, b = config.get("tis_clip_low", 0.0), config.get("tis_clip", 2.0)
        level, mode = config.get("tis_level", "token"), config.get("tis_mode", "truncate")
        w = at_level(level)
        inside = ((w >= a) & (w <= b)).to(w.dtype)
        if mode == "truncate":
            w = torch.clamp(w, a, b)
        elif mode == "icepop":
            w = w * inside
        else:
            keep = keep * inside
    if config.get("use_rs"):
        b = config.get("rs_clip", 2.0)
        a = config.get("rs_clip_low", 1 / b)
        r = at_level(config.get("rs_level", "token"))
        keep = keep * ((r >= a) & (r <= b)).to(r.dtype)
    if "rs_veto_threshold" in config:
        bad = ((torch.exp(d) < config["rs_veto_threshold"]) & (mask > 0)).any(1)
        keep = keep * (~bad)[:, None].to(keep.dtype)
    if config.get("tis_batch_normalize"):
        if config.get("tis_level", "token") == "token":
            w = w / ((w * keep).sum() / keep.sum())
        else:
            whole = keep.sum(1) > 0
            w = w / w[whole, 0].mean() if whole.any() else w
    loss_t = w * pg - config.get("entropy_coef", 0.0) * entropy
    if config.get("use_kl_loss"):
        k = kl_of(kind, logp, ref)
        if config.get("use_unbiased_kl"):
            k = torch.exp(logp - old) * k
        loss_t = loss_t + config.get("kl_loss_coef", 0.0) * k
    loss = (weight * keep * loss_t).sum()
    out = dict(advantage=advantage, loss=loss.detach())
    loss.backward()
    out["dlogp"], out["dentropy"] = logp.grad, entropy.grad
    if estimator == "ppo":
        clip = config.get("value_clip", 0.2)
        held = torch.clamp(value_now, value - clip, value + clip)
        value_loss = (weight * torch.maximum((value_now - returns) ** 2, (held - returns) ** 2)).sum()
        value_loss.backward()
        out.update(returns=returns, value_loss=value_loss.detach(), dvalue=value_now.grad)

    # sampled tokens of scored rollouts, rollouts by first occurrence
    order = {}
    for i, r in enumerate(records):
        order.setdefault(r["rollout"], []).append(i)
    flat = lambda x: [float(x[i, t]) for own in order.values() for i in own if records[i]["reward"] is not None for t, m in enumerate(records[i]["mask"]) if m]
    return {name: [float(x)] if x.dim() == 0 else flat(x) for name, x in out.items() if x is not None}


def main():
    out_dir = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    rng = random.Random(SEED)
    batches = [make_batch(rng) for _ in range(50)]
    advantages, losses = {}, {}
    by_estimator = {}
    for name, config in VARIANTS.items():
        columns = {}
        for records in batches:
            for key, values in reference(records, config).items():
                columns.setdefault(key, []).extend(values)
        for key, values in columns.items():
            into = advantages if key in ("advantage", "returns") else losses
            if key == "dentropy" and not config.get("entropy_coef"):
                continue
            if key == "advantage" and values == by_estimator.get("grpo"):
                continue
            if key == "advantage":
                by_estimator[name] = values
            into[f"{name}/{key}"] = torch.tensor(values)
    text = json.dumps(dict(unit=UNIT, torch=torch.__version__, seed=SEED, variants=VARIANTS, batches=batches), separators=(",", ":"))
    (out_dir / "ragged.json").write_text(text.replace("},{\"group\"", "},\n{\"group\"") + "\n")
    save_file(advantages, out_dir / "ragged_advantages.safetensors")
    save_file(losses, out_dir / "ragged_losses.safetensors")
    tokens = len(by_estimator["grpo"])
    print(f"{len(VARIANTS)} variants, {len(batches)} batches, {tokens} tokens")


main()
