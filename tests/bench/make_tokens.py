#!/usr/bin/env python3
"""Token batches for the benchmarks: make_tokens.py VOCAB COUNT OUT.jsonl [--shortest 64] [--longest 512] [--seed 1] (stdlib only).

Random ids; lengths spread evenly, and the last three quarters of each sequence trained, as with rollouts.
"""

import argparse
import json
import random


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("vocab", type=int)
    p.add_argument("count", type=int)
    p.add_argument("out")
    p.add_argument("--shortest", type=int, default=64)
    p.add_argument("--longest", type=int, default=512)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    r = random.Random(a.seed)
    with open(a.out, "w") as out:
        for _ in range(a.count):
            n = r.randint(a.shortest, a.longest)
            tokens = [r.randrange(3, a.vocab) for _ in range(n)]
            out.write(json.dumps(dict(tokens=tokens, loss_mask=[int(i >= n // 4) for i in range(n)])) + "\n")


if __name__ == "__main__":
    main()
