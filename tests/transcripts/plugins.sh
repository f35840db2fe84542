#!/usr/bin/env bash
# Makes docs/book/plugin-transcripts.md: a plugin in every language, from an empty folder to a measured component.
#
#     tests/transcripts/plugins.sh path/to/slime-host > docs/book/plugin-transcripts.md
#
# Needs on the path what the page says it needs: cargo with wasm32-wasip2, componentize-py, componentize-qjs, zig.
# A step that fails ends the script, so a page that was written is a page that ran.
set -euo pipefail
host=$(realpath "$1")
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
cd "$empty"
slime-host() { "$host" "$@"; }

# Show a command and what it says; times and places that differ from run to run are left as they are, digests cut.
step() {
  echo "$ $*"
  "$@" 2>/dev/null | sed -e "s#$empty/##g" -e 's/\(sha256:[0-9a-f]\{12\}\)[0-9a-f]*/\1…/'
}

cat <<'PAGE'
# Plugins, from an empty folder

Written by `tests/transcripts/plugins.sh`, which runs every command below in an empty folder. The costs are of a machine
with two cores that did other work meanwhile; [performance](../performance.md) has those of an idle one.
PAGE

section() {
  local title=$1 folder=$2 lang=$3 needs=$4 file=$5
  printf '\n## %s\n\nNeeds: %s\n\n```console\n' "$title" "$needs"
  step slime-host plugin new "$folder" --lang "$lang" --world verifier
  echo "$ cat $folder/$file"
  cat "$folder/$file"
  step slime-host plugin build "$folder"
  step slime-host plugin test "$folder"
  step slime-host plugin inspect "$folder" | head -8
  step slime-host plugin bench "$folder" --seconds 4
  echo '```'
}

section Rust mine-rust rust '`rustup target add wasm32-wasip2`' src/lib.rs
section C mine-c c '`pip install ziglang==0.17.1`' plugin.c
section JavaScript mine-js js '`npm install --global componentize-qjs@0.4.5`' plugin.js
section Python mine-python python '`pip install componentize-py==0.25.1`' plugin.py

printf '\n## Other worlds\n\n```console\n'
for world in generator generator-async filter shaper group-verifier source tool; do
  step slime-host plugin new "a-$world" --world "$world"
  step slime-host plugin test "a-$world"
done
step slime-host plugin new a-python-generator-async --lang python --world generator-async
step slime-host plugin test a-python-generator-async
echo '```'
