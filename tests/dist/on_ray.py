"""Ray: two trainers and an engine on four worker nodes; a rank is killed, then rank 0's node, the controller's, is unplugged."""
import glob
import os
import re
import shutil
import socket
import subprocess
import sys
import time

from job import STEPS, epochs, resumed_at, rows
from on_slurm import engine_of, environ, healed
from lab import Skip, installs, sh, until

VERSION = "2.60.0"
# A node that says nothing is given up after three seconds, not after 16.
TUNED = {f"RAY_health_check_{name}": value for name, value in
         (("period_ms", "1000"), ("timeout_ms", "1000"), ("failure_threshold", "3"), ("initial_delay_ms", "2000"))}
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}


def install():
    """The directory of `ray` and its Python."""
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    venv = os.environ.get("SLIME_RAY_VENV", os.path.join(cache, "slime-host", f"ray-{VERSION}"))
    if not os.path.exists(os.path.join(venv, "bin", "ray")):
        shutil.rmtree(venv, ignore_errors=True)
        sh(sys.executable, "-m", "venv", venv)
        try:
            installs(f"ray {VERSION}", os.path.join(venv, "bin", "pip"), "install", "-q", f"ray=={VERSION}")
        except Skip:
            shutil.rmtree(venv, ignore_errors=True)
            raise
    return os.path.join(venv, "bin")


def listens(host, port, lab):
    done = lab.on(0, "bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.wait() == 0


def start(lab, ray):
    env = {**TUNED, **QUIET}
    common = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]
    lab.boot(0, ray, "start", "--head", f"--node-ip-address={lab.ip(0)}", "--port=6379", "--include-dashboard=false", *common, env=env)
    until("Ray's head listens", 90, lambda: listens(lab.ip(0), 6379, lab))
    for node in range(1, lab.num):
        line = [ray, "start", f"--address={lab.ip(0)}:6379", f"--node-ip-address={lab.ip(node)}", '--resources={"SLOT": 1}']
        lab.boot(node, *line, *[flag for flag in common if flag != "--disable-usage-stats"], env=env)


def pids(job, run_dir):
    """Ranks of the run, by rank."""
    found = subprocess.run(["pgrep", "-f", f"^{job.binary} run .*{run_dir}"], capture_output=True, text=True, check=False).stdout.split()
    return {environ(pid).get("RANK"): int(pid) for pid in found}


def recovered(out, run_dir, logs, before, begin, what, goal, report):
    said = lambda words: words in open(out, encoding="utf-8").read()
    seen, _ = until(f"attempt {before} has ended after: {what}", 60, lambda: said(f"attempt {before} ended with"))
    log = f"{logs}/attempt-{before + 1}/rank_0.log"
    placed, _ = until(f"attempt {before + 1} has begun", 90, lambda: os.path.exists(log))
    _, step = until(f"attempt {before + 1} continues", 60, lambda: resumed_at(log))
    trained, _ = until(f"attempt {before + 1} trains", 60, lambda: any(int(row["rollout/step"]) >= step for row in rows(run_dir)))
    report(f"{what}: detected {seen - begin:.1f} s, placed {placed - begin:.1f} s, first step {trained - begin:.1f} s after (goal {goal} s); "
           f"went on at step {step}")


def run(lab, job, report):
    tools = install()
    begin = time.monotonic()
    start(lab, os.path.join(tools, "ray"))
    run_dir, logs, out = lab.path("on-ray"), lab.path("ray-logs"), lab.path("ray.out")
    here = os.path.dirname(os.path.abspath(__file__))
    driver = os.path.join(here, "..", "..", "configs", "ray", "run.py")
    line = [os.path.join(tools, "python"), driver, "--trainers", "2", "--engines", "1", "--model", job.model, "--resource", "SLOT", "--logs", logs, "--",
            job.binary, "run", *job.arguments(run_dir)]
    with open(out, "w", encoding="utf-8") as text:
        lab.keep(lab.on(0, *line, env={"RAY_ADDRESS": f"{lab.ip(0)}:6379", **QUIET}, stdout=text, stderr=text))
    until("the first step", 120, lambda: rows(run_dir))
    report(f"from nothing to the first step {time.monotonic() - begin:.1f} s")

    until("three steps", 60, lambda: len(rows(run_dir)) >= 3)
    begin = time.monotonic()
    os.kill(pids(job, run_dir)["1"], 9)
    recovered(out, run_dir, logs, 0, begin, "rank killed", 5, report)

    # The controller's node: nothing of the run is left but what is on the disk, and the engine.
    until("three steps more", 60, lambda: len(rows(run_dir)) >= 7)
    with open(out, encoding="utf-8") as text:
        victim = int(re.findall(r"trainers node(\d)", text.read())[-1])
    begin = time.monotonic()
    lab.unplug(victim)
    recovered(out, run_dir, logs, 1, begin, f"node unplugged (node{victim}, the controller's)", 15, report)

    until("three steps more", 60, lambda: len(rows(run_dir)) >= 11)
    begin = time.monotonic()
    os.kill(engine_of(job), 9)
    healed(out, f"{logs}/attempt-3/rank_0.log", run_dir, "an engine is lost", begin, report)
    until("the run has ended", 120, lambda: "ended with 0" in open(out, encoding="utf-8").read())
    job.compare(run_dir)
    report(f"all {STEPS} steps equal the undisturbed run's, to the last digit; {epochs(run_dir)} epochs, {len(glob.glob(logs + '/engine-*'))} engine")
