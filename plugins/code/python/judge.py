# Judges values that the candidate computed elsewhere. They come as text and are read as literals, never run.
import ast
import json
import sys

job = json.load(sys.stdin)
values = {}
for index, text in job["values"]:
    special = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan"), "set()": set(), "frozenset()": frozenset()}
    try:
        values[index] = special[text] if text in special else ast.literal_eval(text)
    except Exception:
        pass
space = {}
exec("\n".join(job["preamble"]), space)
passed = []
for test in job["tests"]:
    try:
        names = {f"_value_{index}": values[index] for index in test["uses"]}
        passed.append(bool(eval(test["expression"], {**space, **names})))
    except Exception:
        passed.append(False)
print(json.dumps(passed))
