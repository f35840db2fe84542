#!/bin/bash
# GRPO with the trainer and a real SGLang server on one GPU or on two; new weights travel by each transport in turn.
#
#   sglang.sh HOST_BINARY PLUGIN MODEL OUT [STEPS]
#
# PLUGIN is a component or a plugin folder (tests/guests/letters rewards models of random weights too), MODEL an HF directory with a tokenizer. Every run leaves
# OUT/TRANSPORT/{metrics.jsonl,log,servers/,busy.csv}; a table of them ends the output, with how busy each GPU was from the third step to the last.
# SGLANG: what launches a server, as a TOML list (default: ["python3", "-m", "sglang.launch_server"]). SERVER_FLAGS, RUN_FLAGS: more flags, like
#   SERVER_FLAGS="--sglang-attention-backend triton --sglang-mem-fraction-static 0.4"    RUN_FLAGS="--lr 1e-4"
# TRANSPORTS: default "disk shared-memory". DEVICE: where the trainer computes, default cuda. ADDRS: running servers instead of one that the run launches. Apart,
# on two GPUs, the server being on the second, in step and never pausing:
#   CUDA_VISIBLE_DEVICES=0 ADDRS=127.0.0.1:30000 TRANSPORTS=nccl sglang.sh slime-host tests/guests/letters MODEL OUT 6
#   ... RUN_FLAGS="--fully-async --max-weight-staleness 1 --use-tis" sglang.sh slime-host tests/guests/letters MODEL OUT 16
set -u
bin=$1 plugin=$2 model=$3 out=$4 steps=${5:-20}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
python3 - "$out/prompts.jsonl" <<'PY'
import json, sys
things = "rivers mountains trains bread music winter engines letters maps gardens clocks islands bridges lamps stones birds".split()
with open(sys.argv[1], "w") as rows:
    for number in range(256):
        rows.write(json.dumps({"input": f"Write about {things[number % 16]} and {things[number // 16]}.", "label": ""}) + "\n")
PY
if [ -n "${ADDRS:-}" ]; then
  # shellcheck disable=SC2206
  servers=(--rollout-external-engine-addrs $ADDRS)
else
  servers=(--rollout-num-engines 1 --set "rollout.engine_command=${SGLANG:-[\"python3\", \"-m\", \"sglang.launch_server\"]}")
fi

# watch DIR PID: GPUs' use every 0.2 s, into DIR/busy.csv, from the third step of the run of process PID to the last.
watch() {
  command -v nvidia-smi > /dev/null || return 0
  finished() { grep -s rollout/step "$1/run/metrics.jsonl" | wc -l; }
  while kill -0 "$2" 2> /dev/null && [ "$(finished "$1")" -lt 2 ]; do sleep 0.2; done
  nvidia-smi --query-gpu=index,utilization.gpu --format=csv,noheader,nounits -lms 200 > "$1/busy.csv" &
  while kill -0 "$2" 2> /dev/null && [ "$(finished "$1")" -lt "$steps" ]; do sleep 0.2; done
  kill $!
}

for transport in ${TRANSPORTS:-disk shared-memory}; do
  dir=$out/$transport; mkdir -p "$dir"
  begin=$(date +%s)
  # shellcheck disable=SC2086
  "$bin" run "$plugin" --hf-checkpoint "$model" --set model.device="${DEVICE:-cuda}" --prompt-data "$out/prompts.jsonl" --label-key label --num-rollout "$steps" \
    --rollout-batch-size 16 --n-samples-per-prompt 16 --rollout-max-response-len 256 --max-tokens-per-gpu 16384 --save-interval 1000 --set run.dir="$dir/run" \
    "${servers[@]}" --sglang-server-concurrency 256 \
    --update-weight-transport "$transport" --update-weight-disk-dir "${WEIGHTS:-/dev/shm/slime-weights}" ${SERVER_FLAGS:-} ${RUN_FLAGS:-} > "$dir/log" 2>&1 &
  run=$!
  watch "$dir" $run
  wait $run
  code=$?
  echo "$transport: exit code $code after $(($(date +%s) - begin)) s"
  [ $code = 0 ] || tail -25 "$dir/log" | cut -c1-400
  cp "$dir/run/metrics.jsonl" "$dir/" 2>/dev/null; cp -r "$dir/run/servers" "$dir/" 2>/dev/null; rm -rf "${WEIGHTS:-/dev/shm/slime-weights}" "$dir/run/checkpoints" "$dir/run/model"
  grep -a " check " "$dir/log" | head -2
done
python3 "$here/steps.py" "$out"/*/metrics.jsonl
