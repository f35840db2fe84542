#!/usr/bin/env bash
# Push and pull against a real registry, Debian's docker-registry, on the loopback:
#
#     apt-get download docker-registry && dpkg -x docker-registry_*.deb registry
#     tests/registry/push_pull.sh path/to/slime-host registry/usr/bin/docker-registry component.wasm
#
# What must hold: what is pulled is what was pushed, by tag and by digest; the digest that `push` prints pins it; a blob
# that was changed in the registry's store is refused and nothing is written; a name that is not there is an error.
set -euo pipefail
host=$(realpath "$1") registry=$(realpath "$2") component=$(realpath "$3")
port=${PORT:-5055}
dir=$(mktemp -d)
cd "$dir"
printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s/data}}\nhttp: {addr: "127.0.0.1:%s"}\n' "$dir" "$port" > config.yml
"$registry" serve config.yml > registry.log 2>&1 &
server=$!
trap 'kill $server; rm -rf "$dir"' EXIT
for _ in $(seq 100); do curl -sf "http://127.0.0.1:$port/v2/" > /dev/null && break; sleep 0.1; done

fail() { echo "✗ $*"; exit 1; }
name=127.0.0.1:$port/plugins/tried
pinned=$("$host" plugin push "$component" "$name:0.1.0")
echo "pushed     $pinned"
[[ $pinned == "$name@sha256:"* ]] || fail "push must print the reference that pins it"

"$host" plugin pull "$name:0.1.0" --out by-tag.wasm > /dev/null
"$host" plugin pull "$pinned" --out by-digest.wasm > /dev/null
cmp by-tag.wasm "$component" && cmp by-digest.wasm "$component" || fail "what is pulled is not what was pushed"
echo "✓ by tag and by digest, byte for byte"

again=$("$host" plugin push "$component" "$name:again")
[[ $again == "$pinned" ]] || fail "the same component has another reference: $again"
echo "✓ the same component, the same reference"

curl -sf -H 'Accept: application/vnd.oci.image.manifest.v1+json' "http://127.0.0.1:$port/v2/plugins/tried/manifests/0.1.0" > manifest.json
python3 - manifest.json "$component" <<'PY'
import hashlib, json, sys
manifest = json.load(open(sys.argv[1]))
bytes_ = open(sys.argv[2], "rb").read()
assert manifest["config"]["mediaType"] == "application/vnd.wasm.config.v0+json", manifest
(layer,) = manifest["layers"]
assert layer["mediaType"] == "application/wasm" and layer["size"] == len(bytes_), layer
assert layer["digest"] == "sha256:" + hashlib.sha256(bytes_).hexdigest(), layer
PY
echo "✓ the manifest is the CNCF's for WebAssembly"

if "$host" plugin pull "$name@sha256:$(printf '0%.0s' {1..64})" --out none.wasm 2> error; then fail "pulled what is not there"; fi
[[ ! -e none.wasm ]] || fail "a file was written"
echo "✓ what is not there is an error"

export XDG_CACHE_HOME=$dir/cache
"$host" plugin check "$pinned" | grep -q '^✓ tried ' || fail "a run cannot take it by its reference"
echo "✓ a run takes it by its reference"

digest=$(sha256sum "$component" | cut -d' ' -f1)
blob=$(find data -path "*$digest/data" | head -1)
printf 'X' | dd of="$blob" bs=1 seek=100 conv=notrunc status=none
for reference in "$name:0.1.0" "$pinned"; do
  if "$host" plugin pull "$reference" --out torn.wasm 2> error; then fail "a changed blob was taken"; fi
  [[ ! -e torn.wasm ]] || fail "a file was written"
done
echo "✓ a changed blob is refused"
