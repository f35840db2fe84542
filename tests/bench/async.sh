#!/bin/bash
# Fully asynchronous against synchronous, on an engine that is slowed down: time to the same reward, and how old tokens were.
#
#   [PLUGIN=arith.wasm] tests/bench/async.sh slime-host OUT_DIR [STEPS] [DELAY_MS] [REWARD]
#
# Both runs learn the demo's task from one warmed-up model, on `slime-host serve` behind slow_engine.py, which holds back every token
# by DELAY_MS: the shape of a large model whose decoding is bound by latency. Ports 8860 and 8861 must be free.
set -e
host=$1 out=$2 steps=${3:-80} delay=${4:-150} reward=${5:-0.9} plugin=${PLUGIN:-plugins/arith}
here=$(dirname "$0")
mkdir -p "$out"
if [ ! -d "$out/warm/model" ]; then
  "$host" sft "$plugin" -c configs/demo.toml --set run.dir="$out/warm" > "$out/warm.log" 2>&1
fi
run() {
  name=$1
  shift
  "$host" serve --model "$out/warm/model" --port 8860 > "$out/$name.engine.log" 2>&1 &
  engine=$!
  python3 "$here/slow_engine.py" --listen 8861 --engine 127.0.0.1:8860 --delay-ms "$delay" > "$out/$name.relay.log" 2>&1 &
  relay=$!
  trap 'kill $engine $relay 2> /dev/null' EXIT
  for _ in $(seq 100); do
    curl -sf http://127.0.0.1:8861/health > /dev/null && break
    sleep 0.3
  done
  "$host" run "$plugin" -c "$here/async.toml" --hf-checkpoint "$out/warm/model" --num-rollout "$steps" --set run.dir="$out/$name" \
    --rollout-external-engine-addrs 127.0.0.1:8861 "$@" > "$out/$name.log" 2>&1
  kill $engine $relay
  wait $engine $relay 2> /dev/null || true
}
[ -d "$out/sync/model" ] || run sync
[ -d "$out/async/model" ] || run async --set rollout.max_lag=2 --set rollout.fully_async=true
python3 "$here/async_ratio.py" "$out/sync" "$out/async" "$reward"
python3 "$here/curves.py" "$out/async.svg" sync="$out/sync" "fully async, max_lag 2=$out/async" --x seconds \
  --title "reward over wall time, every token held back by $delay ms"
