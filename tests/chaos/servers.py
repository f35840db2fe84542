#!/usr/bin/env python3
"""A run on two SGLang servers that it launches; one of them is killed with SIGKILL while it samples. With --router, sglang_router
picks the server, and is killed a step later.

    python3 tests/chaos/servers.py target/release/slime-host plugins/arith MODEL [--steps 5] [--command '["python3", "-m", "sglang.launch_server"]']
        [--router '["python3", "-m", "sglang_router.launch_router"]'] [--sglang-config FILE --victim prefill] [-- MORE ARGUMENTS OF run]

MODEL is an HF directory. With --sglang-config the file lays two servers out, like a pair of prefill and decode; --victim is a word
of the command line of the one that is killed. Holds when every step trained its groups, each exactly once and with all of its rollouts scored, no
rollout was lost to the dead server, the server came back, and in the end both serve the newest weights. Prints a row a step.
Needs nothing but Python here; the servers need SGLang.
"""
import argparse
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time


def children(pid):
    """Process ids below `pid`, with their command lines."""
    found, parents = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8") as stat, open(f"/proc/{entry}/cmdline", "rb") as line:
                parents[int(entry)] = int(stat.read().rsplit(")", 1)[1].split()[1])
                found[int(entry)] = line.read().decode(errors="replace").split("\0")
        except (OSError, IndexError):
            continue
    return {p: words for p, words in found.items() if parents[p] == pid}


def servers(pid):
    """Port to process id of the servers that the run launched."""
    return {words[words.index("--port") + 1]: p for p, words in children(pid).items() if "--port" in words}


def rows(run_dir):
    try:
        with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as lines:
            return [row for row in map(json.loads, filter(str.strip, lines.read().split("\n"))) if "rollout/step" in row]
    except (OSError, ValueError):
        return []


def query(run_dir, sql):
    try:
        db = sqlite3.connect(f"file:{os.path.join(run_dir, 'run.db')}?mode=ro", uri=True, timeout=10)
        with db:
            return db.execute(sql).fetchall()
    except sqlite3.Error:
        return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("plugin")
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--kill-at", type=int, default=1, help="the step during which a server is killed")
    parser.add_argument("--command", default='["python3", "-m", "sglang.launch_server"]')
    parser.add_argument("--router", help="what launches a router, as a list")
    parser.add_argument("--sglang-config", help="a file that lays two servers out")
    parser.add_argument("--victim", help="kill the server with this word in its command line")
    parser.add_argument("--keep", help="directory of the run, kept afterwards")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:end])
    with tempfile.TemporaryDirectory() as folder:
        run_dir = args.keep or os.path.join(folder, "run")
        log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        laid_out = ["--sglang-config", args.sglang_config] if args.sglang_config else ["--rollout-num-engines", "2"]
        line = [args.binary, "run", args.plugin, "--hf-checkpoint", args.model, "--num-rollout", str(args.steps), "--rollout-batch-size", str(args.groups),
                "--n-samples-per-prompt", str(args.samples), *laid_out, "--set", f"rollout.engine_command={args.command}", "--set", f"run.dir={run_dir}", *sys.argv[end + 1:]]
        router = None
        if args.router:
            port, metrics = free_port(), free_port()
            router = subprocess.Popen([*json.loads(args.router), "--host", "127.0.0.1", "--port", port, "--prometheus-port", metrics, "--policy", "round_robin"], stdout=log, stderr=log, start_new_session=True)
            wait_for(port)
            line += ["--set", f"rollout.router_addr=127.0.0.1:{port}"]
        run = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
        try:
            watch(args, run, run_dir, router)
        except BaseException:
            log.seek(0)
            print(log.read()[-4000:], file=sys.stderr)
            raise
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGTERM)
                run.wait(60)
            if router and router.poll() is None:
                os.killpg(router.pid, signal.SIGKILL)
        log.seek(0)
        for said in filter(lambda text: " check " in text, log.read().split("\n")):
            print(said.strip())


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def wait_for(port):
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("the router does not listen")


def in_the_middle(run_dir):
    """Rollouts of the present step that are in, and those that are being sampled."""
    count = "SELECT COUNT(*) FROM rollouts JOIN groups ON id = group_id AND groups.attempt = rollouts.attempt WHERE groups.state = 'sampling' AND rollouts.state = "
    done, asked = (query(run_dir, count + state) or [(0,)] for state in ("'scored'", "'sampling'"))
    return (done[0][0], asked[0][0]) if done[0][0] and asked[0][0] else None


def watch(args, run, run_dir, router):
    killed = back = first = None
    begin = time.monotonic()
    while run.poll() is None:
        time.sleep(0.2)
        now = servers(run.pid)
        met = in_the_middle(run_dir) if len(now) == 2 else None
        if killed is None and met and len(rows(run_dir)) == args.kill_at:
            lines = children(run.pid)
            first, killed = next((port, pid) for port, pid in now.items() if not args.victim or args.victim in lines.get(pid, ()))
            os.kill(killed, signal.SIGKILL)
            print(f"killed the server on port {first} after {time.monotonic() - begin:.0f} s, {met[0]} rollouts in, {met[1]} being sampled", flush=True)
        if router and router.poll() is None and in_the_middle(run_dir) and len(rows(run_dir)) == args.kill_at + 1:
            os.killpg(router.pid, signal.SIGKILL)
            router.wait()
            print(f"killed the router after {time.monotonic() - begin:.0f} s", flush=True)
        if killed and back is None and now.get(first) not in (None, killed):
            back = now[first]
            print(f"started again after {time.monotonic() - begin:.0f} s", flush=True)
    if run.returncode != 0:
        sys.exit(f"the run ended with {run.returncode}")
    print(f"{'step':>4} {'reward':>7} {'gap mean':>9} {'gap max':>9} {'sample s':>9} {'train s':>8} {'publish s':>9} {'write s':>8} {'load s':>7} {'serving':>7}")
    for row in rows(run_dir):
        number = lambda name: row.get(name, float("nan"))
        print(f"{row['rollout/step']:4} {number('rollout/reward'):7.3f} {number('train/train_rollout_logprob_abs_diff'):9.1e} {number('train/train_rollout_logprob_abs_diff_max'):9.1e} {number('perf/rollout_time'):9.1f} "
              f"{number('perf/train_time'):8.1f} {number('perf/update_weights_time'):9.2f} {number('perf/update_weights_write_time'):8.2f} {number('perf/update_weights_load_time'):7.2f} {row.get('rollout/engines_serving', 0):7}")
    trained = query(run_dir, "SELECT taken_by, id, COUNT(*) FROM groups WHERE state = 'trained' GROUP BY taken_by, id")
    assert not router or router.poll() is not None, "the router was not killed: ask for more steps"
    assert killed, "no server was killed: the steps are too short to be met in the middle"
    assert len(trained) == args.steps * args.groups and all(count == 1 for *_, count in trained), trained
    outcomes = query(run_dir, "SELECT outcome, COUNT(*) FROM rollouts JOIN groups ON id = group_id AND groups.attempt = rollouts.attempt WHERE groups.state = 'trained' GROUP BY outcome")
    assert outcomes == [("scored", args.steps * args.groups * args.samples)], outcomes
    assert back, "the server was not started again before the run ended: ask for more steps"
    print(f"{len(trained)} groups trained once each, all {outcomes[0][1]} rollouts scored, none lost; {rows(run_dir)[-1]['rollout/engines_serving']} servers serve the newest weights")


if __name__ == "__main__":
    main()
