#!/usr/bin/env python3
"""transformers' generate() as the peer of the embedded engine: batched decoding with sampling at temperature 1.

    peer_decode.py HF_DIR [--prompts TOKENS.jsonl] [--batch 16] [--prompt-tokens 32] [--new-tokens 128]
                   [--dtype f32|bf16] [--device cpu|cuda] [--threads N] [--repeat 2]

TOKENS has lines `{"tokens": [...]}`; each prompt is cut to --prompt-tokens (the shortest decides, so that
nothing is padded). Without it, prompts are made up. Every sequence runs to the full length. Prints one JSON
line: decode_tokens_per_s leaves the prefill and the first token out; the best of --repeat runs counts.
"""

import argparse
import json
import os
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Clock(StoppingCriteria):
    """Never stops; notes when each token was done."""

    def __init__(self, sync):
        self.sync, self.times = sync, []

    def __call__(self, input_ids, scores, **kwargs):
        self.sync()
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model")
    p.add_argument("--prompts")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--prompt-tokens", type=int, default=32)
    p.add_argument("--new-tokens", type=int, default=128)
    p.add_argument("--dtype", choices=DTYPES, default="f32")
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--repeat", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=DTYPES[a.dtype], attn_implementation="sdpa").to(a.device).eval()
    model.generation_config.eos_token_id = None  # every sequence runs to the end
    if a.prompts:
        rows = [json.loads(line)["tokens"] for line in open(a.prompts)]
        rows = [rows[i % len(rows)] for i in range(a.batch)]
        n = min(a.prompt_tokens, min(map(len, rows)))
        ids = torch.tensor([r[:n] for r in rows])
    else:
        ids = torch.randint(3, model.config.vocab_size, (a.batch, a.prompt_tokens))
    ids = ids.to(a.device)

    def sync():
        if a.device.startswith("cuda"):
            torch.cuda.synchronize()

    def once(new_tokens):
        clock = Clock(sync)
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                                 pad_token_id=0, stopping_criteria=StoppingCriteriaList([clock]))
        assert out.shape[1] == ids.shape[1] + new_tokens
        return start, clock.times

    once(8)  # warm-up
    best, first = 0.0, 0.0
    for _ in range(a.repeat):
        start, t = once(a.new_tokens)
        rate = a.batch * (len(t) - 1) / (t[-1] - t[0])
        if rate > best:
            best, first = rate, t[0] - start
    print(json.dumps(dict(
        peer="transformers", torch=torch.__version__, transformers=transformers.__version__, dtype=a.dtype, device=a.device, threads=a.threads,
        batch=a.batch, prompt_tokens=ids.shape[1], new_tokens=a.new_tokens, first_token_ms=first * 1000, decode_tokens_per_s=best,
    )))


if __name__ == "__main__":
    main()
