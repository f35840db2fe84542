#!/bin/bash
# Every estimator on the demo's task, one after the other, each stopped after its time; then their curves in one picture.
#
#   tests/bench/estimators.sh slime-host OUT_DIR [SECONDS] [STEPS]
#
# The recipe is configs/demo.toml; what an estimator needs beside its name stands below. On-policy distillation learns from a model
# that GRPO trained, so grpo comes first.
set -e
host=$1 out=$2 seconds=${3:-120} steps=${4:-60}
mkdir -p "$out"
run() {
  name=$1; shift
  timeout -s INT "$seconds" "$host" run plugins/arith -c configs/demo.toml --num-rollout "$steps" --set run.dir="$out/$name" \
    --set eval.interval=null --set eval.num_prompts=null "$@" > "$out/$name.log" 2>&1 || true
  tail -2 "$out/$name.log"
}
plain="--set algorithm.disable_grpo_std_normalization=null"
run grpo
run gspo --advantage-estimator gspo --eps-clip 0.05
run cispo --advantage-estimator cispo --eps-clip 1.0 --eps-clip-high 4.0
run rloo --advantage-estimator rloo $plain
run max_rl --advantage-estimator max_rl $plain
run reinforce_plus_plus --advantage-estimator reinforce_plus_plus --normalize-advantages $plain
run ppo --advantage-estimator ppo --num-critic-only-steps 2 --critic-lr 1e-3 $plain
[ -d "$out/grpo/model" ] && run opd --use-opd --opd-teacher-load "$out/grpo/model" --opd-kl-coef 0.1
pictures=()
for name in grpo gspo cispo rloo max_rl reinforce_plus_plus ppo opd; do
  [ -s "$out/$name/metrics.jsonl" ] && pictures+=("$name=$out/$name")
done
python3 "$(dirname "$0")/curves.py" "$out/curves.svg" "${pictures[@]}" --title "reward on the demo's task, mean of 5 steps"
