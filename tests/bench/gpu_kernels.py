"""gpu_kernels.py: kernels of kernels/src compiled with NVRTC as the program compiles them, compared with PyTorch in fp32 (f64 for
the optimizer) and timed with events. Needs one Hopper GPU, torch and cuda-bindings; builds nothing of Rust, so a kernel can be
changed and timed in seconds. Prints a line a check and a line a time; percentages are of a device copy.
"""
import ctypes, os, sys
import numpy as np
import torch
from cuda.bindings import driver as cu, nvrtc as nv

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../kernels/src/")
DEV = "cuda"
torch.backends.cuda.matmul.allow_tf32 = False
torch.zeros(1, device=DEV)
SMS = torch.cuda.get_device_properties(0).multi_processor_count
MODULES = {}


def ok(result):
    if not isinstance(result, tuple):
        result = (result,)
    if int(result[0]) != 0:
        raise RuntimeError(str(result[0]))
    rest = result[1:]
    return rest[0] if len(rest) == 1 else rest


def module(path, defines=()):
    key = (path, tuple(defines))
    if key not in MODULES:
        text = (open(ROOT + "cuda/prelude.cuh").read() + open(ROOT + path).read()).encode()
        program = ok(nv.nvrtcCreateProgram(text, b"kernel.cu", 0, [], []))
        options = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"-default-device", b"--ptxas-options=-v"]
        options += [("-D" + d).encode() for d in defines]
        status = nv.nvrtcCompileProgram(program, len(options), options)[0]
        log = b" " * ok(nv.nvrtcGetProgramLogSize(program))
        nv.nvrtcGetProgramLog(program, log)
        if int(status) != 0:
            sys.exit(log.decode())
        if b"serialized" in log:
            print("products of", path, defines, "run one after another")
        image = b" " * ok(nv.nvrtcGetCUBINSize(program))
        nv.nvrtcGetCUBIN(program, image)
        MODULES[key] = ok(cu.cuModuleLoadData(image))
    return MODULES[key]


def function(of, name, shared=0):
    found = ok(cu.cuModuleGetFunction(of, name.encode()))
    if shared > 32 << 10:
        ok(cu.cuFuncSetAttribute(found, cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared))
    return found


class Map:
    """How the bulk copy engine finds boxes of 64 x 64."""

    def __init__(self, x):
        rows, cols = x.shape
        u64, u32 = cu.cuuint64_t, cu.cuuint32_t
        self.map = ok(cu.cuTensorMapEncodeTiled(
            cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x.data_ptr(), [u64(cols), u64(rows)], [u64(cols * 2)],
            [u32(64), u32(64)], [u32(1), u32(1)], cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B, cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))


def launch(kernel, grid, threads, shared, args):
    kept, pointers = [], (ctypes.c_void_p * len(args))()
    for i, arg in enumerate(args):
        if isinstance(arg, Map):
            pointers[i] = arg.map.getPtr()
            continue
        if isinstance(arg, torch.Tensor):
            value = ctypes.c_uint64(arg.data_ptr())
        elif isinstance(arg, int):
            value = ctypes.c_int32(arg)
        else:
            value = ctypes.c_float(arg)
        kept.append(value)
        pointers[i] = ctypes.addressof(value)
    stream = torch.cuda.current_stream().cuda_stream
    ok(cu.cuLaunchKernel(kernel, *grid, threads, 1, 1, shared, stream, ctypes.addressof(pointers), 0))


def ms(call, runs=10, repeats=5):
    call(), call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(runs):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / runs)
    return sorted(times)[len(times) // 2]


def off(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def nans_like(x):
    return torch.full_like(x, float("nan"))


big = torch.randn(131072 * 1024, device=DEV).bfloat16()
other = torch.empty_like(big)
COPY = 2 * big.numel() * 2 / ms(lambda: other.copy_(big)) / 1e6
print(f"copy {COPY:.0f} GB/s")
del big, other


def attention(lengths, query, kv, check, dim=128):
    of = module("attention/hopper.cu", [f"DIM={dim}"])
    tokens, groups = sum(lengths), query + 2 * kv
    qkv, dout = torch.randn(tokens, groups * dim, device=DEV).bfloat16(), torch.randn(tokens, query * dim, device=DEV).bfloat16()
    tiles, start, padded = [], 0, 0
    for n in lengths:
        tiles += [[start, n, row, padded] for row in range(0, n, 128)]
        start, padded = start + n, padded + (n + 127) // 128 * 128
    table = lambda key: torch.tensor(sorted(tiles, key=key), dtype=torch.int32, device=DEV)
    by_keys, by_queries, count = table(lambda t: -t[2]), table(lambda t: t[2] - t[1]), len(tiles)
    out, lse = nans_like(dout), torch.full((query, tokens), float("nan"), device=DEV)
    stats, dqkv, scale = torch.full((2 * query, padded), float("nan"), device=DEV), nans_like(qkv), dim**-0.5
    rows, douts = Map(qkv), Map(dout)
    shared = lambda n: 2048 + n * dim * 2 + 3 * 512
    forward, gradient = shared(128 + 512), shared(256 + 384)
    names = [("forward", forward), ("stats", 0), ("dkv", gradient), ("dq", gradient)]
    kernels = {name: function(of, "hopper_" + name, size) for name, size in names}
    steps = {
        "forward": lambda: launch(kernels["forward"], (min(SMS, count * query), 1, 1), 384, forward,
                                  [rows, by_keys, out, lse, count, tokens, query, kv, scale]),
        "stats": lambda: launch(kernels["stats"], (count, query, 1), 256, 0, [dout, out, lse, by_keys, stats, tokens, padded, query]),
        "dkv": lambda: launch(kernels["dkv"], (kv, count, 1), 384, gradient,
                              [rows, douts, stats, by_queries, dqkv, padded, query, kv, scale]),
        "dq": lambda: launch(kernels["dq"], (query, count, 1), 384, gradient,
                             [rows, douts, stats, by_keys, dqkv, padded, query, kv, scale]),
    }
    for step in steps.values():
        step()
    torch.cuda.synchronize()
    if check:
        x, parts, at = qkv.float().view(tokens, groups, dim).requires_grad_(True), [], 0
        for n in lengths:
            part, at = x[at:at + n], at + n
            q = part[:, :query].transpose(0, 1)
            k, v = (part[:, a:a + kv].transpose(0, 1).repeat_interleave(query // kv, 0) for a in (query, query + kv))
            hidden = torch.ones(n, n, device=DEV, dtype=torch.bool).triu(1)
            p = (q @ k.transpose(1, 2) * scale).masked_fill(hidden, float("-inf")).softmax(-1)
            parts.append((p @ v).transpose(0, 1).reshape(n, -1))
        torch.cat(parts).backward(dout.float())
        want, first = x.grad.view(tokens, -1), dqkv.clone()
        steps["dkv"](), steps["dq"]()
        torch.cuda.synchronize()
        cuts = [0, query * dim, (query + kv) * dim, groups * dim]
        errors = [f"{off(dqkv[:, a:b], want[:, a:b]):.1e}" for a, b in zip(cuts, cuts[1:])]
        print("attention", lengths, query, kv, "dq dk dv", *errors, "same bits", torch.equal(first.view(torch.int16), dqkv.view(torch.int16)))
        return
    product = sum(n * n / 2 for n in lengths) * query * dim * 2
    for name, products in (("forward", 2), ("dkv", 4), ("dq", 3)):
        time = ms(steps[name])
        print(f"attention {len(lengths)} x {lengths[0]} {query}/{kv} {name} {time:.3f} ms {products * product / time / 1e9:.0f} TFLOP/s")


def rotation(tokens, query, kv, dim=128):
    of = module("qk_norm_rope/kernel.cu", [f"DIM={dim}", f"ROT={dim}", "INTERLEAVED=0", "LANES=16", f"NQ={query}", f"NKV={kv}"])
    heads = query + kv
    x = torch.randn(tokens, (heads + kv) * dim, device=DEV).bfloat16()
    dy, y, dx = torch.randn_like(x), nans_like(x), nans_like(x)
    positions = (torch.arange(tokens, device=DEV) % 4096).int()
    angles = torch.arange(4096, device=DEV)[:, None] * 1e6 ** (-torch.arange(0, dim, 2, device=DEV).double() / dim)[None]
    cos, sin = angles.cos().float(), angles.sin().float()
    wq, wk = ((torch.rand(dim, device=DEV) + 0.5).bfloat16() for _ in range(2))
    stat, blocks = torch.empty(tokens, heads, device=DEV), min((tokens + 3) // 4, SMS * 3)
    part = torch.empty(blocks, 2 * dim, device=DEV)
    there, back = function(of, "qk_norm_rope"), function(of, "qk_norm_rope_backward")
    forward = lambda: launch(there, ((tokens + 3) // 4, 1, 1), 256, 0, [x, y, positions, cos, sin, wq, wk, stat, tokens, 1e-6])
    backward = lambda: launch(back, (blocks, 1, 1), 256, 0, [dy, x, dx, positions, cos, sin, wq, wk, stat, part, tokens])
    forward(), backward()
    whole = x.float().view(tokens, -1, dim).requires_grad_(True)
    w = torch.stack([wq.float()] * query + [wk.float()] * kv).requires_grad_(True)
    h = whole[:, :heads]
    a, b = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w).chunk(2, -1)
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    want = torch.cat([torch.cat([a * c - b * s, b * c + a * s], -1), whole[:, heads:]], 1)
    want.backward(dy.float().view(tokens, -1, dim))
    sums, dw = part.sum(0), (w.grad[:query].sum(0), w.grad[query:].sum(0))
    errors = [off(y.view(tokens, -1, dim), want.detach()), off(dx.view(tokens, -1, dim), whole.grad), off(sums[:dim], dw[0]), off(sums[dim:], dw[1])]
    row, rotated = x.numel() * 2, tokens * heads * dim * 2
    shares = [100 * bytes / ms(call) / 1e6 / COPY for bytes, call in ((2 * row, forward), (2 * row + rotated, backward))]
    print(f"qk_norm_rope {tokens} {query}/{kv}:", *(f"{e:.1e}" for e in errors), "  %.0f %% and %.0f %% of a copy" % tuple(shares))


def table(cuts, tensors, chunk, decay=0.1):
    """Parameters between `cuts`, each from a multiple of 8 on, as adamw/kernel.cu reads them, and their blocks."""
    rows, blocks = np.zeros((len(cuts) - 1, 8), dtype=np.int64), 0
    for i, (low, high) in enumerate(zip(cuts, cuts[1:])):
        low = (low + 7) // 8 * 8
        for j, x in enumerate(tensors):
            rows[i, j] = x.data_ptr() + low * x.element_size()
        rows[i, 5], rows[i, 6], rows[i, 7] = high - low, blocks, np.array([decay, 0], dtype=np.float32).view(np.int64)[0]
        blocks += (high - low + chunk - 1) // chunk
    return torch.from_numpy(rows).to(DEV), blocks


def optimizer(n=150_000_000, few=2048, chunk=16384):
    of = module("adamw/kernel.cu")
    full, compact, squares = (function(of, name) for name in ("adamw", "adamw_compact", "sum_squares_part"))
    grad, m, v = torch.randn(n, device=DEV), torch.zeros(n, device=DEV), torch.zeros(n, device=DEV)
    master = torch.randn(n, device=DEV)
    weight, start = master.bfloat16(), master.double()
    cuts = [0, 7, 1000, 1000 + 4096 * 1024, 60_000_000, n]
    rows, blocks = table(cuts, [grad, m, v, master, weight], few)
    rule = [1e-3, 0.9, 0.98, 1e-8, 1 / (1 - 0.9), 1 / (1 - 0.98), 0.5]
    step = lambda: launch(full, (blocks, 1, 1), 256, 0, [rows, len(cuts) - 1] + rule)
    step()
    g = grad.double() * 0.5
    want = start - 1e-3 * (g / ((g * g).sqrt() + 1e-8) + 0.1 * start)
    inside = torch.ones(n, dtype=torch.bool, device=DEV)
    for low in cuts[:-1]:
        inside[low:(low + 7) // 8 * 8] = False
    print(f"adamw: {off(master[inside], want[inside]):.1e}, weights the masters rounded: {torch.equal(weight[inside], master[inside].bfloat16())}")
    del g, want, start
    print("adamw %.0f %% of a copy" % (100 * 30 * n / ms(step) / 1e6 / COPY))
    few_blocks = (n + chunk - 1) // chunk
    part, one = torch.empty(few_blocks, device=DEV, dtype=torch.double), torch.tensor([[grad.data_ptr(), n, 0]], device=DEV)
    add = lambda: launch(squares, (few_blocks, 1, 1), 256, 0, [one, 1, part])
    add()
    error = abs(part.sum().item() / grad.double().pow(2).sum().item() - 1)
    print("sum of squares: %.1e, %.0f %% of a copy" % (error, 100 * 4 * n / ms(add) / 1e6 / COPY))
    short = [torch.zeros(n, device=DEV, dtype=torch.bfloat16) for _ in range(2)] + [torch.zeros(n, device=DEV, dtype=torch.int16)]
    rows, blocks = table([0, n // 8 * 8], [grad, *short, weight], chunk)
    time = ms(lambda: launch(compact, (blocks, 1, 1), 256, 0, [rows, 1] + rule + [3]))
    print("adamw, 16-bit states: %.0f %% of a copy" % (100 * 20 * n / time / 1e6 / COPY))


def drift(n=1 << 22, steps=100):
    """States in 16 bits against f64 over many steps, with a β₂ whose changes are smaller than a bf16's last place."""
    kernel = function(module("adamw/kernel.cu"), "adamw_compact")
    m, v = (torch.zeros(n, device=DEV, dtype=torch.bfloat16) for _ in range(2))
    rest, weight, grad = torch.zeros(n, device=DEV, dtype=torch.int16), torch.randn(n, device=DEV).bfloat16(), torch.empty(n, device=DEV)
    want, first, second = weight.double(), torch.zeros(n, device=DEV).double(), torch.zeros(n, device=DEV).double()
    rows, blocks = table([0, n], [grad, m, v, rest, weight], 16384)
    for s in range(1, steps + 1):
        grad.copy_(torch.randn(n, device=DEV) * 1e-3 + 2e-4)
        c1, c2 = 1 / (1 - 0.9**s), 1 / (1 - 0.999**s)
        launch(kernel, (blocks, 1, 1), 256, 0, [rows, 1, 1e-4, 0.9, 0.999, 1e-8, c1, c2, 1.0, s])
        g = grad.double()
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
        want = want - 1e-4 * (first * c1 / ((second * c2).sqrt() + 1e-8) + 0.1 * want)
    torch.cuda.synchronize()
    master = ((weight.view(torch.int16).int() << 16) + rest.int()).view(torch.float32)
    print(f"16-bit states, {steps} steps: master {off(master, want):.1e}, m {off(m, first):.1e}, v {off(v, second):.1e},"
          f" mean of v {(v.double().mean() / second.mean()).item():.4f} of f64's")


for lengths, query, kv in [([300, 1, 257, 64, 65, 128, 129, 700], 8, 2), ([130, 5, 1000], 4, 4)]:
    attention(lengths, query, kv, check=True)
for lengths, query, kv in [([4096] * 4, 16, 8), ([4096] * 4, 32, 8), ([4096] * 8, 16, 8)]:
    attention(lengths, query, kv, check=False)
for tokens, query, kv in [(8192 + 5, 16, 8), (16384, 32, 8), (32768, 16, 8)]:
    rotation(tokens, query, kv)
optimizer()
drift()
