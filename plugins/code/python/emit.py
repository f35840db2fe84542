# Runs the candidate and writes down what its calls return. What is right stands nowhere in this interpreter.
import json
import sys


def _main():
    job = json.load(sys.stdin)
    out = sys.stdout
    write, flush, dump, show = out.write, out.flush, json.dumps, repr
    space = {"__name__": "candidate"}
    exec(compile(job["source"], "candidate.py", "exec"), space)
    for index, step in enumerate(job["steps"]):
        text = None
        try:
            if "exec" in step:
                exec(step["exec"], space)
            elif "eval" in step:
                text = show(eval(step["eval"], space))
        except BaseException as error:
            text = None
        if "eval" in step:
            write("\x1e" + dump([index, text]) + "\n")
            flush()


_main()
