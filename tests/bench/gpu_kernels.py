"""gpu_kernels.py: the rotation's and the optimizer's kernels of kernels/src, compiled with NVRTC as the program compiles them, compared with PyTorch in fp32 (f64 for
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


def module(path, defines=(), headers=()):
    key = (path, tuple(defines))
    if key not in MODULES:
        text = "".join(open(ROOT + file).read() for file in ("cuda/prelude.cuh", *headers, path)).encode()
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


def launch(kernel, grid, threads, shared, args):
    kept, pointers = [], (ctypes.c_void_p * len(args))()
    for i, arg in enumerate(args):
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


def copied(size):
    """GB/s of a copy that reads and writes `size` bytes in all."""
    x = torch.randn(size // 4, device=DEV).bfloat16()
    y = torch.empty_like(x)
    return size / ms(lambda: y.copy_(x)) / 1e6


COPY = copied(1 << 29)
print(f"copy {COPY:.0f} GB/s")


def rotation(tokens, query, kv, dim=128, slots=2, per_sm=3):
    defines = [f"DIM={dim}", f"ROT={dim}", "INTERLEAVED=0", "LANES=16", f"NQ={query}", f"NKV={kv}", f"SLOTS={slots}"]
    of = module("qk_norm_rope/kernel.cu", defines, ["cuda/mma.cuh"])
    heads = query + kv
    x = torch.randn(tokens, (heads + kv) * dim, device=DEV).bfloat16()
    dy, y, dx = torch.randn_like(x), nans_like(x), nans_like(x)
    positions = (torch.arange(tokens, device=DEV) % 4096).int()
    angles = torch.arange(4096, device=DEV)[:, None] * 1e6 ** (-torch.arange(0, dim, 2, device=DEV).double() / dim)[None]
    cos, sin = angles.cos().float(), angles.sin().float()
    wq, wk = ((torch.rand(dim, device=DEV) + 0.5).bfloat16() for _ in range(2))
    stat, turns = torch.empty(tokens, heads, device=DEV), (tokens + 3) // 4
    rounds = -(-turns // (SMS * per_sm))
    blocks, shared = -(-turns // rounds), slots * 2 * 256 * 16
    part = torch.empty(blocks, 2 * dim, device=DEV)
    there, back = function(of, "qk_norm_rope"), function(of, "qk_norm_rope_backward", shared)
    forward = lambda: launch(there, ((tokens + 3) // 4, 1, 1), 256, 0, [x, y, positions, cos, sin, wq, wk, stat, tokens, 1e-6])
    backward = lambda: launch(back, (blocks, 1, 1), 256, shared, [dy, x, dx, positions, cos, sin, wq, wk, stat, part, tokens])
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
    print(f"qk_norm_rope {tokens} {query}/{kv}:", *(f"{e:.1e}" for e in errors), "  %.0f %% and %.0f %% of a copy" % tuple(shares),
          "(one of as many bytes: %.0f %% and %.0f %%)" % tuple(100 * copied(size) / COPY for size in (2 * row, 2 * row + rotated)))


def table(cuts, tensors, chunk, decay=0.1):
    """Parameters between `cuts`, each from a multiple of 8 on, as adamw/kernel.cu reads them, and their blocks."""
    rows, blocks = np.zeros((len(cuts) - 1, 9), dtype=np.int64), 0
    for i, (low, high) in enumerate(zip(cuts, cuts[1:])):
        low = (low + 7) // 8 * 8
        for j, x in enumerate(tensors):
            rows[i, j] = x.data_ptr() + low * x.element_size()
        rows[i, 5], rows[i, 6], rows[i, 7] = high - low, blocks, np.array([decay, 0], dtype=np.float32).view(np.int64)[0]
        rows[i, 8] = low
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


for tokens, query, kv in [(8192 + 5, 16, 8), (8192, 32, 8), (16384, 32, 8), (32768, 16, 8)]:
    rotation(tokens, query, kv)
optimizer()
drift()
