"""Tiny random models in HF layout, with logits, losses and gradients from transformers in float64.

    python make.py [OUT_DIR]        (default: the folder of this file)

Every directory it writes is a normal HF model directory plus two files: `golden.json` (inputs and
scalars) and `grads.safetensors` (gradients by HF name, under `sft/` and `grpo/`). `adam.json` is
five optimizer steps. Weights come from numpy's PCG64, so a rerun gives the same bytes.
transformers keeps RMSNorm, RoPE tables and softmax in float32 whatever the model's dtype; those
are replaced below by float64 twins, and the result is compared with the untouched float32 model.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)
F64 = torch.float64
TEMPERATURES = (1.0, 0.7)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# `rope_theta` / `rope_scaling` at the top level is how published checkpoints say it; qwen3-tiny
# says `rope_parameters`, as transformers 5 writes it. A loader has to read both.
MODELS = {
    "llama3-tiny": dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=263, hidden_size=64,
        intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_theta=500000.0, rope_scaling=LLAMA3_ROPE, hidden_act="silu", attention_bias=False,
        mlp_bias=False, bos_token_id=1, eos_token_id=[2, 3],
    ),
    "llama-tiny-tied": dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=97, hidden_size=32,
        intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_theta=10000.0, rope_scaling=None, hidden_act="silu", attention_bias=False,
        mlp_bias=False, bos_token_id=1, eos_token_id=2,
    ),
    "qwen2-tiny": dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", vocab_size=263, hidden_size=32,
        intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_theta=1000000.0, hidden_act="silu", use_sliding_window=False, bos_token_id=1,
        eos_token_id=2,
    ),
    "qwen3-tiny": dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=89, hidden_size=64,
        intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, hidden_act="silu",
        attention_bias=False, use_sliding_window=False, bos_token_id=1, eos_token_id=2,
    ),
}
SHARDED = "llama3-tiny"
# To stay small, `sft/` leaves out what adds nothing to `grpo/`, which is always complete: the same
# backward pass made both, so `sft/` only has to show that the other loss reaches the parameters.
SFT_ONLY = {
    "llama3-tiny": ("lm_head.", "model.norm.", "model.layers.0.self_attn.", "model.layers.0.input_layernorm."),
    "llama-tiny-tied": ("model.embed_tokens.", "model.norm."),
    "qwen2-tiny": ("",),
    "qwen3-tiny": ("lm_head.", "model.norm.", "model.layers.0.self_attn.", "model.layers.0.input_layernorm."),
}


# --- writing a model -----------------------------------------------------------------------------

def draw(name, shape, rng):
    """One parameter, f32. Norm weights are 0.5..1.5 and biases non-zero, so that a mistake shows."""
    if name.endswith("norm.weight"):
        x = rng.uniform(0.5, 1.5, shape)
    elif name.endswith(".bias"):
        x = rng.normal(0.0, 0.3, shape)
    elif "embed_tokens" in name:
        x = rng.normal(0.0, 0.6, shape)
    else:
        x = rng.normal(0.0, 1.3 / math.sqrt(shape[-1]), shape)
    return torch.from_numpy(x.astype(np.float32))


def write_model(folder, config, seed):
    folder.mkdir(parents=True, exist_ok=True)
    text = {k: v for k, v in config.items()} | {"dtype": "float32", "torch_dtype": "float32", "use_cache": True}
    (folder / "config.json").write_text(json.dumps(text, indent=2) + "\n")
    skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    rng = np.random.Generator(np.random.PCG64(seed))
    shapes = {n: tuple(p.shape) for n, p in skeleton.named_parameters()}  # tied tensors appear once
    weights = {n: draw(n, shapes[n], rng) for n in sorted(shapes)}
    if folder.name != SHARDED:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    parts = [{}, {}]
    for n, w in weights.items():
        parts[1 if n.startswith(("model.layers.1.", "model.norm", "lm_head")) else 0][n] = w
    where = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        where |= {n: file for n in part}
    total = sum(w.numel() * 4 for w in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


# --- transformers in real float64 ----------------------------------------------------------------

def inv_freq(c):
    """Inverse frequencies in float64, from the definition (plain and llama3)."""
    p = c.rope_parameters
    d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    f = [p["rope_theta"] ** (-2 * i / d) for i in range(d // 2)]
    if p["rope_type"] == "default":
        return torch.tensor(f, dtype=F64)
    ctx, lo, hi, by = (p[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factor"))
    out = []
    for x in f:
        wave = 2 * math.pi / x
        if wave < ctx / hi:
            out.append(x)
        elif wave > ctx / lo:
            out.append(x / by)
        else:
            s = (ctx / wave - lo) / (hi - lo)
            out.append((1 - s) * x / by + s * x)
    return torch.tensor(out, dtype=F64)


def load_f64(folder):
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=F64, attn_implementation="sdpa").eval()
    freq = inv_freq(m.config)
    torch.testing.assert_close(freq.float(), m.model.rotary_emb.inv_freq.float(), rtol=2e-6, atol=0)

    def rope(x, position_ids):
        a = position_ids[..., None].to(F64) * freq
        a = torch.cat([a, a], -1)
        return a.cos(), a.sin()

    m.model.rotary_emb.forward = rope
    for mod in m.modules():
        if type(mod).__name__.endswith("RMSNorm"):
            mod.forward = lambda x, mod=mod: x * (x.pow(2).mean(-1, keepdim=True) + mod.variance_epsilon).rsqrt() * mod.weight
    return m


def logits_of(m, tokens):
    return m(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def logp_entropy(z, tokens, temperature):
    """Of tokens 1.. given what is before them; both of length len(tokens) - 1."""
    lp = torch.log_softmax(z[:-1] / temperature, -1)
    next_ids = torch.tensor(tokens[1:], dtype=torch.long)
    return lp.gather(1, next_ids[:, None])[:, 0], -(lp.exp() * lp).sum(-1)


def grads_of(m, loss):
    m.zero_grad(set_to_none=True)
    loss.backward()
    return {n: p.grad.detach().clone() for n, p in m.named_parameters()}


# --- the two losses ------------------------------------------------------------------------------

GRPO = dict(temperature=0.7, eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=3.0, kl_loss_coef=0.05, kl_loss_type="k3", entropy_coef=0.01)


def grpo_inputs(m, rng, vocab):
    """Four rollouts. Log-ratios are chosen so that every branch of the loss is taken, none near an edge."""
    shape = [(9, 3, 1.3), (14, 5, -0.9), (21, 6, -1.7), (33, 8, 0.6)]  # length, prompt length, advantage
    ratios = [1.0, 1.11, 1.6, 0.87, 0.55, 4.2, 1.9, 0.93, 1.2]
    out, at = [], 0
    for length, prompt, advantage in shape:
        tokens = rng.integers(4, vocab, length).tolist()
        mask = [int(t >= prompt) for t in range(1, length)]
        if length == 33:
            mask[14:19] = [0] * 5  # text from the environment: in the sequence, not in the loss
        with torch.no_grad():
            lp, _ = logp_entropy(logits_of(m, tokens), tokens, GRPO["temperature"])
        old = []
        for x in lp.tolist():
            old.append(x - math.log(ratios[at % len(ratios)]) - 0.01 * rng.uniform(-1, 1))
            at += 1
        ref = (lp + torch.from_numpy(rng.normal(0, 0.4, len(lp)))).tolist()
        out.append(dict(tokens=tokens, prompt_length=prompt, loss_mask=mask, advantage=advantage, old_logprobs=old, ref_logprobs=ref))
    return out


def grpo_loss(m, rollouts, dtype=F64):
    """mean over rollouts of the token mean of  pg - entropy_coef * H + kl_loss_coef * k3."""
    h = GRPO
    sums = dict(pg_loss=0.0, kl_loss=0.0, entropy=0.0, ppo_kl=0.0, clipfrac=0.0, dual_clipfrac=0.0)
    loss, per_token = 0.0, []
    for r in rollouts:
        lp, ent = logp_entropy(logits_of(m, r["tokens"]).to(dtype), r["tokens"], h["temperature"])
        old, ref, mask = (torch.tensor(r[k], dtype=dtype) for k in ("old_logprobs", "ref_logprobs", "loss_mask"))
        a = r["advantage"]
        ratio = (lp - old).exp()
        free, held = -ratio * a, -ratio.clamp(1 - h["eps_clip"], 1 + h["eps_clip_high"]) * a
        pg = torch.maximum(free, held)
        dual = (pg > -h["eps_clip_c"] * a) if a < 0 else torch.zeros_like(pg, dtype=torch.bool)
        if a < 0:
            pg = torch.minimum(pg, torch.full_like(pg, -h["eps_clip_c"] * a))
        d = lp - ref
        kl = (-d).exp() - 1 + d
        w = mask / mask.sum() / len(rollouts)
        loss = loss + (w * (pg - h["entropy_coef"] * ent + h["kl_loss_coef"] * kl)).sum()
        parts = dict(pg_loss=pg, kl_loss=kl, entropy=ent, ppo_kl=old - lp, clipfrac=(held > free).to(dtype), dual_clipfrac=dual.to(dtype))
        for k, v in parts.items():
            sums[k] += (w * v).sum().item()
        per_token.append(dict(logprobs=lp.tolist(), entropy=ent.tolist(), weights=w.tolist(), pg_loss=pg.tolist(), kl=kl.tolist()))
    return loss, sums, per_token


def norm_of(grads):
    return math.sqrt(sum(g.double().pow(2).sum().item() for g in grads.values()))


def golden(folder, seed):
    m = load_f64(folder)
    rng = np.random.Generator(np.random.PCG64(seed))
    vocab = m.config.vocab_size
    sequences = [rng.integers(4, vocab, n).tolist() for n in (1, 7, 33)]
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    out = dict(model=folder.name, transformers=transformers.__version__, sequences=sequences, logits=[], logprobs={}, entropy={})
    with torch.no_grad():
        z = [logits_of(m, s) for s in sequences]
        for s, x in zip(sequences, z):
            torch.testing.assert_close(x.float(), logits_of(plain, s), rtol=1e-4, atol=3e-5)
        for s, p in ((0, 0), (1, 6), (2, 0), (2, 17), (2, 32)):
            out["logits"].append(dict(sequence=s, position=p, values=z[s][p].tolist()))
        for t in TEMPERATURES:
            both = [logp_entropy(x, s, t) for x, s in zip(z, sequences)]
            out["logprobs"][str(t)] = [b[0].tolist() for b in both]
            out["entropy"][str(t)] = [b[1].tolist() for b in both]

    # SFT: the mean over every predicted token of the three sequences (the first predicts none).
    total = sum(len(s) - 1 for s in sequences)
    loss = sum(-logp_entropy(logits_of(m, s), s, 1.0)[0].sum() for s in sequences) / total
    sft = grads_of(m, loss)
    out["sft"] = dict(loss=loss.item(), num_tokens=total, weight_per_token=1 / total, grad_norm=norm_of(sft))

    rollouts = grpo_inputs(m, rng, vocab)
    loss, parts, per_token = grpo_loss(m, rollouts)
    grpo = grads_of(m, loss)
    assert parts["clipfrac"] > 0 and parts["dual_clipfrac"] > 0
    out["grpo"] = dict(config=GRPO, rollouts=rollouts, expected=dict(loss=loss.item(), grad_norm=norm_of(grpo), **parts, per_token=per_token))
    (folder / "golden.json").write_text(json.dumps(out) + "\n")
    tensors = {f"sft/{n}": g.float() for n, g in sft.items() if n.startswith(SFT_ONLY[folder.name])}
    tensors |= {f"grpo/{n}": g.float() for n, g in grpo.items()}
    save_file(tensors, folder / "grads.safetensors")


# --- optimizer -----------------------------------------------------------------------------------

def lr_at(step, peak, floor, warmup, total):
    """Megatron's: `step` counts finished updates, so the first update of a warm-up runs at 0."""
    if step <= warmup:
        return peak * step / warmup
    if step > total:
        return floor
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def adam(file):
    rng = np.random.Generator(np.random.PCG64(5))
    w = torch.nn.Parameter(torch.from_numpy(rng.normal(0, 1, (3, 4))))
    b = torch.nn.Parameter(torch.from_numpy(rng.normal(0, 1, 5)))
    h = dict(lr=1e-2, min_lr=1e-3, warmup_steps=2, decay_steps=5, beta1=0.9, beta2=0.98, eps=1e-8, weight_decay=0.1, clip_grad=1.0)
    opt = torch.optim.AdamW([dict(params=[w], weight_decay=h["weight_decay"]), dict(params=[b], weight_decay=0.0)], lr=0.0, betas=(h["beta1"], h["beta2"]), eps=h["eps"])
    out = dict(config=h, initial=dict(w=w.tolist(), b=b.tolist()), steps=[])
    for step, scale in enumerate((0.2, 2.0, 0.05, 1.0, 0.4)):  # below and above the clip
        gw, gb = (torch.from_numpy(rng.normal(0, scale, tuple(p.shape))) for p in (w, b))
        norm = math.sqrt(gw.pow(2).sum().item() + gb.pow(2).sum().item())
        coeff = min(1.0, h["clip_grad"] / (norm + 1e-6))
        w.grad, b.grad = gw * coeff, gb * coeff
        lr = lr_at(step, h["lr"], h["min_lr"], h["warmup_steps"], h["decay_steps"])
        for g in opt.param_groups:
            g["lr"] = lr
        opt.step()
        state = {n: {k: opt.state[p][s].tolist() for k, s in (("m", "exp_avg"), ("v", "exp_avg_sq"))} for n, p in (("w", w), ("b", b))}
        out["steps"].append(dict(lr=lr, grad=dict(w=gw.tolist(), b=gb.tolist()), grad_norm=norm, clip_coeff=coeff, after=dict(w=w.tolist(), b=b.tolist()), state=state))
    assert {s["clip_coeff"] < 1 for s in out["steps"]} == {True, False}
    file.write_text(json.dumps(out, indent=1) + "\n")


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    root.mkdir(parents=True, exist_ok=True)
    for seed, (name, config) in enumerate(MODELS.items(), start=11):
        write_model(root / name, config, seed)
        golden(root / name, seed + 100)
        print(name, sum(f.stat().st_size for f in (root / name).iterdir()))
    adam(root / "adam.json")


if __name__ == "__main__":
    main()
