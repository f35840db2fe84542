#!/usr/bin/env python3
"""Kill a run with SIGKILL at random instants, resume it each time, and compare it with the same run left alone.

    python3 tests/chaos/kill_resume.py target/release/slime-host plugins/arith [--kills 20] [--steps 12] [--seed 7] [-- MORE ARGUMENTS OF run]

Equal means: the same rows of metrics.jsonl (step, learning rate, loss, gradient norm, reward, to the last digit), and in
run.db the same prompts, seeds and sampled tokens trained by the same steps, each exactly once. Needs nothing but Python.
"""
import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

SAME = ["rollout/step", "train/lr", "train/loss", "train/grad_norm", "rollout/reward"]


def command(args, run_dir, resume):
    line = [args.binary, "run", args.plugin, "--set", f"seed={args.seed}", "--set", f"run.dir={run_dir}",
            "--set", f"run.num_rollout={args.steps}", "--set", f"run.save_interval={args.save_interval}"]
    return line + args.extra + (["--resume"] if resume else [])


def start(args, run_dir, resume, log):
    return subprocess.Popen(command(args, run_dir, resume), stdout=log, stderr=log, start_new_session=True)


def rows(run_dir):
    with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as lines:
        found = [json.loads(line, parse_float=str) for line in lines.read().split("\n") if line.strip()]
    return [{name: row.get(name) for name in SAME} for row in found if "rollout/step" in row]


def trained(run_dir):
    """(step, prompt, rollouts) of every group that was trained, in order."""
    db = sqlite3.connect(f"file:{os.path.join(run_dir, 'run.db')}?mode=ro", uri=True)
    groups = db.execute("SELECT g.taken_by, p.source, p.row, g.id, g.attempt FROM groups g JOIN prompts p ON p.draw = g.id "
                        "WHERE g.state = 'trained' ORDER BY g.taken_by, g.id").fetchall()
    out = []
    for step, source, row, group, attempt in groups:
        rollouts = db.execute('SELECT idx, seed, data FROM rollouts WHERE group_id = ? AND attempt = ? ORDER BY idx',
                              (group, attempt)).fetchall()
        said = [(index, seed, [[s["tokens"] for s in t["segments"]] for t in json.loads(data)["trajectories"]])
                for index, seed, data in rollouts]
        out.append((step, source, row, said))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("plugin")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--save-interval", type=int, default=3)
    parser.add_argument("--random", type=int, default=1, help="seed of the instants")
    # What follows `--` is for `run`.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:end])
    args.extra = sys.argv[end + 1:]
    chance = random.Random(args.random)

    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
        alone = os.path.join(folder, "alone")
        begin = time.monotonic()
        if start(args, alone, False, log).wait() != 0:
            log.seek(0)
            sys.exit(f"the run that nobody kills failed:\n{log.read()[-3000:]}")
        length = time.monotonic() - begin
        print(f"left alone: {args.steps} steps in {length:.1f} s", flush=True)

        killed = os.path.join(folder, "killed")
        kills, attempts, resume = 0, 0, False
        while True:
            attempts += 1
            process = start(args, killed, resume, log)
            if kills < args.kills:
                # Mostly early instants, so that start-up, the first save and resuming itself are hit too.
                instant = chance.uniform(0.05, length / 3 if chance.random() < 0.7 else length)
                try:
                    code = process.wait(instant)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    kills += 1
                    resume = os.path.exists(os.path.join(killed, "run.db"))
                    print(f"kill {kills:2} after {instant:5.2f} s", flush=True)
                    continue
            else:
                code = process.wait()
            if code == 0 and kills >= args.kills:
                break
            if code == 0:  # it finished before the next kill: its end is tested, begin again with another copy
                compare(alone, killed)
                print("finished between kills, and equal; a fresh copy is killed next", flush=True)
                killed, resume = os.path.join(folder, f"killed-{attempts}"), False
                continue
            log.seek(0)
            sys.exit(f"a resumed run failed with {code}:\n{log.read()[-3000:]}")
        compare(alone, killed)
        print(f"{kills} kills: rows, prompts, seeds and tokens equal the run left alone")


def compare(alone, killed):
    for name, read in [("metrics.jsonl", rows), ("run.db", trained)]:
        a, b = read(alone), read(killed)
        if a != b:
            first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            sys.exit(f"{name} differs at entry {first} of {len(a)} and {len(b)}:\n  alone  {a[first:first + 1]}\n"
                     f"  killed {b[first:first + 1]}")


if __name__ == "__main__":
    main()
