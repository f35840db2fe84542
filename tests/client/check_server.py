#!/usr/bin/env python3
"""The same questions for any server that speaks SGLang's HTTP API (stdlib only).

    check_server.py URL [--prompt-ids 504,3575,282,4649,314] [--prompt "The capital of France is"]
                    [--weights DIR] [--only WORD] [--captured FILE]

--prompt-ids and --prompt must be the same text. --weights is a directory of safetensors with the
weights the server already has, on the server's disk (default: its model_path). Leaves the server
running, unpaused and with a new weight version. One line a check, then `N passed, M failed`.
Checked against SGLang 0.5.23 on CPU; a note says where an answer is that server's habit.
The questions are in checks/, a file a topic.
"""

import argparse
import json
import os
import sys
import time
import traceback

from checks import CAPTURED, CHECKS, A, Skip, get, ok


def place(frame):
    return f"{os.path.basename(frame.filename)}:{frame.lineno}" if frame else "?"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("url")
    p.add_argument("--prompt-ids", default="504,3575,282,4649,314")
    p.add_argument("--prompt", default="The capital of France is")
    p.add_argument("--weights")
    p.add_argument("--only", default="")
    p.add_argument("--captured")
    p.add_argument("--long", type=int, default=3000, help="tokens of a request that is meant to be cut short")
    p.add_argument("--medium", type=int, default=40, help="tokens of a request that is meant to be interrupted and to finish")
    p.parse_args(namespace=A)
    A.url = A.url.rstrip("/")
    A.ids = [int(x) for x in A.prompt_ids.split(",")]
    A.weights = A.weights or ok(get("/model_info"))["model_path"]
    passed = failed = skipped = 0
    for f in CHECKS:
        name = f.__name__.replace("_", " ")
        if A.only not in f.__name__:
            continue
        start = time.time()
        try:
            f()
            passed += 1
            print(f"ok    {name} ({time.time() - start:.2f} s)", flush=True)
        except Skip as e:
            skipped += 1
            print(f"skip  {name}: {e}", flush=True)
        except Exception as e:
            failed += 1
            where = next((t for t in reversed(traceback.extract_tb(e.__traceback__)) if t.name == f.__name__), None)
            print(f"FAIL  {name} ({place(where)}): {type(e).__name__} {str(e)[:600]}", flush=True)
    if A.captured:
        with open(A.captured, "w") as out:
            out.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in CAPTURED) + "\n]\n")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
