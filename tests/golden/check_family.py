"""A model family against transformers with a configuration that nobody has seen.

    python check_family.py FAMILY [--seed N] [--rounds N] [--keep DIR]      (FAMILY: llama, qwen2, ..., or all)

Draws a small random configuration (odd head counts, one key head or as many as query heads, heads of any even width,
tied and untied, with and without biases, any experts), writes random weights, and lets transformers compute logits,
losses and gradients in float64 (models/make.py). Then the Rust tests run on that directory: logits, log-probs and every
parameter's gradient in f32 and f64, finite differences, packing, the paged cache, positions up to 4095, export. At the
end transformers loads what was exported and must give the logits it gave before. Needs cargo and requirements.txt.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent / "models"))
import make  # noqa: E402

TESTS = (
    ["-p", "slime-trainer", "--test", "parity", "--test", "gradients", "--test", "packing", "--",
     "transformers", "pytorch", "slope_of_the_loss", "same_bits", "the_bits_it_has_alone", "served_through_the_cache"],
    ["-p", "slime-model", "--test", "families", "--", "4095", "byte_for_byte_when"],
)


class Draw:
    def __init__(self, seed):
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def of(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def flag(self):
        return bool(self.rng.integers(2))

    def even(self, low, high):
        return 2 * int(self.rng.integers(low // 2, high // 2 + 1))

    def count(self, low, high):
        return int(self.rng.integers(low, high + 1))


def common(d, model_type, architecture):
    return dict(
        architectures=[architecture], model_type=model_type, vocab_size=d.count(40, 90), hidden_size=d.count(17, 48),
        intermediate_size=d.count(11, 50), num_hidden_layers=2, max_position_embeddings=256, hidden_act="silu",
        rms_norm_eps=d.of(1e-5, 1e-6), tie_word_embeddings=d.flag(), rope_theta=d.of(1e4, 5e5, 1e6),
        bos_token_id=1, eos_token_id=2,
    )


def heads(d):
    kv = d.of(1, 1, 2, 3)
    return dict(num_attention_heads=kv * d.of(1, 2, 3, 5), num_key_value_heads=kv, head_dim=d.even(4, 18))


def half_rotary(d):
    """A part of the head's width that is a whole number of pairs."""
    dim = 4 * d.count(1, 4)
    return dict(head_dim=dim, partial_rotary_factor=d.of(0.5, 1.0, 2 / dim))


def scaling(d):
    original = d.of(16, 64, 128)
    return d.of(
        None,
        dict(rope_type="llama3", factor=d.of(4.0, 8.0, 32.0), low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=original),
        dict(rope_type="yarn", factor=d.of(2.0, 4.0, 40.0), original_max_position_embeddings=original),
    )


def experts(d):
    n = d.count(3, 9)
    return dict(moe_intermediate_size=d.count(5, 14)), n, d.count(1, min(4, n))


def sigmoid_moe(d):
    width, n, k = experts(d)
    groups = d.of(1, 1, 2, 3)
    if groups > 1:
        n = groups * d.count(2, 4)
    kept = d.count(1, groups)
    return width | dict(
        n_routed_experts=n, num_experts_per_tok=min(k, kept * n // groups), n_shared_experts=d.of(1, 2), n_group=groups,
        topk_group=kept, norm_topk_prob=d.flag(), routed_scaling_factor=d.of(1.0, 2.5), first_k_dense_replace=d.of(0, 1),
        num_hidden_layers=3, num_nextn_predict_layers=0, pad_token_id=0,
    )


def llama(d):
    c = common(d, "llama", "LlamaForCausalLM") | heads(d) | dict(rope_scaling=scaling(d), attention_bias=False, mlp_bias=False)
    c["hidden_size"] = c["num_attention_heads"] * d.count(3, 9)  # transformers insists, though heads have a width of their own
    return c


def qwen2(d):
    c = common(d, "qwen2", "Qwen2ForCausalLM") | heads(d) | dict(use_sliding_window=False)
    c["hidden_size"] = c["num_attention_heads"] * c.pop("head_dim")  # Qwen2's heads divide its width
    return c


def qwen3(d):
    return common(d, "qwen3", "Qwen3ForCausalLM") | heads(d) | dict(attention_bias=False, use_sliding_window=False, rope_scaling=scaling(d))


def glm4(d):
    return common(d, "glm4", "Glm4ForCausalLM") | heads(d) | half_rotary(d) | dict(attention_bias=d.flag(), pad_token_id=0)


def qwen3_moe(d):
    width, n, k = experts(d)
    return common(d, "qwen3_moe", "Qwen3MoeForCausalLM") | heads(d) | width | dict(
        num_experts=n, num_experts_per_tok=k, norm_topk_prob=d.flag(), mlp_only_layers=d.of([], [1]),
        decoder_sparse_step=d.of(1, 1, 2), num_hidden_layers=3, attention_bias=False, use_sliding_window=False,
    )


def glm4_moe(d):
    return common(d, "glm4_moe", "Glm4MoeForCausalLM") | heads(d) | half_rotary(d) | sigmoid_moe(d) | dict(
        attention_bias=d.flag(), use_qk_norm=d.flag())


def deepseek_v3(d):
    n = d.of(1, 3, 4, 5)
    yarn = dict(type="yarn", factor=d.of(4.0, 40.0), beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=d.of(1.0, 0.7),
                original_max_position_embeddings=d.of(16, 64))
    return common(d, "deepseek_v3", "DeepseekV3ForCausalLM") | sigmoid_moe(d) | dict(
        num_attention_heads=n, num_key_value_heads=n, q_lora_rank=d.of(None, d.count(7, 20)), kv_lora_rank=d.count(8, 24),
        qk_nope_head_dim=d.count(4, 14), qk_rope_head_dim=d.even(2, 10), v_head_dim=d.count(4, 20), attention_bias=False,
        rope_interleave=d.flag(), rope_scaling=d.of(None, yarn),
    )


def qwen3_next(d):
    width, n, k = experts(d)
    keys = d.of(1, 2, 3)
    layers = d.of(["linear_attention", "full_attention"], ["full_attention", "linear_attention", "linear_attention"])
    return common(d, "qwen3_next", "Qwen3NextForCausalLM") | heads(d) | half_rotary(d) | width | dict(
        num_experts=n, num_experts_per_tok=k, norm_topk_prob=d.flag(), mlp_only_layers=d.of([], [1]), decoder_sparse_step=1,
        shared_expert_intermediate_size=d.count(5, 14), layer_types=layers, num_hidden_layers=len(layers),
        linear_num_key_heads=keys, linear_num_value_heads=keys * d.of(1, 2, 3), linear_key_head_dim=d.count(3, 12),
        linear_value_head_dim=d.count(3, 12), linear_conv_kernel_dim=d.of(2, 4), attention_bias=False,
    )


def hybrid(d, model_type, architecture):
    keys = d.of(1, 2, 3)
    layers = d.of(["linear_attention", "full_attention"], ["full_attention", "linear_attention", "linear_attention"])
    part = half_rotary(d)
    rope = dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=part.pop("partial_rotary_factor"))
    c = common(d, model_type, architecture) | heads(d) | part | dict(
        layer_types=layers, num_hidden_layers=len(layers), rope_parameters=rope,
        linear_num_key_heads=keys, linear_num_value_heads=keys * d.of(1, 2, 3), linear_key_head_dim=d.count(3, 12),
        linear_value_head_dim=d.count(3, 12), linear_conv_kernel_dim=d.of(2, 4), attention_bias=False,
    )
    del c["rope_theta"]
    return c


def qwen3_5(d):
    return hybrid(d, "qwen3_5_text", "Qwen3_5ForCausalLM")


def qwen3_5_moe(d):
    width, n, k = experts(d)
    c = hybrid(d, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM") | width | dict(
        num_experts=n, num_experts_per_tok=k, shared_expert_intermediate_size=d.count(5, 14))
    del c["intermediate_size"]
    return c


def glm4_moe_lite(d):
    n, moe = d.of(1, 3, 4, 5), sigmoid_moe(d)
    del moe["first_k_dense_replace"]
    return common(d, "glm4_moe_lite", "Glm4MoeLiteForCausalLM") | moe | dict(
        num_attention_heads=n, num_key_value_heads=n, q_lora_rank=d.count(7, 20), kv_lora_rank=d.count(8, 24),
        qk_nope_head_dim=d.count(4, 14), qk_rope_head_dim=d.even(2, 10), v_head_dim=d.count(4, 20), attention_bias=False,
        rope_interleave=d.flag(), mlp_layer_types=[d.of("dense", "sparse") for _ in range(2)] + ["sparse"],
    )


def glm_moe_dsa(d):
    n = d.of(1, 3, 4, 5)
    rope = d.even(2, 10)
    return common(d, "glm_moe_dsa", "GlmMoeDsaForCausalLM") | sigmoid_moe(d) | dict(
        num_attention_heads=n, num_key_value_heads=n, q_lora_rank=d.count(7, 20), kv_lora_rank=d.count(8, 24),
        qk_nope_head_dim=d.count(4, 14), qk_rope_head_dim=rope, v_head_dim=d.count(4, 20), attention_bias=False,
        index_topk=4096, index_head_dim=rope + d.count(1, 5), index_n_heads=d.count(1, 3), max_position_embeddings=8192,
    )


FAMILIES = dict(llama=llama, qwen2=qwen2, qwen3=qwen3, glm4=glm4, qwen3_moe=qwen3_moe, glm4_moe=glm4_moe, deepseek_v3=deepseek_v3,
                qwen3_next=qwen3_next, qwen3_5_text=qwen3_5, qwen3_5_moe_text=qwen3_5_moe, glm4_moe_lite=glm4_moe_lite,
                glm_moe_dsa=glm_moe_dsa)


def float32_gap(folder):
    """How far rounding alone takes transformers' own logits, over every position up to 4095: it differs tenfold from one
    position to the next, so the few that long.json keeps say little. Delta nets bring short vectors to unit length, and
    attention with YaRN's scale can be steep."""
    model = make.pretrained(folder)
    tokens = make.long_tokens(model.config.vocab_size)
    with torch.no_grad():
        rounded = make.logits_of(model, tokens)
        with make.float64():
            exact = make.logits_of(make.load_f64(folder, model), tokens)
    return (rounded.double() - exact).abs().max().item()


def check(family, seed, folder):
    config = FAMILIES[family](Draw([seed, *family.encode()]))
    shown = {k: v for k, v in config.items() if k not in ("architectures", "hidden_act", "bos_token_id", "eos_token_id")}
    print(f"{family}, seed {seed}: {shown}", flush=True)
    make.TWINS = ()  # they know no YaRN
    make.write_model(folder, config, seed)
    make.golden(folder, seed + 1)
    out = folder.parent / "exported"
    gap = float32_gap(folder)
    print(f"{family}, seed {seed}: transformers' own float32 differs from its float64 by up to {gap:.1e} of a logit", flush=True)
    env = os.environ | dict(SLIME_FAMILY_DIR=str(folder), SLIME_FAMILY_OUT=str(out), SLIME_FAMILY_FLOAT32=str(gap))
    for arguments in TESTS:
        run = subprocess.run(["cargo", "test", "-q", *arguments], cwd=ROOT, env=env, capture_output=True, text=True)
        if run.returncode:
            print(run.stdout[-4000:], run.stderr[-2000:])
            return False
    tokens = torch.tensor([make.long_tokens(config["vocab_size"])[:64]])
    with torch.no_grad():
        before, after = (make.pretrained(f)(input_ids=tokens, use_cache=False).logits for f in (folder, out))
    same = torch.equal(before, after)
    print(f"{family}, seed {seed}: " + ("agrees" if same else "the exported model gives other logits"), flush=True)
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=[*FAMILIES, "all"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="so many seeds, from --seed on")
    parser.add_argument("--keep", type=Path, help="leave the models here")
    a = parser.parse_args()
    bad = []
    for family in FAMILIES if a.family == "all" else [a.family]:
        for seed in range(a.seed, a.seed + a.rounds):
            with tempfile.TemporaryDirectory() as scratch:
                folder = (a.keep or Path(scratch)) / f"{family}-{seed}" / "model"
                if not check(family, seed, folder):
                    bad.append(f"{family} {seed}")
    if bad:
        sys.exit("do not agree: " + ", ".join(bad))


if __name__ == "__main__":
    main()
