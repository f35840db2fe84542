"""megatron-core on two GPUs of this host that hold one model together: the peer for tensor and pipeline parallelism.

    python3 several_gpus_megatron.py MODEL LAYOUT LENGTH SEQUENCES MICRO [--first N] [--steps 3] [--port P]

MODEL is 0.6B, 1.7B, 4B or 8B of Qwen3's shapes with random weights; a step trains on SEQUENCES sequences of LENGTH tokens,
MICRO at once. LAYOUT is `tp2` (tensor and sequence parallel) or `pp2` (1F1B without interleaving; `--first N` puts N layers
in the first stage, by default half). Layers are megatron-core's local ones, without TransformerEngine or apex: SwiGLU and
bias-dropout-add are fused by `torch.compile`, RoPE and norms are not; attention is cuDNN's through torch, the head
megatron's "native" fused cross-entropy. Parameters are bf16; gradients are made in bf16 and summed over micro-batches in
fp32 (megatron's `DistributedDataParallel`), then clipped, and AdamW (fused) works on fp32 masters. A line of JSON; `step_s`
is the median after two steps of warm-up, `peak_gib` the larger GPU's, `loss` the last step's.
"""

import argparse
import contextlib
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import param_is_not_shared
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from several_gpus import SHAPES, VOCAB

GPUS = 2


class Norm(torch.nn.RMSNorm):
    """RMSNorm; megatron sums its gradient over the ranks that share a sequence (its own wrapper refuses to)."""

    def __init__(self, config, hidden_size, eps):
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel


class Attention(torch.nn.Module):
    def __init__(self, **_):
        super().__init__()

    def forward(self, query, key, value, *_, **__):
        q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))  # from length, batch, heads, width
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.permute(2, 0, 1, 3).flatten(2)


def without_cuda():
    """Points megatron's hard-coded CUDA at the CPU, for a smoke test."""
    zeros = torch.zeros
    torch.zeros = lambda *size, **how: zeros(*size, **how | {"device": "cpu"})
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()


def build(args, device):
    hidden, ffn, layers, heads, tied = SHAPES[args.model]
    tiny, tensor = args.model == "tiny", args.layout == "tp2"
    split = dict(tensor_model_parallel_size=GPUS if tensor else 1, pipeline_model_parallel_size=1 if tensor else GPUS)
    parallel_state.initialize_model_parallel(**split, create_gloo_process_groups=False)
    if device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(1)
    if args.first:
        split |= dict(num_layers_in_first_pipeline_stage=args.first)
        split |= dict(num_layers_in_last_pipeline_stage=layers - args.first)
    shape = dict(num_layers=layers, hidden_size=hidden, ffn_hidden_size=ffn, num_attention_heads=heads)
    shape |= dict(num_query_groups=2 if tiny else 8, kv_channels=16 if tiny else 128, qk_layernorm=True)
    shape |= dict(normalization="RMSNorm", layernorm_epsilon=1e-6, add_bias_linear=False, gated_linear_unit=True)
    shape |= dict(activation_func=F.silu, hidden_dropout=0.0, attention_dropout=0.0)
    how = dict(bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, sequence_parallel=tensor)
    how |= dict(bias_activation_fusion=True, bias_dropout_fusion=True, gradient_accumulation_fusion=False)
    how |= dict(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="native")
    how |= dict(batch_p2p_sync=False, deallocate_pipeline_outputs=True, use_cpu_initialization=device.type == "cpu")
    config = TransformerConfig(**split, **shape, **how, finalize_model_grads_func=finalize_model_grads)
    layer = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    inner = layer.submodules.self_attention.submodules
    inner.q_layernorm = inner.k_layernorm = Norm
    inner.core_attention = Attention
    own = get_num_layers_to_build(config, pp_rank=parallel_state.get_pipeline_model_parallel_rank())
    model = GPTModel(
        config,
        TransformerBlockSubmodules([layer] * own, Norm),
        vocab_size=1000 if tiny else VOCAB,
        max_sequence_length=args.length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=tied,
        position_embedding_type="rope",
        rotary_base=1_000_000,
    )
    sums = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    return DistributedDataParallel(config, sums, model.to(device).bfloat16()).train()


def forward(micros, model):
    def loss(each):
        mean = each.mean()
        return mean, mean.detach().clone()  # megatron divides the first in place

    ids = next(micros)
    return model(ids, None, None, labels=torch.roll(ids, -1, 1)), loss


class AdamW:
    """AdamW on fp32 masters of bf16 parameters, after clipping by the norm over both ranks."""

    def __init__(self, model):
        self.params = list(model.parameters())
        self.masters = [param.detach().float() for param in self.params]
        self.grads = [param.main_grad for param in self.params]
        for master, grad in zip(self.masters, self.grads):
            master.grad = grad
        once = tensor_parallel.param_is_not_tensor_parallel_duplicate
        self.counted = [param.main_grad for param in self.params if param_is_not_shared(param) and once(param)]
        self.adam = torch.optim.AdamW(self.masters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    @torch.no_grad()
    def step(self):
        square = torch.stack(torch._foreach_norm(self.counted)).square().sum()
        dist.all_reduce(square)
        torch._foreach_mul_(self.grads, torch.clamp(1.0 / (square.sqrt() + 1e-6), max=1.0))
        self.adam.step()
        torch._foreach_copy_(self.params, self.masters)


def work(rank, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), RANK=str(rank), WORLD_SIZE=str(GPUS))
    on_gpus = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
    else:
        without_cuda()
    dist.init_process_group("nccl" if on_gpus else "gloo")
    torch.manual_seed(0)
    model = build(args, device)
    run, optimizer = get_forward_backward_func(), AdamW(model)
    chance = torch.Generator(device=device).manual_seed(0)
    shape = (args.sequences // args.micro, args.micro, args.length)
    ids = torch.randint(0, model.module.vocab_size, shape, device=device, generator=chance)
    sizes = dict(num_microbatches=len(ids), seq_length=args.length, micro_batch_size=args.micro)
    seconds = []
    for step in range(args.steps + 2):
        dist.barrier()
        began = time.perf_counter()
        model.zero_grad_buffer()
        losses = run(forward_step_func=forward, data_iterator=iter(ids), model=model, **sizes)
        optimizer.step()
        if on_gpus:
            torch.cuda.synchronize()
        dist.barrier()
        if step >= 2:
            seconds.append(time.perf_counter() - began)
    peak = torch.tensor(torch.cuda.max_memory_allocated() / 2**30 if on_gpus else 0.0, device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    if rank == GPUS - 1:
        step = statistics.median(seconds)
        said = {"model": args.model, "peer": "megatron-core", "layout": args.layout, "first": args.first, "gpus": GPUS}
        said |= {"sequences": args.sequences, "length": args.length, "step_s": round(step, 4)}
        said |= {"tokens_per_s": round(args.sequences * args.length / step), "peak_gib": round(float(peak), 1)}
        print(json.dumps(said | {"loss": round(float(torch.stack(losses).mean()), 3)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model", choices=SHAPES)
    words.add_argument("layout", choices=["tp2", "pp2"])
    for count in ("length", "sequences", "micro"):
        words.add_argument(count, type=int)
    words.add_argument("--first", type=int)
    words.add_argument("--steps", type=int, default=3)
    words.add_argument("--port", type=int, default=29578)
    found = words.parse_args()
    if found.sequences % found.micro or (found.first and found.layout != "pp2"):
        words.error("SEQUENCES is a multiple of MICRO; --first is for pp2")
    if found.layout == "tp2":  # collectives then start before the kernels launched after them; read when CUDA starts
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    processes.spawn(work, (found,), nprocs=GPUS)
