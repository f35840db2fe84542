"""Reward curves of several runs in one picture (stdlib only).

    python curves.py OUT.svg NAME=RUN_DIR ... [--metric rollout/reward] [--x step|seconds] [--smooth 5]

Reads each run's metrics.jsonl. `seconds` adds up perf/step_time, so waiting for other programs on the machine is in it.
"""

import argparse
import json
from pathlib import Path

COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#ff9da7"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 60, 230, 30, 45


def read(directory, metric, x):
    points, clock = [], 0.0
    for line in Path(directory, "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        clock += row.get("perf/step_time") or 0.0
        if row.get(metric) is not None:
            points.append((row["rollout/step"] if x == "step" else clock, row[metric]))
    return points


def smoothed(points, width):
    ys = [y for _, y in points]
    return [(x, sum(ys[max(0, i - width + 1): i + 1]) / len(ys[max(0, i - width + 1): i + 1])) for i, (x, _) in enumerate(points)]


def ticks(high):
    step = next(s for s in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000) if high / s <= 8)
    return [i * step for i in range(int(high / step) + 1)]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("out")
    args.add_argument("runs", nargs="+")
    args.add_argument("--metric", default="rollout/reward")
    args.add_argument("--x", choices=["step", "seconds"], default="step")
    args.add_argument("--smooth", type=int, default=5)
    args.add_argument("--title", default="")
    args = args.parse_args()
    runs = [(name, smoothed(read(directory, args.metric, args.x), args.smooth)) for name, directory in (r.split("=", 1) for r in args.runs)]
    high_x = max(x for _, points in runs for x, _ in points)
    high_y = max(1.0, max(y for _, points in runs for _, y in points))
    at = lambda x, y: (LEFT + x / high_x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / high_y * (HEIGHT - TOP - BOTTOM))
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, DejaVu Sans, sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    svg.append(f'<text x="{LEFT}" y="18" font-size="14">{args.title}</text>')
    for tick in ticks(high_y):
        x, y = at(0, tick)
        svg.append(f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e6e6e6"/><text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(high_x):
        x, y = at(tick, 0)
        svg.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{tick:g}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{args.x}</text>')
    for index, (name, points) in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in points))
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        y = TOP + 12 + 18 * index
        svg.append(f'<line x1="{WIDTH - RIGHT + 14}" y1="{y - 4}" x2="{WIDTH - RIGHT + 36}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/><text x="{WIDTH - RIGHT + 42}" y="{y}">{name} · {points[-1][1]:.3f}</text>')
    svg.append("</svg>")
    Path(args.out).write_text("\n".join(svg) + "\n")
    for name, points in runs:
        print(f"{name}: {points[0][1]:.3f} to {points[-1][1]:.3f} in {points[-1][0]:.0f} {args.x}")


main()
