#!/usr/bin/env python3
"""A table of runs from their metrics.jsonl: medians over the steps but the first, first and last rewards, and how busy each GPU was
in percent (the mean of `busy.csv` beside it, where sglang.sh left one).

    steps.py RUN/metrics.jsonl [MORE]
"""
import json
import os
import statistics
import sys

COLUMNS = [
    ("sample s", "perf/rollout_time", "8.2f"), ("train s", "perf/train_time", "8.2f"), ("publish s", "perf/update_weights_time", "9.3f"), ("export s", "perf/update_weights_export_time", "8.3f"),
    ("write s", "perf/update_weights_write_time", "7.3f"), ("load s", "perf/update_weights_load_time", "7.3f"), ("MB moved", "perf/update_weights_moved_bytes", "8.1f"), ("step s", "perf/step_time", "7.2f"),
    ("sampled tok/s", "perf/tokens_per_sec", "13.0f"), ("trained tok/s", "perf/actor_train_tok_per_s", "13.0f"), ("gap mean", "train/train_rollout_logprob_abs_diff", "8.1e"), ("gap max", "train/train_rollout_logprob_abs_diff_max", "8.1e"),
]


def main():
    print(f"{'run':<16} {'steps':>5} " + " ".join(f"{name:>{spec.split('.')[0]}}" for name, _, spec in COLUMNS) + "  reward")
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as lines:
            rows = [row for row in map(json.loads, filter(str.strip, lines)) if "rollout/step" in row]
        cells = []
        for _, key, spec in COLUMNS:
            values = [row[key] for row in rows[1:] if isinstance(row.get(key), (int, float))]
            value = statistics.median(values) if values else float("nan")
            cells.append(f"{value / 1e6 if key.endswith('bytes') else value:{spec}}")
        rewards = [row["rollout/reward"] for row in rows if isinstance(row.get("rollout/reward"), (int, float))]
        ends = f"{rewards[0]:.3f} to {rewards[-1]:.3f}" if rewards else "-"
        folder = os.path.dirname(os.path.abspath(path))
        busy = " ".join(f"GPU {gpu} {mean:.0f} %" for gpu, mean in gpus(os.path.join(folder, "busy.csv")))
        print(f"{os.path.basename(folder):<16} {len(rows):>5} " + " ".join(cells) + f"  {ends}  {busy}")


def gpus(path):
    """Each GPU's number and mean use."""
    use = {}
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                cells = line.split(",")
                if len(cells) == 2 and cells[1].strip().isdigit():
                    use.setdefault(int(cells[0]), []).append(int(cells[1]))
    except FileNotFoundError:
        pass
    return [(gpu, statistics.mean(values)) for gpu, values in sorted(use.items())]


if __name__ == "__main__":
    main()
