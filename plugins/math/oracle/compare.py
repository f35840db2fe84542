"""Compare cases.jsonl with math-verify, and list where the two disagree.

    pip install math-verify==0.9.0 latex2sympy2_extended==1.11.0 antlr4-python3-runtime==4.13.2
    python plugins/math/oracle/compare.py

math-verify is the oracle for everything that it and we define alike; each row it prints needs a reason in
disagreements.md.
"""

import json
import logging
import pathlib
import sys

from math_verify import parse, verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

logging.disable(logging.CRITICAL)
sys.setrecursionlimit(100_000)
folder = pathlib.Path(__file__).resolve().parent.parent
agree = 0
for line in (folder / "cases.jsonl").read_text().splitlines():
    case = json.loads(line)
    gold, response = case["input"]["label"], case["input"]["response"]
    if case["expected"]["outcome"] != "scored" or len(response) > 2000:
        continue
    try:
        wanted = parse(f"${gold}$", extraction_config=[LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=10)
        answer = parse(response, parsing_timeout=10)
        oracle = float(verify(wanted, answer, timeout_seconds=10))
    except Exception as error:  # an oracle that fails has no opinion
        print(f"no opinion ({type(error).__name__}): {gold} | {response}")
        continue
    ours = case["expected"]["reward"]
    if oracle == ours:
        agree += 1
    else:
        print(f"| `{gold}` | `{response}` | {ours:.0f} | {oracle:.0f} |")
print(f"{agree} cases agree", file=sys.stderr)
