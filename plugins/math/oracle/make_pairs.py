"""Make pairs.jsonl: answer pairs on which math-verify and sympy agree, with their verdict.

    pip install math-verify==0.9.0 latex2sympy2_extended==1.11.0 antlr4-python3-runtime==4.13.2 sympy==1.14.0
    python plugins/math/oracle/make_pairs.py

Every pair is made from two sympy values, so what is right is known before math-verify is asked: equal where sympy
proves the difference zero, different where a numeric evaluation does. Pairs on which math-verify says something else
are left out and counted; `cargo test -p slime-plugin-math pairs` holds the plugin to the rest.
"""

import json
import logging
import pathlib
import random
import sys

import sympy as sp
from math_verify import parse, verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

logging.disable(logging.CRITICAL)
rng = random.Random(20)
x, y, n = sp.symbols("x y n", positive=True)
pairs = []


def add(family, gold, answer, equal):
    if gold != answer:
        pairs.append((family, gold, answer, equal))


def frac(p, q):
    return f"\\frac{{{p}}}{{{q}}}"


def integers():
    for _ in range(30):
        a = rng.randint(-9999, 99999)
        add("integer", str(a), f"{a}.0", True)
        add("integer", str(a), str(a + rng.choice([-1, 1, 10])), False)
        add("integer", str(a), f"{a * 3}/3", True)
        if abs(a) > 999:
            add("integer", str(a), f"{a:,}", True)
        add("integer", str(a), str(-a), a == 0)


def fractions():
    for _ in range(40):
        p, q = rng.randint(1, 40), rng.randint(2, 24)
        k = rng.randint(2, 5)
        f = sp.Rational(p, q)
        add("fraction", frac(p, q), frac(p * k, q * k), True)
        add("fraction", frac(p, q), f"{p}/{q}", True)
        add("fraction", f"-{frac(p, q)}", frac(-p, q), True)
        add("fraction", frac(p, q), frac(p + 1, q), False)
        add("fraction", f"\\dfrac{{{p}}}{{{q}}}", f"\\tfrac{{{p}}}{{{q}}}", True)
        if set(sp.factorint(f.q)) <= {2, 5}:
            add("fraction", frac(p, q), sp.nsimplify(f).evalf(12).__str__().rstrip("0"), True)


def radicals():
    for _ in range(30):
        k, m = rng.randint(2, 9), rng.choice([2, 3, 5, 6, 7, 10])
        add("radical", f"{k}\\sqrt{{{m}}}", f"\\sqrt{{{k * k * m}}}", True)
        add("radical", f"{k}\\sqrt{{{m}}}", f"\\sqrt{{{k * m}}}", False)
        add("radical", f"\\frac{{{k}}}{{\\sqrt{{{m}}}}}", f"\\frac{{{k}\\sqrt{{{m}}}}}{{{m}}}", True)
        a = rng.randint(1, 9)
        add("radical", f"{a}+{k}\\sqrt{{{m}}}", f"{k}\\sqrt{{{m}}}+{a}", True)
        add("radical", f"{a}-{k}\\sqrt{{{m}}}", f"{a}+{k}\\sqrt{{{m}}}", False)
        add("radical", f"\\sqrt[3]{{{k**3}}}", str(k), True)


def powers():
    for _ in range(15):
        b, e = rng.randint(2, 6), rng.randint(2, 7)
        add("power", f"{b}^{{{e}}}", str(b**e), True)
        add("power", f"{b}^{{{e}}}", str(b * e), b**e == b * e)
        add("power", f"{b}^{{-{e}}}", frac(1, b**e), True)
        add("power", str(b**e * 1000), f"{b**e} \\times 10^{{3}}", True)


def constants():
    for _ in range(20):
        p, q = rng.randint(1, 11), rng.randint(2, 12)
        add("pi", f"\\frac{{{p}\\pi}}{{{q}}}", f"\\frac{{{p}}}{{{q}}}\\pi", True)
        add("pi", f"{p}\\pi", f"\\pi \\cdot {p}", True)
        add("pi", f"{p}\\pi", f"{p + 1}\\pi", False)
        add("pi", f"{p}\\pi", str(p), False)
        add("e", f"{p}e", f"e \\cdot {p}", True)
        add("log", f"\\ln({p * q})", f"\\ln({p}) + \\ln({q})", True)
        add("log", f"\\ln({p + 1})", f"\\ln({p + 2})", False)
        add("log", f"\\log_{{{q}}}({q**3})", "3", True)


def polynomials():
    for _ in range(40):
        a, b, c = rng.randint(-6, 6), rng.randint(-6, 6), rng.randint(1, 4)
        left = c * (x - a) * (x - b)
        wide = sp.latex(sp.expand(left))
        add("polynomial", sp.latex(sp.factor(left)), wide, True)
        add("polynomial", wide, sp.latex(sp.expand(left + 1)), False)
        terms = sp.expand(left).as_ordered_terms()
        add("polynomial", wide, sp.latex(sp.Add(*terms[::-1], evaluate=False), order="none"), True)
        d = rng.randint(1, 5)
        add("polynomial", f"(x+{d})^2", f"x^2+{2 * d}x+{d * d}", True)
        add("polynomial", f"\\frac{{x+{d}}}{{2}}", f"\\frac{{x}}{{2}}+\\frac{{{d}}}{{2}}", True)
        add("polynomial", f"{c}x+{d}y", f"{d}y+{c}x", True)
        add("polynomial", f"{c}x+{d}y", f"{c}y+{d}x", c == d)


def tuples():
    for _ in range(20):
        a, b = rng.randint(-9, 9), rng.randint(-9, 9)
        add("tuple", f"({a},{b})", f"({a}, {b})", True)
        add("tuple", f"({a},{b})", f"({b},{a})", a == b)
        add("tuple", f"({a},{b})", f"({2 * a}/2, {b})", True)
        add("set", f"\\{{{a},{b}\\}}", f"\\{{{b},{a}\\}}", True)
        add("set", f"\\{{{a},{b}\\}}", f"\\{{{a},{b + 1}\\}}", False)
        lo, hi = min(a, b), max(a, b) + 1
        add("interval", f"[{lo},{hi})", f"[{lo}, {hi})", True)
        add("interval", f"[{lo},{hi})", f"[{lo},{hi}]", False)
        add("interval", f"(-\\infty,{lo})", f"(-\\infty, {lo})", True)


def complexes():
    for _ in range(15):
        a, b = rng.randint(-9, 9), rng.randint(1, 9)
        add("complex", f"{a}+{b}i", f"{b}i+{a}", True)
        add("complex", f"{a}+{b}i", f"{a}-{b}i", False)
        add("complex", f"({a}+{b}i)(1+i)", f"{a - b}+{a + b}i" if a + b >= 0 else f"{a - b}{a + b}i", True)


def counting():
    for k in range(3, 9):
        add("factorial", f"{k}!", str(sp.factorial(k)), True)
        add("factorial", f"{k}!", str(sp.factorial(k) + 1), False)
        add("binomial", f"\\binom{{{k + 2}}}{{{2}}}", str(sp.binomial(k + 2, 2)), True)


def trig():
    for angle in [sp.pi / 6, sp.pi / 4, sp.pi / 3, sp.pi / 2, sp.pi]:
        for name, f in [("\\sin", sp.sin), ("\\cos", sp.cos)]:
            add("trig", sp.latex(f(angle)), f"{name}({sp.latex(angle)})", True)
    add("trig", "\\tan(\\frac{\\pi}{4})", "1", True)
    add("trig", "\\sin^2(x)+\\cos^2(x)", "1", True)


def equations():
    for _ in range(15):
        a = rng.randint(-20, 20)
        add("equation", f"x={a}", str(a), True)
        add("equation", str(a), f"x={a}", True)
        add("equation", f"x={a}", f"x={a + 1}", False)


for make in (integers, fractions, radicals, powers, constants, polynomials, tuples, complexes, counting, trig, equations):
    make()

config = [LatexExtractionConfig(), ExprExtractionConfig()]
folder = pathlib.Path(__file__).resolve().parent.parent
kept, seen, other = [], set(), {}
for family, gold, answer, equal in pairs:
    if (gold, answer) in seen:
        continue
    seen.add((gold, answer))
    try:
        says = verify(parse(f"${gold}$", extraction_config=config), parse(f"$\\boxed{{{answer}}}$", extraction_config=config))
    except Exception:
        says = None
    if says == equal:
        kept.append({"family": family, "gold": gold, "answer": answer, "equal": equal})
    else:
        other.setdefault(family, []).append((gold, answer, equal))
(folder / "oracle" / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
print(f"{len(kept)} pairs kept", file=sys.stderr)
for family, rows in other.items():
    print(f"{family}: math-verify says otherwise {len(rows)} times, for example {rows[:2]}", file=sys.stderr)
