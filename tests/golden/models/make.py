"""Tiny random models in HF layout, with logits, losses and gradients from transformers in float64.

    python make.py [OUT_DIR [NAME...]]        (default: the folder of this file, all models)

Every directory it writes is a normal HF model directory plus two files: `golden.json` (inputs and
scalars) and `grads.safetensors` (gradients by HF name, under `sft/` and `grpo/`). `adam.json` is
five optimizer steps. Weights come from numpy's PCG64, so a rerun gives the same bytes.
`long.json` has logits far beyond the context that rope was scaled from, up to position 4095.
transformers keeps RMSNorm, RoPE tables, routers and softmax in float32 whatever the model's dtype.
For the older models those are replaced by float64 twins; for the others the name `torch.float32`
itself means float64 while they run. Both are compared with the untouched float32 model.
"""

import contextlib
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
F32, F64 = torch.float32, torch.float64
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
    "glm4-tiny": dict(
        architectures=["Glm4ForCausalLM"], model_type="glm4", vocab_size=71, hidden_size=40,
        intermediate_size=36, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        head_dim=12, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_theta=10000.0, partial_rotary_factor=0.5, hidden_act="silu", attention_bias=True,
        bos_token_id=1, eos_token_id=[2, 3], pad_token_id=0,
    ),
    "qwen3-moe-tiny": dict(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", vocab_size=73, hidden_size=32,
        intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, head_dim=12, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
        mlp_only_layers=[1], decoder_sparse_step=1, max_position_embeddings=256, rms_norm_eps=1e-6,
        tie_word_embeddings=False, rope_theta=1000000.0, hidden_act="silu", attention_bias=False,
        use_sliding_window=False, bos_token_id=1, eos_token_id=2,
    ),
    "glm4-moe-tiny": dict(
        architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", vocab_size=71, hidden_size=32,
        intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=3, first_k_dense_replace=1,
        num_attention_heads=6, num_key_value_heads=2, head_dim=12, attention_bias=True, use_qk_norm=True,
        partial_rotary_factor=0.5, rope_theta=1000000.0, n_routed_experts=6, num_experts_per_tok=2,
        n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
        num_nextn_predict_layers=0, max_position_embeddings=256, rms_norm_eps=1e-5,
        tie_word_embeddings=False, hidden_act="silu", bos_token_id=1, eos_token_id=[2, 3], pad_token_id=0,
    ),
    "deepseek-v3-tiny": dict(
        architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=67, hidden_size=32,
        intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=3, first_k_dense_replace=1,
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=16,
        qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=12, n_routed_experts=8,
        num_experts_per_tok=3, n_shared_experts=2, n_group=4, topk_group=2, norm_topk_prob=True,
        routed_scaling_factor=2.5, num_nextn_predict_layers=0, max_position_embeddings=256,
        rms_norm_eps=1e-5, tie_word_embeddings=False, hidden_act="silu", attention_bias=False,
        rope_theta=10000.0, bos_token_id=0, eos_token_id=1,
        rope_scaling={"type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                      "mscale_all_dim": 0.7, "original_max_position_embeddings": 64},
    ),
    "moonlight-tiny": dict(
        architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", vocab_size=67, hidden_size=32,
        intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2, first_k_dense_replace=1,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16,
        qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=16, n_routed_experts=5,
        num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.446, num_nextn_predict_layers=0, max_position_embeddings=256,
        rms_norm_eps=1e-5, tie_word_embeddings=True, hidden_act="silu", attention_bias=False,
        rope_theta=50000.0, rope_scaling=None, bos_token_id=0, eos_token_id=1,
    ),
    "qwen3-next-tiny": dict(
        architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", vocab_size=67, hidden_size=32,
        intermediate_size=24, moe_intermediate_size=10, shared_expert_intermediate_size=14,
        num_hidden_layers=4, full_attention_interval=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
        linear_value_head_dim=8, linear_conv_kernel_dim=4, num_experts=5, num_experts_per_tok=2,
        norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1, partial_rotary_factor=0.25,
        max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False, hidden_act="silu",
        rope_theta=10000000.0, attention_bias=False, bos_token_id=1, eos_token_id=2,
    ),
    "glm4-moe-lite-tiny": dict(
        architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", vocab_size=67, hidden_size=32,
        intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2, mlp_layer_types=["dense", "sparse"],
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=16,
        qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=18, n_routed_experts=6,
        num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=1.8, num_nextn_predict_layers=0, max_position_embeddings=256,
        rms_norm_eps=1e-5, tie_word_embeddings=False, hidden_act="silu", attention_bias=False,
        rope_theta=1000000.0, bos_token_id=0, eos_token_id=1,
    ),
    "glm5-tiny": dict(
        architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", vocab_size=67, hidden_size=32,
        intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2, first_k_dense_replace=1,
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=16,
        qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=16, n_routed_experts=6,
        num_experts_per_tok=2, n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, index_topk=4096, index_head_dim=8, index_n_heads=2, max_position_embeddings=8192,
        rms_norm_eps=1e-5, tie_word_embeddings=False, hidden_act="silu", attention_bias=False,
        rope_theta=1000000.0, bos_token_id=0, eos_token_id=1,
    ),
    "qwen3.5-tiny": dict(
        architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", vocab_size=67, hidden_size=32,
        intermediate_size=24, num_hidden_layers=2, full_attention_interval=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=6,
        linear_key_head_dim=6, linear_value_head_dim=8, linear_conv_kernel_dim=4,
        max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_act="silu",
        rope_parameters={"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
        attention_bias=False, bos_token_id=1, eos_token_id=2,
    ),
    "qwen3.5-moe-tiny": dict(
        architectures=["Qwen3_5MoeForCausalLM"], model_type="qwen3_5_moe_text", vocab_size=67, hidden_size=32,
        moe_intermediate_size=10, shared_expert_intermediate_size=14, num_experts=5, num_experts_per_tok=2,
        num_hidden_layers=2, full_attention_interval=2, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
        linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=6,
        linear_conv_kernel_dim=4, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False,
        hidden_act="silu", attention_bias=False, bos_token_id=1, eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.5},
    ),
}
MODELS["qwen3.5-published-tiny"] = dict(
    architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", tie_word_embeddings=True,
    text_config={k: v for k, v in MODELS["qwen3.5-tiny"].items() if k != "architectures"},
)
MODELS["qwen3.5-moe-published-tiny"] = dict(
    architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", tie_word_embeddings=False,
    text_config={k: v for k, v in MODELS["qwen3.5-moe-tiny"].items() if k != "architectures"},
)
SHARDED = "llama3-tiny"
TWINS = ("llama", "qwen2", "qwen3")  # model types whose float64 is made of twins
LONG = [0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 511, 1023, 1024, 2047, 2048, 3001, 4094, 4095]
# To stay small, `sft/` leaves out what adds nothing to `grpo/`, which is always complete: the same
# backward pass made both, so `sft/` only has to show that the other loss reaches the parameters.
SFT_ONLY = {
    "llama3-tiny": ("lm_head.", "model.norm.", "model.layers.0.self_attn.", "model.layers.0.input_layernorm."),
    "llama-tiny-tied": ("model.embed_tokens.", "model.norm."),
    "qwen2-tiny": ("",),
    "qwen3-tiny": ("lm_head.", "model.norm.", "model.layers.0.self_attn.", "model.layers.0.input_layernorm."),
}
SFT_REST = ("model.norm.", "model.layers.0.input_layernorm.")


# --- writing a model -----------------------------------------------------------------------------

def draw(name, shape, rng):
    """One parameter, f32. Norm weights are 0.5..1.5 and biases non-zero, so that a mistake shows."""
    if name.endswith("norm.weight"):
        x = rng.uniform(0.5, 1.5, shape)
    elif name.endswith((".bias", "_bias")):
        x = rng.normal(0.0, 0.3, shape)
    elif "embed_tokens" in name:
        x = rng.normal(0.0, 0.6, shape)
    elif "conv1d" in name:  # keys of a length that float32 can bring to 1
        x = rng.normal(0.0, 1.3, shape)
    else:
        x = rng.normal(0.0, 1.3 / math.sqrt(shape[-1]), shape)
    return torch.from_numpy(x.astype(np.float32))


IN_LARGER = ("qwen3_5", "qwen3_5_moe")  # text models inside a directory that holds a vision model too


def stored(model_type, name, x):
    """A module's tensor under the names and in the shapes that checkpoints have: mostly one expert at a time."""
    if model_type in IN_LARGER:
        return {name.replace("model.", "model.language_model.", 1): x}
    if name.endswith(".experts.gate_up_proj"):
        at, half = name.removesuffix("gate_up_proj"), x.shape[1] // 2
        return {f"{at}{e}.{n}_proj.weight": y for e, both in enumerate(x) for n, y in (("gate", both[:half]), ("up", both[half:]))}
    if name.endswith(".experts.down_proj"):
        at = name.removesuffix("down_proj")
        return {f"{at}{e}.down_proj.weight": y for e, y in enumerate(x)}
    return {name: x}


def tensors_of(model_type, model):
    """Everything a checkpoint of the model holds; tied tensors appear once."""
    out = {}
    for n, x in list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if n in model.state_dict()]:
        out |= stored(model_type, n, x)
    if model_type in IN_LARGER:
        out |= {n: torch.empty(3, 2) for n in ("model.visual.merger.norm.weight", "mtp.fc.weight")}
    return out


def write_model(folder, config, seed):
    folder.mkdir(parents=True, exist_ok=True)
    text = {k: v for k, v in config.items()} | {"dtype": "float32", "torch_dtype": "float32", "use_cache": True}
    (folder / "config.json").write_text(json.dumps(text, indent=2) + "\n")
    skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    rng = np.random.Generator(np.random.PCG64(seed))
    shapes = {n: tuple(p.shape) for n, p in tensors_of(config["model_type"], skeleton).items()}
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


@contextlib.contextmanager
def float64():
    """`torch.float32` means float64 in here, for whoever looks the name up."""
    names = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.float32 = torch.float = F64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(F64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float, default = names
        torch.set_default_dtype(default)


def pretrained(folder):
    """In float32, and sure that the checkpoint has the names and shapes that transformers expects."""
    m, info = AutoModelForCausalLM.from_pretrained(folder, dtype=F32, output_loading_info=True, experts_implementation="eager")
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return m.eval()


def load_f64(folder, plain):
    """To be called, and its result used, inside `float64()` unless the type has twins."""
    stored_as = json.loads((folder / "config.json").read_text())["model_type"]
    if stored_as in TWINS:
        m = load_twins(folder)
        m.stored_as = stored_as
        return m
    config = AutoConfig.from_pretrained(folder)
    m = AutoModelForCausalLM.from_config(config, dtype=F64, attn_implementation="sdpa", experts_implementation="eager").eval()
    m.load_state_dict(plain.state_dict())
    m.stored_as = stored_as
    wrong = [n for n, x in list(m.named_parameters()) + list(m.named_buffers()) if x.is_floating_point() and x.dtype != F64]
    assert not wrong, wrong
    return m


def load_twins(folder):
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
    out = {}
    for n, p in m.named_parameters():
        if ".indexer." in n:
            assert p.grad is None  # it chooses, and is not trained
            continue
        g = p.grad.detach().clone() if p.grad is not None else torch.zeros_like(p)  # experts nobody went to
        out |= stored(m.stored_as, n, g)
    return out


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
    plain = pretrained(folder)
    rng = np.random.Generator(np.random.PCG64(seed))
    vocab = plain.config.vocab_size
    sequences = [rng.integers(4, vocab, n).tolist() for n in (1, 7, 33)]
    with torch.no_grad():
        rough = [logits_of(plain, s) for s in sequences]
    with contextlib.nullcontext() if plain.config.model_type in TWINS else float64():
        m = load_f64(folder, plain)
        in_float64(folder, m, sequences, rough, rng)
        long(folder, m)


def in_float64(folder, m, sequences, rough, rng):
    vocab = m.config.vocab_size
    out = dict(model=folder.name, transformers=transformers.__version__, sequences=sequences, logits=[], logprobs={}, entropy={})
    with torch.no_grad():
        z = [logits_of(m, s) for s in sequences]
        for x, y in zip(z, rough):
            torch.testing.assert_close(x.to(F32), y, rtol=1e-2, atol=2e-3)  # float32's own rounding, which delta nets amplify
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
    tensors = {f"sft/{n}": g.to(F32).contiguous() for n, g in sft.items() if n.replace("language_model.", "").startswith(SFT_ONLY.get(folder.name, SFT_REST))}
    tensors |= {f"grpo/{n}": g.to(F32).contiguous() for n, g in grpo.items()}
    save_file(tensors, folder / "grads.safetensors")


def long_tokens(vocab):
    return [(31 * i * i + 17 * i + 7) % vocab for i in range(LONG[-1] + 1)]


def long(folder, m):
    """Logits of a few positions of one long sequence, rounded to f32."""
    with torch.no_grad():
        hidden = m.model(input_ids=torch.tensor([long_tokens(m.config.vocab_size)]), use_cache=False).last_hidden_state[0, LONG]
        z = m.lm_head(hidden)
    rows = [[float(np.float32(v)) for v in row] for row in z.tolist()]
    text = dict(tokens="(31 i i + 17 i + 7) mod vocab", length=LONG[-1] + 1, positions=LONG, logits=rows)
    (folder / "long.json").write_text(json.dumps(text) + "\n")


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
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        write_model(root / name, config, seed)
        golden(root / name, seed + 100)
        print(name, sum(f.stat().st_size for f in (root / name).iterdir()))
    if not sys.argv[2:]:
        adam(root / "adam.json")


if __name__ == "__main__":
    main()
