"""What a reward costs: plugins in a fresh sandbox a call, beside the two ways that peers take on the same machine.

    python tests/bench/plugins.py path/to/slime-host [--seconds 4] [--languages rust,c,js,python] [--root CHECKOUT]

A `multiprocessing` pool is what slime and verl call rewards in: no isolation, no budget, one interpreter for all calls.
A subprocess a call is what a careful peer does for code. Both get the same rows: a response of 1 KiB that equals its
label, and for programs `assert 1 + 1 == 2` or a program that squares what it reads. Prints a Markdown table; run it on
an idle machine, or compare within one run only.

Languages need their tools on the path (`slime-host plugin build` names what is missing); `code` needs
`slime-host plugin python`.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEXT = "x" * 1024
PROGRAM = "print(int(input()) ** 2)"


def exact_match(row):
    response, label = row
    return float(response.strip() == label.strip())


def run_program(row):
    """What a pool that runs candidates does, at its cheapest: `exec` in the grader's own process."""
    import contextlib
    import io

    source, text, wanted = row
    out = io.StringIO()
    lines = iter(text.splitlines())
    with contextlib.redirect_stdout(out):
        exec(source, {"input": lambda: next(lines)})
    return float(out.getvalue().split() == wanted.split())


def median_us(call, seconds):
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def rate(submit, seconds, ahead):
    """Calls a second with `ahead` of them under way."""
    running, done, start = set(), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        while len(running) < ahead:
            running.add(submit())
        finished, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
        done += len(finished)
    for future in running:
        future.result()
    return (done + len(running)) / (time.perf_counter() - start)


def pool(work, row, seconds):
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as workers:
        assert workers.submit(work, row).result() == 1.0
        call = median_us(lambda: workers.submit(work, row).result(), seconds / 2)
        return call, rate(lambda: workers.submit(work, row), seconds / 2, 4 * os.cpu_count())


def subprocesses(command, stdin, wanted, seconds):
    def one():
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        assert done.stdout.split() == wanted.split(), done

    call = median_us(one, seconds / 2)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        return call, rate(lambda: threads.submit(one), seconds / 2, 2 * os.cpu_count())


def number(text, unit):
    return float(re.search(r"([0-9.]+) " + unit, text).group(1))


class Host:
    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def __call__(self, *arguments):
        done = subprocess.run([self.path, *arguments], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return done.stdout

    def bench(self, plugin, cases, seconds, *more):
        file = Path(self.folder) / "bench.jsonl"
        file.write_text("".join(json.dumps(case) + "\n" for case in cases))
        text = self("plugin", "bench", plugin, "--cases", str(file), "--seconds", str(seconds), *more)
        return dict(re.split(r"  +", line, maxsplit=1) for line in text.splitlines())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("host", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--languages", default="rust,c,js,python")
    parser.add_argument("--root", type=lambda path: Path(path).resolve(), default=Path(__file__).resolve().parents[2])
    said = parser.parse_args()
    scored = {"outcome": "scored"}
    rows = [{"input": {"prompt": "q", "response": TEXT, "label": TEXT}, "expected": scored}]
    table = []
    with tempfile.TemporaryDirectory() as folder:
        host = Host(said.host, folder)
        for language in filter(None, said.languages.split(",")):
            name = f"mine-{language}"
            host("plugin", "new", name, "--lang", language)
            host("plugin", "build", name)
            # A file that was written a moment ago is hashed anew at each load.
            time.sleep(3)
            found = host.bench(name, rows, said.seconds)
            table.append((f"verifier in {language}, fresh instance", found))
        try:
            tests = json.dumps([{"input": "3\n", "output": "9\n"}])
            programs = [{"input": {"prompt": "q", "response": f"```python\n{PROGRAM}\n```", "label": tests}, "expected": scored}]
            found = host.bench(str(said.root / "plugins/code"), programs, said.seconds, "--grant", "code_exec")
            table.append(("`code`: a program and its test, each sandboxed", found))
        except RuntimeError as error:
            print(f"`code` is left out: {error}", file=sys.stderr)
        host("plugin", "new", "waits", "--world", "generator")
        waiting = host.bench("waits", rows, said.seconds)
        hostile = [{"input": {"prompt": "loop", "response": ""}, "expected": scored}]
        spinning = host.bench(str(said.root / "tests/guests/hostile"), hostile, 4 * said.seconds)
    python = sys.executable
    half = said.seconds
    peers = [
        ("exact match in a multiprocessing pool", *pool(exact_match, (TEXT, TEXT), half)),
        ("exact match in a subprocess a call", *subprocesses([python, "-c", "import sys; a, b = sys.stdin.read().split('|'); print(float(a == b))"], f"{TEXT}|{TEXT}", "1.0", half)),
        ("the program by exec in a multiprocessing pool", *pool(run_program, (PROGRAM, "3\n", "9"), half)),
        ("the program in a subprocess a call", *subprocesses([python, "-c", PROGRAM], "3\n", "9", half)),
    ]
    print("| reward | median call | calls a second | instance | guest memory | cached load |")
    print("|---|---|---|---|---|---|")
    for name, found in table:
        call = found["call"].split(" p99")[0].strip()
        instance = found["instantiate"].split(" p99")[0].strip()
        print(f"| {name} | {call} | {number(found['throughput'], 'calls'):.0f} | {instance} | {found['memory']} | {found['load']} |")
    for name, call, speed in peers:
        print(f"| {name} | {call:.1f} µs | {speed:.0f} | | | |")
    print(f"\nGenerators waiting for the policy, an instance each: {waiting['in flight']}; started in {waiting['started in']}.")
    print(f"Guests that spin on every thread: timers of another runtime {spinning['timers']}.")


if __name__ == "__main__":
    main()
