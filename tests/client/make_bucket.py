#!/usr/bin/env python3
"""Writes bucket.json: the pickle that names a bucket of tensors in shared memory, built by opcode in plain Python and
read back by Python's own unpickler against stand-ins for torch and sglang. A server took these bytes (README).

    make_bucket.py > bucket.json
"""

import io
import json
import pickle
import struct


def text(s):
    b = s.encode()
    return b"\x8c" + bytes([len(b)]) + b if len(b) < 256 else b"X" + struct.pack("<I", len(b)) + b


def integer(n):
    return pickle.dumps(n, 4)[2:-1] if n < 256 else pickle.dumps(n, 4)[11:-1]  # without protocol, frame and stop


def name(module, attribute):
    return text(module) + text(attribute) + b"\x93"


def tup(*items):
    return b"(" + b"".join(items) + b"t"


def call(function, *arguments):
    return function + tup(*arguments) + b"R"


def short_bytes(b):
    return b"C" + bytes([len(b)]) + b


def bucket(file, num_bytes, tensors):
    reductions = "torch.multiprocessing.reductions"
    storage = call(name(reductions, "rebuild_storage_filename"), name("torch.storage", "UntypedStorage"), short_bytes(b""), short_bytes(b"/" + file.encode()), integer(num_bytes))
    typed = call(name(reductions, "rebuild_typed_storage"), storage, name("torch", "uint8"))
    flat = call(name(reductions, "rebuild_tensor"), name("torch", "Tensor"), typed, tup(integer(0), tup(integer(num_bytes)), tup(integer(1)), b"\x89"))
    out, at = b"\x80\x04}(" + text("flattened_tensor") + flat + text("metadata") + b"](", 0
    for t in tensors:
        size = t["end"] - t["start"]
        state = [("name", text(t["name"])), ("shape", tup(*map(integer, t["shape"]))), ("dtype", name("torch", TORCH[t["dtype"]])), ("start_idx", integer(at)), ("end_idx", integer(at + size)), ("numel", integer(size))]
        out += name("sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata") + b")\x81}(" + b"".join(text(k) + v for k, v in state) + b"ub"
        at += size
    return out + b"eu."


TORCH = {"F32": "float32", "BF16": "bfloat16"}


class Stand:
    """Anything torch or sglang would be; remembers how it was called."""

    def __init__(self, *path):
        self.path = path

    def __call__(self, *arguments):
        return (self.path[-1], *arguments)


class Metadata:
    pass


class Unpickler(pickle.Unpickler):
    def find_class(self, module, attribute):
        return Metadata if attribute == "FlattenedTensorMetadata" else Stand(module, attribute)


def main():
    tensors = [
        dict(name="model.embed_tokens.weight", dtype="BF16", shape=[49152, 576], start=100, end=100 + 49152 * 576 * 2),
        dict(name="model.layers.0." + "x" * 300, dtype="F32", shape=[300, 70000], start=7, end=7 + 300 * 70000 * 4),
        dict(name="model.norm.weight", dtype="F32", shape=[5], start=0, end=20),
        dict(name="large", dtype="BF16", shape=[1 << 31], start=0, end=1 << 32),
    ]
    num_bytes = sum(t["end"] - t["start"] for t in tensors)
    made = bucket("slime-1-2-0.0", num_bytes, tensors)
    read = Unpickler(io.BytesIO(made)).load()
    function, _, storage, (offset, size, stride, grad) = read["flattened_tensor"]
    assert function == "rebuild_tensor" and (offset, size, stride, grad) == (0, (num_bytes,), (1,), False)
    assert storage[1][2:] == (b"", b"/slime-1-2-0.0", num_bytes), storage
    at = 0
    for t, m in zip(tensors, read["metadata"], strict=True):
        assert (m.name, m.shape, m.dtype.path) == (t["name"], tuple(t["shape"]), ("torch", TORCH[t["dtype"]]))
        assert (m.start_idx, m.end_idx, m.numel) == (at, at + t["end"] - t["start"], t["end"] - t["start"])
        at = m.end_idx
    print(json.dumps(dict(name="slime-1-2-0.0", num_bytes=num_bytes, tensors=tensors, pickle=made.hex()), indent=1))


if __name__ == "__main__":
    main()
