#!/usr/bin/env python3
"""PyTorch + transformers as the peer of the trainer: forward, backward, clip, AdamW on recorded tokens.

    peer_train.py HF_DIR TOKENS.jsonl [--batch 16] [--max-tokens 2048] [--steps 4] [--warmup 1]
                  [--dtype f32|bf16] [--device cpu|cuda] [--threads N] [--lr 1e-5]

A line of TOKENS is `{"tokens": [...], "loss_mask": [...]}`; the mask is as long as the tokens, or one
shorter (then it begins at the second token). A step trains the next --batch lines (from the start again
when they run out), sorted by length and cut into micro-batches of at most --max-tokens, padding included.
Loss: mean NLL over the step's masked tokens. Prints one JSON line; tokens_per_s counts real tokens only.

Kept fast on purpose: causal SDPA without a mask tensor (padding is on the right, so nothing real sees it),
the LM head on trained positions only, gradients set to None, fused AdamW, all cores.
"""

import argparse
import json
import os
import time

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoModelForCausalLM

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def read(file):
    rows = []
    for line in open(file):
        r = json.loads(line)
        mask = r["loss_mask"]
        rows.append((r["tokens"], mask[1:] if len(mask) == len(r["tokens"]) else mask))
        assert len(rows[-1][1]) == len(r["tokens"]) - 1, "loss_mask and tokens disagree in length"
    return rows


def micro_batches(rows, budget):
    """Right-padded [sequences, longest] pieces of at most `budget` tokens, longest first."""
    out, piece = [], []
    for row in sorted(rows, key=lambda r: -len(r[0])):
        longest = len(piece[0][0]) if piece else len(row[0])
        if piece and longest * (len(piece) + 1) > budget:
            out.append(piece)
            piece = []
        piece.append(row)
    return out + [piece]


def tensors(piece, device):
    longest = len(piece[0][0])
    ids = torch.zeros(len(piece), longest, dtype=torch.long)
    mask = torch.zeros(len(piece), longest - 1, dtype=torch.bool)
    for i, (tokens, m) in enumerate(piece):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        mask[i, : len(m)] = torch.tensor(m, dtype=torch.bool)
    return ids.to(device), mask.to(device)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model")
    p.add_argument("tokens")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--max-tokens", type=int, default=2048)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--warmup", type=int, default=1)
    p.add_argument("--dtype", choices=DTYPES, default="f32")
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--lr", type=float, default=1e-5)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=DTYPES[a.dtype], attn_implementation="sdpa").to(a.device).train()
    model.config.use_cache = False
    params = list(model.parameters())
    groups = [dict(params=[x for x in params if x.dim() > 1], weight_decay=0.1), dict(params=[x for x in params if x.dim() == 1], weight_decay=0.0)]
    opt = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.98), eps=1e-8, fused=True)
    rows = read(a.tokens)

    def sync():
        if a.device.startswith("cuda"):
            torch.cuda.synchronize()

    losses, seconds, real, padded, at = [], 0.0, 0, 0, 0
    for step in range(a.warmup + a.steps):
        batch = [rows[(at + i) % len(rows)] for i in range(a.batch)]
        at += a.batch
        pieces = micro_batches(batch, a.max_tokens)
        trained = sum(sum(m) for _, m in batch)
        sync()
        start = time.perf_counter()
        total = torch.zeros((), device=a.device)
        for piece in pieces:
            ids, mask = tensors(piece, a.device)
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][mask]
            loss = F.cross_entropy(model.lm_head(hidden).float(), ids[:, 1:][mask], reduction="sum") / trained
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(total.item())
        sync()
        if step >= a.warmup:
            seconds += time.perf_counter() - start
            real += sum(len(t) for t, _ in batch)
            padded += sum(len(x) * len(x[0][0]) for x in pieces)
    print(json.dumps(dict(
        peer="transformers", torch=torch.__version__, transformers=transformers.__version__, dtype=a.dtype, device=a.device, threads=a.threads,
        num_params=sum(x.numel() for x in params), steps=a.steps, tokens=real, padding_frac=1 - real / padded, seconds=seconds,
        tokens_per_s=real / seconds, losses=losses, last_grad_norm=norm.item(),
    )))


if __name__ == "__main__":
    main()
