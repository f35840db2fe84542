#!/bin/bash
# GRPO with the trainer and a real SGLang server on one GPU; the run launches the server, and new weights travel by each transport in turn.
#
#   sglang.sh HOST_BINARY PLUGIN MODEL OUT [STEPS]
#
# PLUGIN is a component or a plugin folder, MODEL an HF directory with a tokenizer. Every run leaves OUT/TRANSPORT/{metrics.jsonl,log,servers/}; a table of them ends the output.
# SGLANG: what launches a server, as a TOML list (default: ["python3", "-m", "sglang.launch_server"]). SERVER_FLAGS, RUN_FLAGS: more flags, like
#   SERVER_FLAGS="--sglang-attention-backend triton --sglang-mem-fraction-static 0.4"    RUN_FLAGS="--lr 1e-4"
# TRANSPORTS: default "disk shared-memory". DEVICE: where the trainer computes, default cuda.
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
for transport in ${TRANSPORTS:-disk shared-memory}; do
  dir=$out/$transport; mkdir -p "$dir"
  begin=$(date +%s)
  # shellcheck disable=SC2086
  "$bin" run "$plugin" --hf-checkpoint "$model" --set model.device="${DEVICE:-cuda}" --prompt-data "$out/prompts.jsonl" --label-key label --num-rollout "$steps" \
    --rollout-batch-size 16 --n-samples-per-prompt 16 --rollout-max-response-len 256 --max-tokens-per-gpu 16384 --save-interval 1000 --set run.dir="$dir/run" \
    --rollout-num-engines 1 --set "rollout.engine_command=${SGLANG:-[\"python3\", \"-m\", \"sglang.launch_server\"]}" --sglang-server-concurrency 256 \
    --update-weight-transport "$transport" --update-weight-disk-dir "${WEIGHTS:-/dev/shm/slime-weights}" ${SERVER_FLAGS:-} ${RUN_FLAGS:-} > "$dir/log" 2>&1
  code=$?
  echo "$transport: exit code $code after $(($(date +%s) - begin)) s"
  [ $code = 0 ] || tail -25 "$dir/log" | cut -c1-400
  cp "$dir/run/metrics.jsonl" "$dir/" 2>/dev/null; cp -r "$dir/run/servers" "$dir/" 2>/dev/null; rm -rf "${WEIGHTS:-/dev/shm/slime-weights}" "$dir/run/checkpoints" "$dir/run/model"
  grep -a " check " "$dir/log" | head -2
done
python3 "$here/steps.py" "$out"/*/metrics.jsonl
