#!/usr/bin/env python3
"""The CPU backend's rates beside PyTorch's: versus_torch.py RATES [--threads 2] [--rounds 3] [--seconds 0.3] [--filter nt]
                [--clock cpu]

RATES is the compiled `examples/rates` (cargo build --release -p slime-kernels --example rates). Each round runs both
in turn, case by case order kept; the best round of each counts. Prints name, rate (GFLOP/s or GB/s) and ratio.
"""

import argparse
import json
import os
import subprocess
import time

import torch
import torch.nn.functional as F

HIDDEN, FFN, VOCAB, QUERY, KV, DIM = 576, 1536, 49152, 9, 3, 64


def case(name):
    kind, *rest = name.split()
    if kind in ("nt", "nn", "tn"):
        rows, inputs, outputs = map(int, rest)
        x, w, dy = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        dw = torch.zeros(outputs, inputs)
        y, dx = torch.empty(rows, outputs), torch.empty(rows, inputs)
        return {"nt": lambda: torch.mm(x, w.t(), out=y), "nn": lambda: torch.mm(dy, w, out=dx), "tn": lambda: dw.addmm_(dy.t(), x)}[kind]
    if kind.startswith("attention"):
        count, length = map(int, rest[0].split("x"))
        backward = kind.endswith("backward")
        q, k, v = (torch.randn(count, h, length, DIM, requires_grad=backward) for h in (QUERY, KV, KV))
        forward = lambda: F.scaled_dot_product_attention(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), is_causal=True)
        if not backward:
            return forward
        out = forward()
        dout = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    rows = int(rest[0].rstrip("M"))
    if kind.startswith("rmsnorm"):
        x, w = torch.randn(rows, HIDDEN, requires_grad=True), torch.randn(HIDDEN, requires_grad=True)
        if not kind.endswith("backward"):
            x, w = x.detach(), w.detach()
            return lambda: F.rms_norm(x, (HIDDEN,), w, 1e-5)
        y = F.rms_norm(x, (HIDDEN,), w, 1e-5)
        return lambda: torch.autograd.grad(y, (x, w), y, retain_graph=True)
    if kind.startswith("swiglu"):
        g, u = (torch.randn(rows, FFN, requires_grad=kind.endswith("backward")) for _ in range(2))
        forward = lambda: F.silu(g) * u
        if not kind.endswith("backward"):
            return forward
        y = forward()
        return lambda: torch.autograd.grad(y, (g, u), y, retain_graph=True)
    if kind == "token_stats":
        z, t = torch.randn(rows, VOCAB), torch.arange(rows)
        return lambda: torch.log_softmax(z, -1).gather(1, t[:, None])
    if kind == "logits_backward":
        z, t = torch.randn(rows, VOCAB, requires_grad=True), torch.arange(rows)
        loss = F.cross_entropy(z, t)
        return lambda: torch.autograd.grad(loss, z, retain_graph=True)
    if kind == "adamw":
        p = torch.randn(VOCAB, HIDDEN, requires_grad=True)
        p.grad = torch.zeros_like(p)
        return torch.optim.AdamW([p], fused=True).step
    return None


def torch_time(name, seconds, clock):
    run = case(name)
    if run is None:
        return None
    run()
    if clock == "cpu":
        rounds, start = 0, time.process_time()
        while rounds < 3 or time.process_time() - start < seconds:
            run()
            rounds += 1
        return (time.process_time() - start) / rounds
    best, rounds, start = float("inf"), 0, time.perf_counter()
    while rounds < 3 or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - t)
        rounds += 1
    return best


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("rates")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=0.3)
    p.add_argument("--filter", default="")
    p.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: mean CPU time, for one thread on a busy machine")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    ours, theirs, work = {}, {}, {}
    for _ in range(a.rounds):
        out = subprocess.run([a.rates, str(a.seconds), a.filter, a.clock], env=dict(os.environ, RAYON_NUM_THREADS=str(a.threads)), capture_output=True, text=True, check=True).stdout
        for line in map(json.loads, out.splitlines()):
            name = line["name"]
            ours[name] = min(ours.get(name, float("inf")), line["seconds"])
            work[name] = line["seconds"] * line["per_second"]
            best = torch_time(name, a.seconds, a.clock)
            if best is not None:
                theirs[name] = min(theirs.get(name, float("inf")), best)
    for name, seconds in ours.items():
        ratio = f"{theirs[name] / seconds:5.2f}x torch ({work[name] / theirs[name] / 1e9:6.1f})" if name in theirs else ""
        print(f"{name:28s} {seconds * 1e3:9.3f} ms {work[name] / seconds / 1e9:7.1f} G/s  {ratio}")


if __name__ == "__main__":
    main()
