"""gpu_curve.py HF_DIR TOKENS.jsonl OUT [STEPS] [LR]: the same gradients and loss curve in fp32 PyTorch, beside what
`cargo run --release -p slime-trainer --example gpu_curve` with the same arguments left in OUT. Needs a GPU, torch, transformers.

Prints one JSON line: the tensor whose gradient has the smallest cosine, ours and that of PyTorch in bf16 against PyTorch in
fp32, and the largest relative difference of the losses. Writes OUT/curves.json."""
import glob, json, sys
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

path, tokens, out = sys.argv[1:4]
steps = int(sys.argv[4]) if len(sys.argv) > 4 else 50
lr = float(sys.argv[5]) if len(sys.argv) > 5 else 1e-4
torch.backends.cuda.matmul.allow_tf32 = False
lines = [json.loads(line) for line in open(tokens)]
count = sum(sum(line["loss_mask"][1:]) for line in lines)


def loss_of(model):
    """Mean over all trained tokens, one sequence at a time; the gradient is left on the parameters."""
    total = 0.0
    for line in lines:
        ids = torch.tensor([line["tokens"]], device="cuda")
        mask = torch.tensor(line["loss_mask"][1:], device="cuda", dtype=torch.float32)
        logits = model(ids).logits[0, :-1].float()
        loss = (torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none") * mask).sum() / count
        loss.backward()
        total += loss.item()
    return total


def load(dtype):
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).cuda()


def cosine(a, b):
    a, b = a.double().flatten(), b.double().flatten()
    return (a @ b / (a.norm() * b.norm()).clamp_min(1e-300)).item()


def worst(grads):
    return min((cosine(grad.cuda(), exact[name]), name) for name, grad in grads.items() if name in exact)


half = load(torch.bfloat16)
loss_of(half)
half = {n: p.grad.float() for n, p in half.named_parameters()}
model = load(torch.float32)
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), eps=1e-8)
losses = []
for step in range(steps):
    optimizer.zero_grad()
    losses.append(loss_of(model))
    if step == 0:
        exact = {n: p.grad.clone() for n, p in model.named_parameters()}
        ours = {}
        for file in glob.glob(f"{out}/gradients/*.safetensors"):
            ours.update(load_file(file))
        least, least_half = worst(ours), worst(half)
        del half, ours
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
mine = json.load(open(f"{out}/losses.json"))
json.dump({"slime-host, bf16": mine, "PyTorch, fp32": losses}, open(f"{out}/curves.json", "w"))
gap = max(abs(a - b) / b for a, b in zip(mine, losses))
print(json.dumps({"tensors": len(exact), "least_cosine": least, "least_cosine_pytorch_bf16": least_half, "steps": steps,
                  "first_loss": [mine[0], losses[0]], "last_loss": [mine[-1], losses[-1]], "largest_relative_gap": gap}))
