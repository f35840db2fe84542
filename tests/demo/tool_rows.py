"""Rows for the warm-up of the tool demo: what a call looks like, most of them for the wrong sum.

    python tests/demo/tool_rows.py tool-rows.jsonl [--rows 4000] [--right 0.25] [--seed 1]

A row is a prompt of `plugins/arith` with the call to `calculate` that answers it, or such a prompt with its call and the
tool's answer, which is to be said again. Of the calls, a quarter are right; in the others one or both numbers are not, so what
is learned is the form, and which call is right is left to the reward.
"""

import argparse
import json
import random

# Terms of the easiest level of plugins/arith go from 0 to this.
MOST = 4
CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "%s"}}</tool_call>'


def problem(chance):
    a, b = chance.randint(0, MOST), chance.randint(0, MOST)
    return f"{a}+{b}", a + b


def spoilt(chance, text):
    at = [index for index, c in enumerate(text) if c.isdigit()]
    letters = list(text)
    for index in chance.sample(at, chance.randint(1, 2)):
        letters[index] = chance.choice([str(n) for n in range(MOST + 1) if str(n) != letters[index]])
    return "".join(letters)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--right", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    chance = random.Random(said.seed)
    with open(said.out, "w") as out:
        for _ in range(said.rows):
            text, value = problem(chance)
            asked = text if chance.random() < said.right else spoilt(chance, text)
            row = {"prompt": f"{text}=", "label": CALL % asked}
            if chance.random() < 0.3:
                row = {"prompt": f"{text}={CALL % text}<|end|>{value}", "label": str(value)}
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
