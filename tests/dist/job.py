"""The small run that is placed, unplugged and continued, and how two runs are compared."""
import glob
import json
import os
import re
import subprocess

STEPS = 18
SAME = ["rollout/step", "train/lr", "train/loss", "train/grad_norm", "rollout/reward"]
RECIPE = f"""seed = 5
[rollout]
batch_size = 4
n_samples_per_prompt = 4
max_response_len = 8
[algorithm]
disable_grpo_std_normalization = true
use_kl_loss = true
kl_loss_coef = 0.05
[train]
global_batch_size = 16
lr = 5e-4
data_parallel_size = 2
[run]
num_rollout = {STEPS}
save_interval = 2
"""


class Job:
    """A model, a recipe, and the run that nobody disturbs: one process, its ranks threads."""

    def __init__(self, lab, binary, plugin):
        self.lab, self.binary = lab, binary
        self.recipe = lab.path("recipe.toml")
        with open(self.recipe, "w", encoding="utf-8") as out:
            out.write(RECIPE)
        # One short warm-up gives the model that engines serve and ranks train.
        self.plugin = plugin
        prepared = lab.path("prepared", "")
        self.call("run", plugin, "-c", self.recipe, "--set", f"run.dir={prepared}", "--set", 'model.builtin="tiny"', "--set", "run.num_rollout=1",
                  "--set", "train.data_parallel_size=1", "--set", "sft.num_steps=20", "--set", "sft.batch_size=16")
        self.model = os.path.join(prepared, "model")
        alone = lab.path("undisturbed", "")
        self.call("run", *self.arguments(alone))
        self.undisturbed = rows(alone)
        assert len(self.undisturbed) == STEPS, self.undisturbed

    def arguments(self, run_dir, *more):
        return [self.plugin, "-c", self.recipe, "--set", f"run.dir={run_dir}", "--set", f"model.path={self.model}", *more]

    def call(self, *arguments):
        done = subprocess.run([self.binary, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments[0]} failed:\n{done.stdout}{done.stderr}"

    def compare(self, run_dir):
        """The run equals the one that nobody disturbed, to the last digit of every step."""
        got = rows(run_dir)
        for alone, disturbed in zip(self.undisturbed, got):
            assert alone == disturbed, f"\n  alone     {alone}\n  disturbed {disturbed}"
        assert len(got) == STEPS, f"{len(got)} of {STEPS} steps"
        return len(got)


def rows(run_dir):
    try:
        with open(os.path.join(run_dir, "metrics.jsonl"), encoding="utf-8") as lines:
            # A last line without its end is being written.
            whole = lines.read().split("\n")[:-1]
    except FileNotFoundError:
        return []
    found = [json.loads(line, parse_float=str) for line in whole if line.strip()]
    return [{name: row.get(name) for name in SAME} for row in found if "rollout/step" in row]


def epochs(run_dir):
    return len(glob.glob(os.path.join(run_dir, "epoch", "[0-9]*")))


def resumed_at(log):
    """The step at which a rank 0 says that it continues."""
    try:
        with open(log, encoding="utf-8", errors="replace") as text:
            found = re.search(r"continuing at step (\d+)", text.read())
    except FileNotFoundError:
        return None
    return int(found.group(1)) if found else None
