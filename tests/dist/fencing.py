"""Fencing: a controller is cut off and lives on while its run is continued elsewhere, then it comes back.

Twice: once it goes on running behind the cut, once it is frozen there and wakes up in the middle of the continued run. The
disk is shared all the time, as it is where only the compute network fails.
"""
import os
import signal
import subprocess
import time

from job import STEPS, epochs, rows
from lab import until

PORT = 31000


class Controller:
    """A run in one process on a node, and what it says."""

    def __init__(self, lab, job, node, run_dir, engine):
        self.lab, self.log = lab, lab.path(f"controller-{os.path.basename(run_dir)}-{node}.log")
        line = [job.binary, "run", *job.arguments(run_dir, "--resume=take-over", "--set", f'rollout.external_engine_addrs=["{engine}"]')]
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = lab.on(node, *line, stdout=out, stderr=out)
        lab.keep(self.process)

    def freeze(self):
        os.killpg(self.process.pid, signal.SIGSTOP)

    def wake(self):
        # The process that entered the node's namespaces stops itself once it sees its child stopped, which may be late.
        for _ in range(10):
            os.killpg(self.process.pid, signal.SIGCONT)
            time.sleep(0.02)

    def ends(self, code, seconds):
        at, _ = until(f"the controller of {self.log} has ended", seconds, lambda: self.process.poll() is not None)
        assert self.process.returncode == code, f"code {self.process.returncode}, not {code}; see {self.log}"
        return at

    def steps(self):
        with open(self.log, encoding="utf-8", errors="replace") as text:
            return sum("▸" in line and not line.startswith("step") for line in text)

    def says(self, words):
        with open(self.log, encoding="utf-8", errors="replace") as text:
            return words in " ".join(text.read().replace("│", " ").split())


def asked(lab, run_dir, epoch):
    """The status with which the engine answers an epoch of this run that wants to pause it."""
    with open(os.path.join(run_dir, "epoch", "1"), encoding="utf-8") as text:
        run = text.read().split()[0]
    ask = (f"import urllib.request as u, urllib.error as e\n"
           f"r = u.Request('http://{lab.ip(3)}:{PORT}/flush_cache', b'{{}}', {{'x-slime-epoch': '{run}:{epoch}'}})\n"
           f"try: print(u.urlopen(r, timeout=5).status)\n"
           f"except e.HTTPError as x: print(x.code)")
    return int(lab.ask(2, "python3", "-c", ask).split()[-1])


def scene(lab, job, report, frozen):
    what = "frozen behind the cut" if frozen else "alive behind the cut"
    run_dir, engine = lab.path("fenced-" + ("frozen" if frozen else "alive")), f"{lab.ip(3)}:{PORT}"
    old = Controller(lab, job, 1, run_dir, engine)
    until("three steps", 60, lambda: len(rows(run_dir)) >= 3)
    lab.link(1, "down")
    if frozen:
        old.freeze()
    begin = time.monotonic()
    new = Controller(lab, job, 2, run_dir, engine)
    until("the run goes on", 60, lambda: new.says("continuing at step"))
    if frozen:
        until("a step of the continued run", 60, lambda: new.steps() > 0)
        lab.link(1, "up")
        begin = time.monotonic()
        old.wake()
    ended = old.ends(13, 30)
    assert old.says("taken over") or old.says("is over"), f"it does not say why; see {old.log}"
    if not frozen:
        lab.link(1, "up")
    new.ends(0, 90)
    job.compare(run_dir)
    assert epochs(run_dir) == 2
    old_status, new_status = asked(lab, run_dir, 1), asked(lab, run_dir, 2)
    assert (old_status, new_status) == (409, 200), f"the engine answers epoch 1 with {old_status}, epoch 2 with {new_status}"
    since = "it woke up" if frozen else "the run was continued"
    report(f"{what}: the old controller ended by itself {ended - begin:.1f} s after {since}, with code 13; "
           f"all {STEPS} steps equal the undisturbed run's; the engine answers its epoch 409")


def run(lab, job, report):
    for node in (1, 2, 3):
        lab.boot(node, "sleep", "infinity")
    with open(lab.path("engine.log"), "w", encoding="utf-8") as out:
        lab.keep(lab.on(3, job.binary, "serve", "--model", job.model, "--host", lab.ip(3), "--port", str(PORT), stdout=out, stderr=out))
    until("the engine listens", 30, lambda: lab.on(2, "bash", "-c", f"exec 3<>/dev/tcp/{lab.ip(3)}/{PORT}", stderr=subprocess.DEVNULL).wait() == 0)
    for frozen in (False, True):
        scene(lab, job, report, frozen)
