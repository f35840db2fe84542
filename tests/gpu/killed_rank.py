#!/usr/bin/env python3
"""Ranks as processes with a GPU each, over NCCL: one is killed in the middle of a step, and the run goes on from its last checkpoint.

    killed_rank.py SLIME_HOST PLUGIN OUT [--ranks 2] [--steps 8] [--kill-at 4] [-- MORE ARGUMENTS OF run]

Runs once undisturbed, then once with rank 1 killed (SIGKILL) after step KILL-AT. Prints how long the others took to end, how long the resumed run took to its first
step, and how far each step's row is from the undisturbed run's. Needs nothing but Python.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

ROW = ["rollout/step", "train/loss", "train/grad_norm", "rollout/reward"]


def rows(folder):
    try:
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as lines:
            found = [json.loads(line) for line in lines if line.endswith("\n")]
    except FileNotFoundError:
        return []
    return [[row.get(name) for name in ROW] for row in found if "rollout/step" in row]


def start(args, folder, more):
    run = [args.slime_host, "run", args.plugin, "--set", f"run.dir={folder}", "--num-rollout", str(args.steps), "--save-interval", "2",
           "--data-parallel-size", str(args.ranks), *args.more, *more]
    log = open(folder + ".log", "a", encoding="utf-8")
    launch = [args.slime_host, "launch", "--nproc-per-node", str(args.ranks), "--log-dir", folder + "-ranks", "--", *run]
    return subprocess.Popen(launch, stdout=log, stderr=log)


def rank_of(launched, rank):
    """The process that was told it is `rank`."""
    for child in map(int, subprocess.run(["pgrep", "-P", str(launched.pid)], capture_output=True, text=True, check=True).stdout.split()):
        with open(f"/proc/{child}/environ", "rb") as told:
            if f"RANK={rank}".encode() in told.read().split(b"\0"):
                return child
    sys.exit(f"rank {rank} was not found")


def until_row(launched, folder, step, what):
    began = time.monotonic()
    while not any(row[0] >= step for row in rows(folder)):
        if launched.poll() is not None:
            sys.exit(f"{what} ended with {launched.returncode}; see {folder}.log")
        time.sleep(0.02)
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slime_host")
    parser.add_argument("plugin")
    parser.add_argument("out")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--kill-at", type=int, default=4)
    own, more = (sys.argv[1:], []) if "--" not in sys.argv else (sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
    args = parser.parse_args(own)
    args.more = more
    alone, killed = os.path.join(args.out, "alone"), os.path.join(args.out, "killed")
    os.makedirs(args.out, exist_ok=True)

    began = time.monotonic()
    launched = start(args, alone, [])
    if launched.wait() != 0:
        sys.exit(f"the undisturbed run ended with {launched.returncode}; see {alone}.log")
    print(f"undisturbed: {len(rows(alone))} steps in {time.monotonic() - began:.1f} s", flush=True)

    launched = start(args, killed, [])
    until_row(launched, killed, args.kill_at, "the run")
    os.kill(rank_of(launched, 1), signal.SIGKILL)
    began = time.monotonic()
    code = launched.wait(timeout=120)
    print(f"rank 1 killed after step {args.kill_at}: all ended {time.monotonic() - began:.2f} s later, with {code}", flush=True)
    with open(killed + "-ranks/rank_0.log", encoding="utf-8", errors="replace") as log:
        print("  rank 0 said: " + " ".join(log.read().split("\n")[-4:])[:300])

    before = len(rows(killed))
    began = time.monotonic()
    launched = start(args, killed, ["--resume"])
    while len(rows(killed)) == before or rows(killed)[-1][0] < args.kill_at:
        if launched.poll() is not None:
            sys.exit(f"the resumed run ended with {launched.returncode}; see {killed}.log")
        time.sleep(0.02)
    print(f"resumed: first step {time.monotonic() - began:.1f} s after the start", flush=True)
    if launched.wait() != 0:
        sys.exit(f"the resumed run ended with {launched.returncode}; see {killed}.log")
    last = {}
    for row in rows(killed):
        last[row[0]] = row
    want = rows(alone)
    same = sum(last.get(row[0]) == row for row in want)
    print(f"{same} of {len(want)} steps' rows equal the undisturbed run's to the last digit")
    for row in want:
        print("  ", row, last.get(row[0]) if last.get(row[0]) != row else "=")
    if set(last) != {row[0] for row in want}:
        sys.exit("steps are missing")


if __name__ == "__main__":
    main()
