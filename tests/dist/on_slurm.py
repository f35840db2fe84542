"""Slurm: an allocation of two trainers, an engine and a spare; a rank is killed, then a trainer is unplugged."""
import glob
import os
import shutil
import subprocess
import time

from job import STEPS, epochs, resumed_at, rows
from lab import Skip, installs, until

CONF = """ClusterName=lab
SlurmctldHost=node0({head})
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={dir}/slurm/state
SlurmdSpoolDir={dir}/slurm/spool.%n
SlurmctldLogFile={dir}/slurm/slurmctld.log
SlurmdLogFile={dir}/slurm/slurmd.%n.log
SlurmctldPidFile={dir}/slurm/slurmctld.pid
SlurmdPidFile={dir}/slurm/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdTimeout=10
KillWait=2
InactiveLimit=0
MpiDefault=none
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
NodeName=node[1-{last}] NodeAddr={addresses} CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=node[1-{last}] Default=YES MaxTime=INFINITE State=UP
"""


def install():
    if not all(shutil.which(tool) for tool in ("slurmctld", "slurmd", "munged", "sbatch")):
        if not shutil.which("apt-get"):
            raise Skip("Slurm is not installed, and there is no apt-get to install it with")
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        installs("the package lists", "apt-get", "update", "-qq", env=env)
        installs("slurm-wlm and munge", "apt-get", "install", "-y", "--no-install-recommends", "slurm-wlm", "slurm-wlm-basic-plugins", "munge", env=env)


def start(lab):
    """All daemons; the environment of Slurm's commands."""
    conf = lab.path("slurm", "slurm.conf")
    os.makedirs(lab.path("slurm", "state", ""), exist_ok=True)
    last = lab.num - 1
    with open(conf, "w", encoding="utf-8") as out:
        out.write(CONF.format(dir=lab.dir, head=lab.ip(0), last=last, addresses=f"10.77.0.[11-{10 + last}]"))
    with open(lab.path("slurm", "cgroup.conf"), "w", encoding="utf-8") as out:
        version = "cgroup/v2" if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else "cgroup/v1"
        out.write(f"CgroupPlugin={version}\nCgroupAutomount=no\n")
    key = lab.path("munge", "key")
    with open(key, "wb") as out:
        out.write(os.urandom(1024))
    os.chmod(key, 0o400)
    lab.keep(subprocess.Popen(["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={lab.dir}/munge/socket", f"--pid-file={lab.dir}/munge/pid",
                               f"--log-file={lab.dir}/munge/log", f"--seed-file={lab.dir}/munge/seed"], start_new_session=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    until("munge listens", 10, lambda: os.path.exists(f"{lab.dir}/munge/socket"))
    env = {"SLURM_CONF": conf}
    lab.boot(0, "slurmctld", "-D", env=env)
    for node in range(1, lab.num):
        lab.boot(node, "slurmd", "-D", "-N", f"node{node}", env=env)
    until("all nodes are idle", 60, lambda: lab.ask(0, "sinfo", "-h", "-N", "-o", "%T", env=env).split().count("idle") == last)
    return env


def last_number(paths):
    return max((int(path.rsplit("-", 1)[1].split("/")[0]) for path in paths), default=-1)


def recovered(job, run_dir, logs, before, begin, what, goal, report):
    """Wait for the next attempt to train; tell how long each part took."""
    ended = lambda: [path for path in glob.glob(f"{logs}/attempt-{before}/ended.*") if open(path, encoding="utf-8").read().strip() not in ("", "0")]
    seen, _ = until(f"attempt {before} has ended after: {what}", 60, ended)
    log = f"{logs}/attempt-{before + 1}/rank_0.log"
    placed, _ = until(f"attempt {before + 1} has begun", 60, lambda: os.path.exists(log))
    _, step = until(f"attempt {before + 1} continues", 60, lambda: resumed_at(log))
    trained, _ = until(f"attempt {before + 1} trains", 60, lambda: any(int(row["rollout/step"]) >= step for row in rows(run_dir)))
    took = trained - begin
    report(f"{what}: detected {seen - begin:.1f} s, placed {placed - begin:.1f} s, first step {took:.1f} s after (goal {goal} s); went on at step {step}")
    return took


def run(lab, job, report):
    install()
    begin = time.monotonic()
    env = start(lab)
    report(f"slurmctld and {lab.num - 1} slurmd are up in {time.monotonic() - begin:.1f} s")
    run_dir, logs = lab.path("on-slurm"), lab.path("slurm-logs")
    here = os.path.dirname(os.path.abspath(__file__))
    script = os.path.join(here, "..", "..", "configs", "slurm", "run.sbatch")
    env.update(SLIME_HOST=job.binary, MODEL=job.model, TRAINERS="2", ENGINES="1", LOGS=logs)
    begin = time.monotonic()
    out = lab.path("slurm", "job.out")
    said = lab.ask(0, "sbatch", "--parsable", "-N4", "-o", out, script, *job.arguments(run_dir, "--set", "run.save_interval=2"), env=env)
    assert said.strip().isdigit(), said
    until("the first step", 90, lambda: rows(run_dir))
    report(f"from sbatch to the first step {time.monotonic() - begin:.1f} s")

    # One rank is killed; its node lives.
    until("three steps", 60, lambda: len(rows(run_dir)) >= 3)
    begin = time.monotonic()
    victim = subprocess.run(["pgrep", "-f", f"^{job.binary} run .*{run_dir}"], capture_output=True, text=True, check=False).stdout.split()
    ranks = {pid: environ(pid).get("RANK") for pid in victim}
    pid = next(pid for pid, rank in ranks.items() if rank == "1")
    os.kill(int(pid), 9)
    recovered(job, run_dir, logs, 0, begin, "rank killed", 5, report)

    # A node is unplugged: the one of rank 1, where rank 0 and the batch script do not live.
    until("three steps more", 60, lambda: len(rows(run_dir)) >= 7)
    begin = time.monotonic()
    lab.unplug(2)
    recovered(job, run_dir, logs, 1, begin, "node unplugged", 20, report)

    # An engine dies where it is; rollouts it had finished are in the Data Buffer.
    until("three steps more", 60, lambda: len(rows(run_dir)) >= 11)
    begin = time.monotonic()
    os.kill(engine_of(job), 9)
    healed(out, f"{logs}/attempt-3/rank_0.log", run_dir, "engine node4 is lost", begin, report)
    until("the job has ended", 120, lambda: "ended with 0" in open(out, encoding="utf-8").read())
    with open(out, encoding="utf-8") as text:
        placed = [line for line in text if "trainers node" in line]
    assert "trainers node1 node2, engines node4" in placed[0], placed
    assert "trainers node1 node3, engines node4" in placed[-1], placed
    job.compare(run_dir)
    report(f"all {STEPS} steps equal the undisturbed run's, to the last digit; {epochs(run_dir)} epochs")
    stops(lab, job, script, env, report)


def stops(lab, job, script, env, report):
    """Slurm asks a job to end: every process of it hears that, some twice, and the run is saved."""
    run_dir, out = lab.path("stopped"), lab.path("slurm", "stopped.out")
    env = {**env, "LOGS": lab.path("stopped-logs"), "TRAINERS": "1", "RANKS": "2"}
    number = lab.ask(0, "sbatch", "--parsable", "-N2", "--exclude=node2", "-o", out, script, *job.arguments(run_dir, "--set", "run.num_rollout=500"), env=env).strip()
    until("three steps", 60, lambda: len(rows(run_dir)) >= 3)
    begin = time.monotonic()
    lab.ask(0, "scancel", "--batch", "--signal=TERM", number, env=env)
    until("the job has saved and ended", 30, lambda: "ended with 130" in open(out, encoding="utf-8").read())
    done = len(rows(run_dir))
    assert os.path.isfile(os.path.join(run_dir, "checkpoints", f"step_{done}", "index.json")), f"step {done} is not saved"
    report(f"asked to end by Slurm: saved after step {done} and ended in {time.monotonic() - begin:.1f} s")


def engine_of(job):
    """The engine's process: the only one that serves this lab's model."""
    found = subprocess.run(["pgrep", "-f", f"^{job.binary} serve --model {job.model}"], capture_output=True, text=True, check=False).stdout.split()
    assert len(found) == 1, found
    return int(found[0])


def healed(out, log, run_dir, words, begin, report):
    """Wait until the run goes on with another engine."""
    seen, _ = until("the loss of the engine is seen", 60, lambda: words in open(out, encoding="utf-8").read())
    _, step = until("the next attempt continues", 60, lambda: resumed_at(log))
    trained, _ = until("the next attempt trains", 60, lambda: any(int(row["rollout/step"]) >= step for row in rows(run_dir)))
    report(f"engine killed: detected {seen - begin:.1f} s, first step {trained - begin:.1f} s after; went on at step {step}")


def environ(pid):
    try:
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as text:
            return dict(pair.split("=", 1) for pair in text.read().split("\0") if "=" in pair)
    except OSError:
        return {}
