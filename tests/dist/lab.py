"""Nodes that are namespaces of one machine: each has its own network, processes, mounts and host name, and all share the disk.

A node's plug is pulled by taking its link down and killing its first process, in that order: nothing of it says goodbye.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time


class Skip(Exception):
    """Not possible on this machine, and why."""


def sh(*line, check=True, **more):
    return subprocess.run(line, check=check, capture_output=True, text=True, **more)


def installs(what, *line, env=None):
    """Whether an installer did its work; what it said last, where it did not."""
    print(f"  installing {what} …", flush=True)
    try:
        done = sh(*line, check=False, env=env, timeout=400)
    except subprocess.TimeoutExpired:
        raise Skip(f"{what} cannot be installed: {line[0]} does not come to an end") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise Skip(f"{what} cannot be installed: {last}")


def possible():
    if os.geteuid() != 0:
        raise Skip("namespaces need root")
    for tool in ("ip", "nsenter", "unshare"):
        if not shutil.which(tool):
            raise Skip(f"there is no `{tool}`: apt-get install iproute2 util-linux")
    if sh("unshare", "--net", "--pid", "--uts", "--mount", "--ipc", "--fork", "true", check=False).returncode:
        raise Skip("the kernel gives no namespaces here")


class Lab:
    """`num` nodes, node0 to node{num - 1}, at 10.77.0.10 and up, on a switch that leads nowhere else."""

    def __init__(self, num, keep_all=False):
        possible()
        self.num, self.keep_all = num, keep_all
        self.tag = f"sh{os.getpid() % 100000}"
        self.dir = tempfile.mkdtemp(prefix="slime-dist-")
        # Other users of a node, like munge, have to get through.
        os.chmod(self.dir, 0o755)
        self.inits = {}
        self.tools = []

    def name(self, node):
        return f"{self.tag}n{node}"

    def ip(self, node):
        return f"10.77.0.{10 + node}"

    def path(self, *parts):
        path = os.path.join(self.dir, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def __enter__(self):
        switch = f"{self.tag}sw"
        sh("ip", "netns", "add", switch)
        sh("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        for link in ("br0", "lo"):
            sh("ip", "-n", switch, "link", "set", link, "up")
        with open(self.path("hosts"), "w", encoding="utf-8") as hosts:
            hosts.write("127.0.0.1 localhost\n")
            hosts.writelines(f"{self.ip(n)} node{n}\n" for n in range(self.num))
        for node in range(self.num):
            self.wire(node)
        return self

    def wire(self, node):
        name, switch = self.name(node), f"{self.tag}sw"
        sh("ip", "netns", "add", name)
        sh("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"p{node}", "netns", switch)
        sh("ip", "-n", switch, "link", "set", f"p{node}", "master", "br0", "up")
        sh("ip", "-n", name, "link", "set", "lo", "up")
        sh("ip", "-n", name, "addr", "add", f"{self.ip(node)}/24", "dev", "eth0")
        sh("ip", "-n", name, "link", "set", "eth0", "up")
        sh("ip", "-n", name, "route", "add", "default", "via", self.ip(node), check=False)

    def link(self, node, state):
        sh("ip", "-n", f"{self.tag}sw", "link", "set", f"p{node}", state)

    def boot(self, node, *line, env=None, log=None):
        """Start a node whose first process is `line`; the process that stands for the node."""
        tmp = self.path(f"node{node}", "tmp")
        os.makedirs(tmp, exist_ok=True)
        ready = self.path(f"node{node}", "ready")
        if os.path.exists(ready):
            os.remove(ready)
        inside = (f"hostname node{node}; mount -t tmpfs -o size=2g tmpfs /dev/shm; mkdir -p /tmp/ray; mount --bind {tmp} /tmp/ray; "
                  f'mount --bind {self.path("hosts")} /etc/hosts; touch {ready}; "$@" & wait $!')
        command = ["nsenter", f"--net=/run/netns/{self.name(node)}", "unshare", "--uts", "--ipc", "--mount", "--pid", "--fork",
                   "--kill-child", "--mount-proc", "bash", "-c", inside, "node", *line]
        # Appended to: a file that is emptied under a living writer would have holes.
        with open(log or self.path(f"node{node}", "log"), "a", encoding="utf-8") as out:
            init = subprocess.Popen(command, env={**os.environ, **(env or {})}, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                    start_new_session=True)
        self.inits[node] = init
        until(f"node{node} is up", 20, lambda: os.path.exists(ready))
        return init

    def on(self, node, *line, env=None, **more):
        """Start something on a node that is up, beside its first process; it ends with the node."""
        init = self.inits[node].pid
        with open(f"/proc/{init}/task/{init}/children", encoding="utf-8") as children:
            first = children.read().split()[0]
        command = ["nsenter", "--target", first, "--mount", "--uts", "--ipc", "--net", "--pid", *line]
        return subprocess.Popen(command, env={**os.environ, **(env or {})}, start_new_session=True, **more)

    def ask(self, node, *line, env=None):
        process = self.on(node, *line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return process.communicate()[0]

    def unplug(self, node):
        self.link(node, "down")
        kill(self.inits.pop(node))

    def keep(self, process):
        """A process to be ended with the lab."""
        self.tools.append(process)
        return process

    def power_off(self):
        """End every node; the wires stay."""
        for init in self.inits.values():
            kill(init)
        self.inits.clear()
        for process in self.tools:
            kill(process)
        self.tools.clear()

    def __exit__(self, kind, error, trace):
        self.power_off()
        for node in range(self.num):
            sh("ip", "netns", "del", self.name(node), check=False)
        sh("ip", "netns", "del", f"{self.tag}sw", check=False)
        if not self.keep_all and (error is None or isinstance(error, Skip)):
            shutil.rmtree(self.dir, ignore_errors=True)
        else:
            print(f"what the nodes wrote is in {self.dir}", file=sys.stderr)


def kill(process):
    """With all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def until(what, seconds, condition):
    """The time at which `condition` first gives something true, and what it gave."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return time.monotonic(), found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")
