"""Whether a run ended above a reward: the mean of its last five steps against a bound (stdlib only).

    python ends_above.py RUN_DIR BOUND

Prints first and last rewards, the number of steps and the seconds they took; exit status 1 below the bound.
"""

import json
import sys
from pathlib import Path

WIDTH = 5


def main():
    directory, bound = Path(sys.argv[1]), float(sys.argv[2])
    path = directory / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rewards = [row["rollout/reward"] for row in rows if row.get("rollout/reward") is not None]
    if not rewards:
        print(f"{directory.name}: no step")
        sys.exit(1)
    last = sum(rewards[-WIDTH:]) / len(rewards[-WIDTH:])
    seconds = sum(row.get("perf/step_time") or 0.0 for row in rows)
    verdict = "above" if last > bound else "BELOW"
    print(f"{directory.name}: {rewards[0]:.3f} to {last:.3f} ({verdict} {bound:g}) in {len(rewards)} steps, {seconds:.0f} s")
    sys.exit(0 if last > bound else 1)


main()
