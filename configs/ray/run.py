#!/usr/bin/env python3
"""A run placed by Ray: engines and trainer ranks on nodes of the cluster, started again elsewhere when they or their nodes are lost.

    pip install ray
    ray start --head …          on one machine, `ray start --address=HEAD:6379 …` on the others
    RAY_ADDRESS=HEAD:6379 python configs/ray/run.py --trainers 2 --engines 1 --model /shared/model -- \\
        slime-host run /shared/arith.wasm -c /shared/recipe.toml --set run.dir=/shared/runs/first

What follows `--` is the run. Each trainer node starts `--ranks` ranks of it through `slime-host launch`, each engine node
`slime-host serve`. Everything named by a path, the program too, lies on a disk that all nodes see. Ray finds the nodes; this
file only says what runs there, and looks at exit codes: 0 is done, 2 a recipe that would be wrong again, anything else is
started again with --resume=take-over, from the last checkpoint. Engines that live are kept.
"""
import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as On

BEGIN = time.monotonic()
PR_SET_PDEATHSIG = 1


def say(*words):
    print(f"[run.py {time.monotonic() - BEGIN:7.2f}]", *words, flush=True)


@ray.remote(num_cpus=0, max_restarts=0, max_concurrency=4)
class Agent:
    """One node's processes. They die with it, and it dies with its node."""

    def __init__(self):
        self.process = None

    def where(self):
        with socket.socket() as free:
            free.bind((ray.util.get_node_ip_address(), 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1], socket.gethostname()

    def start(self, line, env, log):
        libc = ctypes.CDLL(None)

        def tied():
            os.setsid()
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "ab") as out:
            # The thread that starts a process has to live as long as it, so this one also waits for it.
            self.process = subprocess.Popen(line, env={**os.environ, **env}, stdout=out, stderr=out, stdin=subprocess.DEVNULL, preexec_fn=tied)
        return self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()


class Place:
    """So many nodes for one purpose. Ray moves the share of a node that is lost to another by itself."""

    def __init__(self, count, resource, amount):
        self.count, self.resource, self.amount = count, resource, amount
        self.group = placement_group([{resource: amount}] * count, strategy="STRICT_SPREAD") if count else None

    def agent(self, index):
        on = On(self.group, index)
        return Agent.options(resources={self.resource: self.amount}, scheduling_strategy=on).remote()

    def agents(self, patience):
        """An agent on every node, and where they are; they wait until Ray has nodes for all of them."""
        agents = [self.agent(index) for index in range(self.count)]
        return agents, ray.get([agent.where.remote() for agent in agents], timeout=patience)

    def free(self):
        if self.group:
            remove_placement_group(self.group)


def answers(host, port):
    try:
        socket.create_connection((host, port), 1).close()
        return True
    except OSError:
        return False


class Engines:
    """Engines in their places; one that is lost is started where Ray puts it."""

    def __init__(self, options):
        self.options = options
        self.place = Place(options.engines, options.resource, options.per_engine)
        self.agents = [None] * options.engines
        self.at = [None] * options.engines

    def heal(self):
        """See that all answer; the addresses."""
        for index in range(self.options.engines):
            if self.at[index] and answers(*self.at[index]):
                continue
            end(self.agents[index])
            agent = self.agents[index] = self.place.agent(index)
            host, port, name = ray.get(agent.where.remote(), timeout=self.options.patience)
            line = [self.options.command[0], "serve", "--model", self.options.model, "--host", host, "--port", str(port), *self.options.serve]
            agent.start.remote(line, {}, os.path.join(self.options.logs, f"engine-{index}.log"))
            self.at[index] = (host, port)
            say(f"engine {index} on {name} at {host}:{port}")
        for index, (host, port) in enumerate(self.at):
            deadline = time.monotonic() + self.options.patience
            while not answers(host, port):
                if time.monotonic() > deadline:
                    sys.exit(f"engine {index} does not answer at {host}:{port}; see {self.options.logs}/engine-{index}.log")
                time.sleep(0.1)
        return [f"{host}:{port}" for host, port in self.at]

    def lost(self):
        """Whether one does not answer, for three seconds."""
        return any(not (answers(*at) or answers(*at) or answers(*at)) for at in self.at)


def end(agent):
    """Stop an agent's processes, if it still answers."""
    if agent is None:
        return
    try:
        ray.get(agent.stop.remote(), timeout=5)
    except ray.exceptions.RayError:
        pass
    ray.kill(agent)


def attempt(number, trainers, engines, options):
    """Start all ranks once; the exit code, or None where a node or an engine was lost."""
    addresses = engines.heal()
    agents, where = trainers.agents(options.patience)
    logs = os.path.join(options.logs, f"attempt-{number}")
    say(f"attempt {number}: trainers {', '.join(name for _, _, name in where)}")
    host, port, _ = where[0]
    env = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "SLIME_RUN_ID": f"ray-{os.getpid()}-{number}"}
    env.update({name: os.environ[name] for name in options.env if name in os.environ})
    chosen = ["--set", f"rollout.external_engine_addrs={json.dumps(addresses)}"] if addresses else []
    waits = {}
    for index, agent in enumerate(agents):
        line = [options.command[0], "launch", "--nproc-per-node", str(options.ranks), "--nnodes", str(len(agents)), "--node-rank", str(index),
                "--peer-timeout", options.peer_timeout, "--log-dir", logs, "--", *options.command, "--resume=take-over", *chosen]
        waits[agent.start.remote(line, env, os.path.join(logs, f"agent-{index}.log"))] = index
    code, looked = 0, time.monotonic()
    while waits and code == 0:
        done, _ = ray.wait(list(waits), timeout=0.5)
        for wait in done:
            index = waits.pop(wait)
            try:
                code = code or ray.get(wait)
            except ray.exceptions.RayError as error:
                say(f"trainer {where[index][2]} is lost: {type(error).__name__}")
                code = None
        if code == 0 and waits and time.monotonic() - looked > 1:
            looked = time.monotonic()
            if engines.lost():
                say("an engine is lost")
                code = None
    say(f"attempt {number} ended with {code}")
    for agent in agents:
        end(agent)
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=1, help="nodes that train")
    parser.add_argument("--ranks", type=int, default=1, help="ranks a trainer node starts")
    parser.add_argument("--engines", type=int, default=0, help="nodes that serve; 0: the engines are the recipe's")
    parser.add_argument("--model", help="HF directory that engines serve")
    parser.add_argument("--serve", nargs="*", default=[], help="more arguments of `slime-host serve`")
    parser.add_argument("--resource", default="GPU", help="what nodes are counted by: GPU, or a name given to ray start --resources")
    parser.add_argument("--per-trainer", type=float, default=1, help="how much of it a trainer node takes")
    parser.add_argument("--per-engine", type=float, default=1, help="how much of it an engine takes")
    parser.add_argument("--logs", default="ray-logs", help="directory of all logs, on the shared disk")
    parser.add_argument("--env", action="append", default=[], help="a variable of this process that ranks get; Ray hands none on")
    parser.add_argument("--peer-timeout", default="5s", help="silence after which a rank is lost")
    parser.add_argument("--patience", type=float, default=600, help="seconds to wait for nodes")
    parser.add_argument("--max-attempts", type=int, default=10)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- slime-host run …")
    options = parser.parse_args()
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not options.command:
        parser.error("there is no run: give it after --")
    if options.engines and not options.model:
        parser.error("--engines serve a model: give --model")
    options.logs = os.path.abspath(options.logs)
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), logging_level="WARNING", log_to_driver=False)
    say("connected to", ray.get_runtime_context().gcs_address)
    engines = Engines(options)
    trainers = Place(options.trainers, options.resource, options.per_trainer)
    code = 1
    for number in range(options.max_attempts):
        try:
            code = attempt(number, trainers, engines, options)
        except ray.exceptions.RayError as error:
            # A node went while the agents were placed; Ray places them again.
            say(f"attempt {number} did not begin: {type(error).__name__}")
            code = None
        # 0: done. 2: the recipe is wrong. 130: it was asked to stop, and has saved.
        if code in (0, 2, 130):
            break
    for agent in engines.agents:
        end(agent)
    trainers.free()
    engines.place.free()
    return 1 if code is None else code


if __name__ == "__main__":
    sys.exit(main())
