"""Rows for the warm-up of configs/react.toml: what an act and an answer look like, most acts for the wrong sum.

    python tests/demo/react_rows.py > configs/react-rows.jsonl

Every prompt of the easiest level of plugins/arith stands with every act that calculates a sum of that level, and with the
right one a few times more, so that one act in four is right; and with some of these acts, right and wrong, and what the
tool says, after which that is said again. What is learned is the form; which act is right is left to the reward.
"""

import itertools
import json
import random

MOST = 4
MORE = 7
OBSERVED = 12


def main():
    chance = random.Random(1)
    sums = [(f"{a}+{b}", a + b) for a, b in itertools.product(range(MOST + 1), repeat=2)]
    rows = []
    for text, _ in sums:
        for asked, _ in sums + MORE * [(text, None)]:
            rows.append({"prompt": f"{text}=", "label": f"calculate[{asked}]"})
        for asked, value in chance.sample(sums, OBSERVED):
            rows.append({"prompt": f"{text}=calculate[{asked}]<|end|>{value}", "label": f"={value}"})
    chance.shuffle(rows)
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
