"""The laps that `slime-trainer`'s example `nccl --trace DIR` wrote, as lanes of an SVG: kernels above, collectives beside
them below, a pair of lanes a GPU.

    python3 trace_picture.py DIR/1.7B-dp2.json out.svg ["title"] [from_ms to_ms]
"""

import json
import sys

WIDTH, LEFT, LANE = 1200, 150, 22
COLOURS = {"attention": "#3b7dd8", "matmul": "#7fb069", "head": "#d1a33a", "nccl": "#d1495b", "update": "#8e6bbf"}


def kind(name):
    if name.startswith("nccl"):
        return "nccl"
    for word, of in (("hopper", "attention"), ("attention", "attention"), ("adamw", "update"), ("squares", "update"), ("head", "head")):
        if word in name:
            return of
    return "matmul"


def main(source, out, title="", begin=0.0, end=None):
    laps = json.load(open(source))["traceEvents"]
    begin, last = float(begin) * 1e3, max(lap["ts"] + lap["dur"] for lap in laps)
    end = float(end) * 1e3 if end else last
    scale = (WIDTH - LEFT - 10) / (end - begin)
    lanes = sorted({(lap["pid"], lap["tid"]) for lap in laps})
    height = 60 + LANE * len(lanes)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, DejaVu Sans, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="18">{title}</text>',
    ]
    for row, (gpu, stream) in enumerate(lanes):
        y = 28 + LANE * row
        svg.append(f'<text x="4" y="{y + 13}">GPU {gpu}, {"kernels" if stream == 0 else "beside them"}</text>')
        boxes = []
        for lap in sorted((l for l in laps if (l["pid"], l["tid"]) == (gpu, stream)), key=lambda l: l["ts"]):
            a, b = max(lap["ts"], begin), min(lap["ts"] + lap["dur"], end)
            if b <= a:
                continue
            x, width, of = LEFT + (a - begin) * scale, (b - a) * scale, kind(lap["name"])
            # Neighbours of one kind, closer than a tenth of a point, are one box.
            if boxes and boxes[-1][2] == of and x - boxes[-1][1] < 0.1:
                boxes[-1][1] = x + width
            else:
                boxes.append([x, x + width, of])
        for x, to, of in boxes:
            svg.append(f'<rect x="{x:.1f}" y="{y}" width="{max(to - x, 0.2):.1f}" height="{LANE - 5}" fill="{COLOURS[of]}"/>')
    y = height - 10
    svg.append(f'<text x="{LEFT}" y="{y}">{begin / 1e3:.0f} ms</text>')
    svg.append(f'<text x="{WIDTH - 10}" y="{y}" text-anchor="end">{end / 1e3:.0f} ms</text>')
    for i, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 150 + 130 * i
        svg.append(f'<rect x="{x}" y="{y - 9}" width="9" height="9" fill="{colour}"/><text x="{x + 14}" y="{y}">{name}</text>')
    open(out, "w").write("\n".join([*svg, "</svg>", ""]))


main(*sys.argv[1:])
