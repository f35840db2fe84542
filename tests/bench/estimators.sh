#!/bin/bash
# Every estimator on the demo's task, one after the other; each must end above its bound. Then their curves in one picture.
#
#   [PLUGIN=arith.wasm] tests/bench/estimators.sh slime-host OUT_DIR [STEPS] [SECONDS]
#
# The recipe is configs/demo.toml; what an estimator needs beside its name stands below, with the reward (mean of the last five steps)
# above which it must end. SECONDS stops a run that takes longer. On-policy distillation learns from the model that
# grpo trained. Exit status 1: a run ended below its bound.
set -e
host=$1 out=$2 steps=${3:-150} seconds=${4:-600} plugin=${PLUGIN:-plugins/arith}
here=$(dirname "$0")
mkdir -p "$out"
names=() below=()
run() {
  name=$1 bound=$2
  shift 2
  names+=("$name")
  if [ ! -d "$out/$name/model" ]; then
    timeout -s INT "$seconds" "$host" run "$plugin" -c configs/demo.toml --num-rollout "$steps" --set run.dir="$out/$name" \
      --set eval.interval=null --set eval.num_prompts=null --set eval.temperature=null "$@" > "$out/$name.log" 2>&1 || true
  fi
  python3 "$here/ends_above.py" "$out/$name" "$bound" || below+=("$name")
}
plain=(--set algorithm.disable_grpo_std_normalization=null)
run grpo 0.9
run gspo 0.9 --advantage-estimator gspo --eps-clip 0.05
run cispo 0.9 --advantage-estimator cispo --eps-clip 1.0 --eps-clip-high 4.0
run reinforce_plus_plus 0.9 --advantage-estimator reinforce_plus_plus --normalize-advantages "${plain[@]}"
run ppo 0.9 --advantage-estimator ppo --num-critic-only-steps 2 --critic-lr 1e-3 "${plain[@]}"
run rloo 0.9 --advantage-estimator rloo "${plain[@]}"
run opd 0.9 --use-opd --opd-teacher-load "$out/grpo/model" --opd-kl-coef 1.0
pictures=()
for name in "${names[@]}"; do
  [ -s "$out/$name/metrics.jsonl" ] && pictures+=("$name=$out/$name")
done
python3 "$here/curves.py" "$out/curves.svg" "${pictures[@]}" --title "reward on the demo's task, mean of 5 steps"
[ ${#below[@]} = 0 ] || { echo "below their bound: ${below[*]}"; exit 1; }
