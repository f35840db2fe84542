"""The table "At a glance" of docs/performance.md as a picture: how many times as fast as its peer each thing is.

    python3 tests/bench/glance.py docs/performance.md docs/img/glance.svg
"""

import math
import re
import sys

WIDTH, LEFT, RIGHT, ROW, TOP = 1000, 430, 960, 22, 44
BEHIND, AHEAD = "#d1495b", "#3b7dd8"
MARKS = [0.8, 1, 1.25, 1.5, 2, 3, 4]


def rows(text):
    section = text.split("## At a glance", 1)[1].split("\n## ", 1)[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        ratios = [float(ratio) for ratio in re.findall(r"\d+\.\d+", cells[-1])]
        if line.startswith("|") and len(cells) == 3 and ratios:
            yield cells[0].replace("`", ""), cells[1], ratios


def at(ratio):
    """A ratio's place on a logarithmic axis."""
    low, high = math.log(MARKS[0]), math.log(MARKS[-1])
    return LEFT + (RIGHT - LEFT) * (math.log(ratio) - low) / (high - low)


def main(source, out):
    found = list(rows(open(source).read()))
    height = TOP + ROW * len(found) + 12
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, DejaVu Sans, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for mark in MARKS:
        colour = "#555" if mark == 1 else "#ddd"
        svg.append(f'<line x1="{at(mark):.1f}" x2="{at(mark):.1f}" y1="{TOP - 12}" y2="{height - 8}" stroke="{colour}"/>')
        svg.append(f'<text x="{at(mark):.1f}" y="{TOP - 20}" text-anchor="middle" fill="#555">{mark:g} ×</text>')
    for i, (what, peer, ratios) in enumerate(found):
        y = TOP + ROW * i
        low, high = min(ratios), max(ratios)
        colour = AHEAD if low >= 1 else BEHIND
        svg.append(f'<text x="8" y="{y + 13}">{what} <tspan fill="#777">beside {peer}</tspan></text>')
        end = max(at(1), at(high))
        # As far as all measurements go, then, paler, as far as some do.
        for a, b, opacity in [(at(1), at(low), 1), (max(at(low), at(1)), end, 0.45)]:
            a, b = sorted((a, b))
            svg.append(f'<rect x="{a:.1f}" y="{y + 3}" width="{b - a:.1f}" height="{ROW - 9}" fill="{colour}" opacity="{opacity}"/>')
        label = f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
        svg.append(f'<text x="{end + 6:.1f}" y="{y + 13}" fill="{colour}">{label}</text>')
    open(out, "w").write("\n".join([*svg, "</svg>", ""]))


main(*sys.argv[1:])
