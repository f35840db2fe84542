"""plot_curves.py CURVES.json OUT.svg: loss curves by name, one over the other (stdlib only)."""
import json, sys

curves = json.load(open(sys.argv[1]))
width, height, left, right, top, bottom = 720, 360, 56, 16, 40, 36
most = max(max(values) for values in curves.values()) * 1.02
steps = max(len(values) for values in curves.values())
x = lambda i: left + (width - left - right) * i / (steps - 1)
y = lambda v: top + (height - top - bottom) * (1 - v / most)
out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, DejaVu Sans, sans-serif" font-size="12">',
       f'<rect width="{width}" height="{height}" fill="#fff"/>']
for tick in range(0, int(most) + 1, 2):
    out.append(f'<path d="M{left} {y(tick):.1f}H{width - right}" stroke="#e2e8f0"/><text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#64748b">{tick}</text>')
for step in range(0, steps, 10):
    out.append(f'<text x="{x(step):.1f}" y="{height - 14}" text-anchor="middle" fill="#64748b">{step}</text>')
styles = [("#ea580c", 6), ("#2563eb", 2)]
for (name, values), (colour, wide) in zip(reversed(curves.items()), styles):
    points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
    out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}" stroke-opacity="{0.45 if wide > 2 else 1}"/>')
for i, ((name, _), (colour, wide)) in enumerate(zip(reversed(curves.items()), styles)):
    out.append(f'<path d="M{left + 180 * i} 20h24" stroke="{colour}" stroke-width="{wide}" stroke-opacity="{0.45 if wide > 2 else 1}"/><text x="{left + 30 + 180 * i}" y="24" fill="#334155">{name}</text>')
out.append("</svg>")
open(sys.argv[2], "w").write("\n".join(out) + "\n")
