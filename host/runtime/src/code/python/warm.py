# Runs once, in the interpreter that becomes the snapshot: what every program finds loaded and already tried.
import sys, os, io, re, math, cmath, json, random, string, itertools, functools, collections, heapq, bisect, copy
import operator, decimal, fractions, statistics, datetime, time, typing, dataclasses, enum, array, struct, textwrap
import contextlib, traceback, ast, inspect, hashlib, unicodedata, queue, types, abc, numbers, linecache
import numpy, sympy
import _reactor

sympy.simplify(sympy.Symbol("x") + 1)
numpy.arange(3).sum()


# As a script runs: nothing is echoed, unlike at the interactive prompt that this replaces. Frames of `<reactor>` are
# left out of tracebacks.
RUN_TURN = """
import linecache, sys
def run_turn(text, name):
    code = compile(text, "<program>", "exec", dont_inherit=True)
    linecache._register_code(code, text, "<program>")
    exec(code, sys.modules["__main__"].__dict__)
"""
space = {}
exec(compile(RUN_TURN, "<reactor>", "exec"), space)
_reactor._run_turn = run_turn = space["run_turn"]

# Specialises the bytecode on this path, and fills the caches of the parser and of the types that programs use.
TRIED = """
import sys, math
def square(x):
    return x ** 2
class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b
rows = [int(part) for part in "3 4 5".split()]
seen = {str(n): square(n) for n in rows}
try:
    seen["none"]
except KeyError as error:
    text = f"{error}"
for i, (key, value) in enumerate(sorted(seen.items())):
    if value > i and key:
        Pair(key, value)
print(sum(rows), max(rows), "".join(seen), math.sqrt(4), file=sys.stderr)
"""
for _ in range(16):
    run_turn(TRIED, "")
    sys.stderr.flush()
linecache.clearcache()
_reactor._fresh_main()
