"""PyTorch FSDP2 on the GPUs of this host, and the bandwidth of NCCL's collectives through torch: the peer of
`slime-trainer`'s example `nccl`.

    python3 several_gpus.py MODEL LENGTH SEQUENCES MICRO [--gpus 2] [--checkpoint]
    python3 several_gpus.py bandwidth

MODEL is 0.6B, 1.7B, 4B or 8B of Qwen3's shapes with random weights; every GPU trains on SEQUENCES sequences of LENGTH
tokens a step, MICRO at once. Layers are compiled and each is a unit of `fully_shard`, with bf16 parameters, sums of
gradients in fp32 and AdamW (fused) on fp32 shards; weights stay gathered between forward and backward, gradients are
reduced in the last micro-batch only; attention is cuDNN's, the head a chunked cross-entropy that makes its gradients in the
forward. `--checkpoint` recomputes layers. A line of JSON a measurement, medians.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
import torch.nn.functional as F

# hidden, feed-forward, layers, query heads, tied
SHAPES = {
    "tiny": (64, 128, 2, 4, True),
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
}
VOCAB = 151_936
CHUNK = 4096


def chunk_loss(logits, target, share):
    wide = logits.float()
    total = torch.logsumexp(wide, 1, keepdim=True)
    own = wide.gather(1, target[:, None])
    slope = torch.exp(wide - total)
    hot = torch.arange(wide.shape[1], device=wide.device)[None] == target[:, None]
    return (total - own).sum() * share, ((slope - hot.float()) * share).to(logits.dtype)


class Head(torch.autograd.Function):
    """Cross-entropy in chunks of rows; the gradients are made at once, so that no logits are kept."""

    loss = staticmethod(chunk_loss)

    @staticmethod
    def forward(ctx, hidden, weight, target):
        dhidden, dweight = torch.empty_like(hidden), None
        loss = torch.zeros((), device=hidden.device)
        for at in range(0, len(hidden), CHUNK):
            rows = hidden[at : at + CHUNK]
            part, slope = Head.loss(F.linear(rows, weight), target[at : at + CHUNK], 1.0 / len(hidden))
            loss += part
            torch.mm(slope, weight, out=dhidden[at : at + CHUNK])
            dweight = slope.t() @ rows if dweight is None else torch.addmm(dweight, slope.t(), rows, out=dweight)
        ctx.save_for_backward(dhidden, dweight)
        return loss

    @staticmethod
    def backward(ctx, slope):
        dhidden, dweight = ctx.saved_tensors
        return dhidden.mul_(slope), dweight.mul_(slope), None


class Policy(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        from transformers import Qwen3Config, Qwen3ForCausalLM

        hidden, ffn, layers, heads, tied = SHAPES[name]
        tiny = name == "tiny"
        config = Qwen3Config(
            vocab_size=1000 if tiny else VOCAB,
            hidden_size=hidden,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=2 if tiny else 8,
            head_dim=16 if tiny else 128,
            tie_word_embeddings=tied,
            max_position_embeddings=40960,
            rope_theta=1e6,
            use_cache=False,
            attn_implementation="sdpa",
        )
        self.lm = Qwen3ForCausalLM(config)

    def forward(self, ids, target):
        hidden = self.lm.model(input_ids=ids, use_cache=False).last_hidden_state
        return Head.apply(hidden.flatten(0, 1), self.lm.lm_head.weight, target.flatten())


def train(rank, args, device):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    with torch.device(device):
        policy = Policy(args.what)
    if args.checkpoint:
        policy.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy.train()
    how = dict(
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        reshard_after_forward=False,
    )
    for layer in policy.lm.model.layers:
        if device.type == "cuda":
            layer.compile()
        fully_shard(layer, **how)
    fully_shard(policy, **how)
    if device.type == "cuda":
        Head.loss = staticmethod(torch.compile(chunk_loss))
        for set_on, on in (
            (torch.backends.cuda.enable_cudnn_sdp, True),
            (torch.backends.cuda.enable_flash_sdp, False),
            (torch.backends.cuda.enable_math_sdp, False),
            (torch.backends.cuda.enable_mem_efficient_sdp, False),
        ):
            set_on(on)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    chance = torch.Generator(device=device).manual_seed(rank)
    vocab = policy.lm.config.vocab_size
    micros = args.sequences // args.micro
    ids = torch.randint(0, vocab, (micros, args.micro, args.length), device=device, generator=chance)
    seconds = []
    for step in range(args.steps + 2):
        dist.barrier()
        began = time.perf_counter()
        for micro in range(micros):
            policy.set_requires_gradient_sync(micro + 1 == micros)
            loss = policy(ids[micro], torch.roll(ids[micro], -1, 1)) / micros
            loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
        if step >= 2:
            seconds.append(time.perf_counter() - began)
    if rank == 0:
        step = statistics.median(seconds)
        tokens = args.gpus * args.sequences * args.length
        peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0
        said = {"model": args.what, "peer": "fsdp2", "gpus": args.gpus, "sequences": args.gpus * args.sequences}
        said |= {"length": args.length, "step_s": round(step, 4), "tokens_per_s": round(tokens / step)}
        print(json.dumps(said | {"peak_gib": round(peak, 1), "loss": round(float(loss.detach()) * micros, 3)}), flush=True)


def bandwidth(rank, args, device):
    n = args.gpus
    # Bytes that cross a link for each byte of the larger buffer, as nccl-tests count them.
    kinds = {
        "all_reduce": (2 * (n - 1) / n, lambda whole, part: dist.all_reduce(whole)),
        "all_gather": ((n - 1) / n, lambda whole, part: dist.all_gather_into_tensor(whole, part)),
        "reduce_scatter": ((n - 1) / n, lambda whole, part: dist.reduce_scatter_tensor(part, whole)),
    }
    for mib in (1, 16, 256, 1024):
        whole = torch.zeros(mib * 2**20 // 4, device=device)
        part = torch.zeros(len(whole) // n, device=device)
        for kind, (factor, call) in kinds.items():
            for _ in range(5):
                call(whole, part)
            torch.cuda.synchronize()
            dist.barrier()
            began = time.perf_counter()
            for _ in range(20):
                call(whole, part)
            torch.cuda.synchronize()
            took = (time.perf_counter() - began) / 20
            if rank == 0:
                said = {"peer": "torch", "call": kind, "mib": mib, "us": round(took * 1e6)}
                print(json.dumps(said | {"bus_gb_s": round(factor * mib * 2**20 / took / 1e9, 1)}), flush=True)


def work(rank, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), RANK=str(rank), WORLD_SIZE=str(args.gpus))
    on_gpus = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    (bandwidth if args.what == "bandwidth" else train)(rank, args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("what", choices=[*SHAPES, "bandwidth"])
    words.add_argument("length", nargs="?", type=int, default=4096)
    words.add_argument("sequences", nargs="?", type=int, default=2)
    words.add_argument("micro", nargs="?", type=int, default=2)
    words.add_argument("--gpus", type=int, default=2)
    words.add_argument("--steps", type=int, default=4)
    words.add_argument("--port", type=int, default=29577)
    words.add_argument("--checkpoint", action="store_true")
    found = words.parse_args()
    processes.spawn(work, (found,), nprocs=found.gpus)
