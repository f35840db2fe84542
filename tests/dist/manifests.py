#!/usr/bin/env python3
"""The shape of configs/kubernetes: every field is one that the API knows, every pod and job a valid one.

    python3 tests/dist/manifests.py

Pods and jobs are checked against Kubernetes' own schemas, unknown fields refused; what is RayJob's and JobSet's around them
against the tables below, taken from their definitions (ray.io/v1 of KubeRay 1.4, jobset.x-k8s.io/v1alpha2 of JobSet 0.8).
Commands are checked against the program's own command line. It installs kubernetes-validate into the user's cache, and skips
with a reason where it cannot. It says nothing about how a cluster behaves.
"""
import copy
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import Skip, installs, sh  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
VERSION = "1.31.0"
POD, JOB, ANY = "a pod", "a job", "anything"
RAY_GROUP = {"rayStartParams": ANY, "template": POD}
SHAPES = {
    "RayJob": {
        "entrypoint": ANY, "backoffLimit": ANY, "shutdownAfterJobFinishes": ANY, "ttlSecondsAfterFinished": ANY, "submissionMode": ANY,
        "runtimeEnvYAML": ANY, "activeDeadlineSeconds": ANY, "suspend": ANY,
        "rayClusterSpec": {
            "rayVersion": ANY, "headGroupSpec": {**RAY_GROUP, "serviceType": ANY},
            "workerGroupSpecs": [{**RAY_GROUP, "groupName": ANY, "replicas": ANY, "minReplicas": ANY, "maxReplicas": ANY, "numOfHosts": ANY}],
        },
    },
    "JobSet": {
        "network": {"enableDNSHostnames": ANY, "subdomain": ANY, "publishNotReadyAddresses": ANY},
        "failurePolicy": {"maxRestarts": ANY, "restartStrategy": ANY, "rules": ANY},
        "replicatedJobs": [{"name": ANY, "replicas": ANY, "groupName": ANY, "dependsOn": ANY, "template": JOB}],
        "startupPolicy": ANY, "successPolicy": ANY, "suspend": ANY, "coordinator": ANY, "managedBy": ANY, "ttlSecondsAfterFinished": ANY,
    },
}
APIS = {"RayJob": "ray.io/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}


def tools():
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    venv = os.path.join(cache, "slime-host", "kubernetes-validate")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(python) or sh(python, "-c", "import kubernetes_validate", check=False).returncode:
        sh(sys.executable, "-m", "venv", venv)
        installs("kubernetes-validate", os.path.join(venv, "bin", "pip"), "install", "-q", "kubernetes-validate==1.31.0", "PyYAML")
    return python


def problems(document, validate):
    """Everything that is wrong with a document."""
    kind = document.get("kind")
    found = [] if document.get("apiVersion") == APIS.get(kind) else [f"{kind} of {document.get('apiVersion')}"]
    metadata = {"apiVersion": "v1", "metadata": {"name": "x"}}

    def known(value, shape, path):
        if shape == ANY:
            return
        if shape in (POD, JOB):
            whole = {**metadata, "kind": "Pod", "spec": value.get("spec")} if shape == POD else {
                **metadata, "apiVersion": "batch/v1", "kind": "Job", "spec": value.get("spec")}
            try:
                validate(whole, VERSION, strict=True)
            except Exception as error:  # the library's errors have no common type
                found.append(f"{path}: {getattr(error, 'message', error)}")
        elif isinstance(shape, list):
            for index, item in enumerate(value):
                known(item, shape[0], f"{path}[{index}]")
        else:
            for name, inner in value.items():
                if name in shape:
                    known(inner, shape[name], f"{path}.{name}")
                else:
                    found.append(f"{path}.{name} is no field of {kind}")

    known(document.get("spec", {}), SHAPES.get(kind, {}), "spec")
    return found


def commands(value):
    """Every container's command."""
    if isinstance(value, dict):
        if isinstance(value.get("command"), list):
            yield value["command"]
        for inner in value.values():
            yield from commands(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from commands(inner)


def flags_of(binary, verb):
    text = subprocess.run([binary, verb, "--help"], capture_output=True, text=True, check=True).stdout
    return {word.strip(",").split("[")[0].split("=")[0] for word in text.split() if word.startswith("--")}


def check(binary):
    import kubernetes_validate
    import yaml
    validate, checked = kubernetes_validate.validate, 0
    for name in ("rayjob.yaml", "jobset.yaml"):
        with open(os.path.join(ROOT, "configs", "kubernetes", name), encoding="utf-8") as text:
            documents = list(yaml.safe_load_all(text))
        for document in documents:
            found = problems(document, validate)
            assert not found, f"{name}: {found}"
            checked += 1
            # The check itself can fail: a field nobody knows is found wherever it is.
            for path in (["spec"], *places(document["spec"], ["spec"])):
                wrong = copy.deepcopy(document)
                inner = wrong
                for step in path:
                    inner = inner[step]
                inner["noSuchField"] = 1
                assert problems(wrong, validate), f"{name}: an unknown field in {path} is not found"
            for command in commands(document):
                parts, rest = [], command
                while "--" in rest:
                    parts.append(rest[:rest.index("--")])
                    rest = rest[rest.index("--") + 1:]
                for program, verb, *arguments in [*parts, rest]:
                    assert program == "slime-host", command
                    said = {argument.split("=")[0] for argument in arguments if argument.startswith("--")}
                    assert said <= flags_of(binary, verb), f"{name}: {said - flags_of(binary, verb)} of {verb}"
    print(f"{checked} documents have the shape their APIs want")


def places(value, path):
    """Paths of the pods' specs."""
    if isinstance(value, dict):
        if "containers" in value:
            yield path
        for name, inner in value.items():
            yield from places(inner, [*path, name])
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, [*path, index])


def main():
    binary = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "target", "debug", "slime-host"))
    try:
        python = tools()
    except Skip as why:
        print(f"skipped: {why}")
        return 0
    if os.environ.get("SLIME_MANIFESTS") != "inside":
        return subprocess.run([python, os.path.abspath(__file__), binary], env={**os.environ, "SLIME_MANIFESTS": "inside"}, check=False).returncode
    check(binary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
