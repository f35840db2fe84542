#!/usr/bin/env python3
"""A cluster of namespaces on this machine: runs placed by Slurm and by Ray lose a rank and a node, and go on; a node that was
cut off and lives on is fenced. Needs root, and a few minutes.

    sudo python3 tests/dist/cluster.py [BINARY] [PLUGIN] [--only slurm|ray|fence]

BINARY is target/debug/slime-host by default, PLUGIN plugins/arith. It installs what it needs: Slurm and munge by apt-get, Ray
into a venv in the user's cache. Where there are no namespaces it says so and ends with 0.
"""
import argparse
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fencing  # noqa: E402
import on_ray  # noqa: E402
import on_slurm  # noqa: E402
from job import Job  # noqa: E402
from lab import Lab, Skip  # noqa: E402

SCENES = {"slurm": on_slurm.run, "ray": on_ray.run, "fence": fencing.run}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    parser.add_argument("binary", nargs="?", default=os.path.join(root, "target", "debug", "slime-host"))
    parser.add_argument("plugin", nargs="?", default=os.path.join(root, "plugins", "arith"))
    parser.add_argument("--only", choices=SCENES)
    parser.add_argument("--keep", action="store_true", help="keep what the nodes wrote")
    args = parser.parse_args()
    binary, begin = os.path.abspath(args.binary), time.monotonic()

    def report(text):
        print(f"[{time.monotonic() - begin:6.1f} s]   {text}", flush=True)

    failed, skipped = [], []
    try:
        with Lab(5, args.keep) as lab:
            # Built here, once: nodes have no compiler.
            plugin = args.plugin
            if os.path.isdir(plugin):
                built = subprocess.run([binary, "plugin", "build", plugin], capture_output=True, text=True, check=True)
                plugin = built.stdout.split()[-1]
            job = Job(lab, binary, os.path.abspath(plugin))
            for name, scene in SCENES.items():
                if args.only not in (None, name):
                    continue
                print(f"[{time.monotonic() - begin:6.1f} s] {name}", flush=True)
                try:
                    scene(lab, job, report)
                except Skip as why:
                    skipped.append(name)
                    report(f"skipped: {why}")
                except (AssertionError, OSError, StopIteration) as error:
                    failed.append(name)
                    report(f"FAILED: {error or type(error).__name__}")
                lab.power_off()
                for node in range(lab.num):
                    lab.link(node, "up")
            if failed:
                raise AssertionError(", ".join(failed))
    except Skip as why:
        print(f"skipped: {why}")
        return 0
    except AssertionError as error:
        print(f"[{time.monotonic() - begin:6.1f} s] failed: {error}")
        return 1
    rest = f"; skipped: {', '.join(skipped)}" if skipped else ""
    print(f"[{time.monotonic() - begin:6.1f} s] all as it should be{rest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
