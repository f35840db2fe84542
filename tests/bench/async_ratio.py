"""Time to one reward, of two runs, and the lags of the second's tokens (stdlib only).

    python async_ratio.py SYNC_DIR ASYNC_DIR REWARD

The reward is a mean of five steps; the time adds up perf/step_time until it is reached.
"""

import json
import sys
from pathlib import Path

WIDTH = 5


def rows(directory):
    return [json.loads(line) for line in Path(directory, "metrics.jsonl").read_text().splitlines()]


def reached(rows, reward):
    clock, rewards = 0.0, []
    for row in rows:
        clock += row["perf/step_time"]
        rewards.append(row["rollout/reward"])
        if len(rewards) >= WIDTH and sum(rewards[-WIDTH:]) / WIDTH >= reward:
            return clock, row["rollout/step"] + 1
    return None


def main():
    reward = float(sys.argv[3])
    runs = {"sync": rows(sys.argv[1]), "async": rows(sys.argv[2])}
    times = {}
    for name, of in runs.items():
        last = sum(row["rollout/reward"] for row in of[-WIDTH:]) / WIDTH
        per_step = sum(row["perf/step_time"] for row in of) / len(of)
        at = reached(of, reward)
        print(f"{name}: ends at {last:.3f} after {len(of)} steps of {per_step:.2f} s", end="")
        if at is None:
            print(f", never reaches {reward}")
            continue
        times[name] = at[0]
        print(f", reaches {reward} in {at[0]:.0f} s ({at[1]} steps)")
    if len(times) < 2:
        sys.exit(1)
    print(f"ratio {times['async'] / times['sync']:.2f}")
    lags = {}
    for row in runs["async"]:
        for name, tokens in row.items():
            if name.startswith("rollout/lag/tokens_"):
                lag = int(name.rsplit("_", 1)[1])
                lags[lag] = lags.get(lag, 0) + tokens
    total = sum(lags.values())
    for lag in sorted(lags):
        print(f"lag {lag}: {lags[lag]:>8} tokens {lags[lag] / total:6.1%} {'#' * round(50 * lags[lag] / total)}")
    sys.exit(0 if times["async"] < times["sync"] else 1)


main()
