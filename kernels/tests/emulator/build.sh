#!/bin/sh
# Build emulated GPUs into a folder and print the environment in which programs find it:
#
#   eval "$(kernels/tests/emulator/build.sh FOLDER)"
#
# Kernels then run on the CPU as they are written, those for Hopper excepted: what a card would compute, many times slower. It finds
# wrong arithmetic and missing waits for asynchronous copies, not races, and says nothing about speed. There are four, and threads of one
# process may meet in NCCL.
set -e
source=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/lib64" "$1/kernels"
folder=$(cd "$1" && pwd)
[ "$(uname -m)" = x86_64 ] || { echo "the emulator switches threads in x86-64's own words" >&2; exit 1; }
command -v c++ > /dev/null || { echo "the emulator needs a C++ compiler, c++" >&2; exit 1; }
stamp=$( (echo "$folder"; cat "$source"/*.h "$source"/*.cpp) | cksum | cut -d' ' -f1)
library="$folder/lib64/libcuda.so.1"
if [ "$(cat "$folder/stamp" 2> /dev/null)" != "$stamp" ]; then
  c++ -std=c++17 -O2 -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$library.$$" "$source"/*.cpp -ldl \
    -DEMULATOR_FOLDER="\"$folder\"" -DEMULATOR_STAMP="$((stamp % 1000000))" >&2
  cp "$source/device.h" "$folder/"
  mv "$library.$$" "$library"  # another process may have it open
  for name in libnvrtc.so.13 libnvrtc-builtins.so.13.0 libcublasLt.so.13 libnccl.so.2; do
    ln -sf libcuda.so.1 "$folder/lib64/$name"
  done
  echo "$stamp" > "$folder/stamp"
fi
echo "export CUDA_HOME='$folder' XDG_CACHE_HOME='$folder/cache' LD_LIBRARY_PATH='$folder/lib64'"
