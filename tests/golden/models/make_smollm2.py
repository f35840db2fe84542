"""What SmolLM2-135M-Instruct says: ids, log-probs, entropies, and fingerprints of one GRPO gradient.

    python make_smollm2.py HF_DIR [OUT_FILE]

Weights stay on disk (bf16 read as f32; the arithmetic is float32, that is, transformers untouched).
A fingerprint is the L2 norm, the sum, and 16 entries of each parameter's gradient at flat (row-major)
indices `i * (numel // 16)`, plus the norm of all of it.
"""

import hashlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from make import GRPO, TEMPERATURES, grpo_loss, logits_of, logp_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(2)

TEXTS = [
    "The capital of France is Paris.",
    "Water boils at 100 degrees Celsius at sea level, and freezes at zero.",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "fn main() {\n    let xs: Vec<u64> = (1..=10).collect();\n    println!(\"{}\", xs.iter().sum::<u64>());\n}\n",
    "If 3x + 7 = 22, then 3x = 15 and so x = 5. Check: 3 * 5 + 7 = 22.",
    "\\int_0^1 x^2 \\, dx = \\frac{1}{3}, hence the answer is \\boxed{\\frac{1}{3}}.",
    "La tour Eiffel se trouve à Paris, près de la Seine ; elle mesure 330 mètres.",
    "北京是中国的首都,人口超过两千万。",
    "Привет! Как дела? Всё хорошо, спасибо.",
    "🙂 emoji and 👩‍🚀 joined ones, too 🇯🇵.",
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": [1, 2, 3]}}",
    "SELECT name, COUNT(*) FROM rollouts WHERE reward > 0.5 GROUP BY name ORDER BY 2 DESC LIMIT 10;",
    "Once upon a time there was a small robot who lived at the edge of a forest. Every morning it walked to the river, counted the stones, and wrote the number in a little book. One day the number was wrong.",
    "    indented\n\n\n\tand tabbed   with   gaps \n",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987",
    "Hello Hello Hello Hello Hello Hello Hello Hello",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n12 + 30 = 42.<|im_end|>\n",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\nRed, green, and blue.<|im_end|>\n<|im_start|>user\nOne more?<|im_end|>\n<|im_start|>assistant\nYellow.<|im_end|>\n",
    "Photosynthesis is the process by which plants turn light into chemical energy. Chlorophyll absorbs mostly blue and red light and reflects green, which is why leaves look green to us. "
    "The light reactions split water and release oxygen; the energy they capture is stored in ATP and NADPH. In the second stage, called the Calvin cycle, carbon dioxide from the air is fixed "
    "into sugars. A plant uses some of this sugar at once, and stores the rest as starch. Almost all food on Earth, and almost all of the oxygen that we breathe, comes from this process. "
    "It began in bacteria more than two billion years ago, long before there were any animals to enjoy the result, and it changed the air of the whole planet.",
    "ok",
]


def short(values):
    return [float(f"{v:.8g}") for v in values]


def rollouts_of(model, encoded):
    """Three rollouts from the texts above; log-ratios cycle through kept, clipped on both sides, dual-clipped."""
    rng = np.random.Generator(np.random.PCG64(77))
    ratios = [1.0, 1.11, 1.6, 0.87, 0.55, 4.2, 1.9, 0.93]
    out = []
    for index, prompt, advantage in ((4, 8, 1.2), (2, 6, -0.8), (17, 12, -0.4)):
        tokens = encoded[index]
        with torch.no_grad():
            lp, _ = logp_entropy(logits_of(model, tokens), tokens, GRPO["temperature"])
        mask = [int(t >= prompt) for t in range(1, len(tokens))]
        if index == 17:
            mask[20:27] = [0] * 7
        old = short(x - math.log(ratios[t % 8]) - 0.01 * rng.uniform(-1, 1) for t, x in enumerate(lp.tolist()))
        ref = short((lp + torch.from_numpy(rng.normal(0, 0.3, len(lp)))).tolist())
        out.append(dict(text=index, tokens=tokens, prompt_length=prompt, loss_mask=mask, advantage=advantage, old_logprobs=old, ref_logprobs=ref))
    return out


def main():
    folder = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("smollm2.json")
    t = AutoTokenizer.from_pretrained(folder)
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    encoded = [t(x, add_special_tokens=False)["input_ids"] for x in TEXTS]
    texts = []
    for text, ids in zip(TEXTS, encoded):
        row = dict(text=text, ids=ids)
        with torch.no_grad():
            z = logits_of(m, ids)
            for temp in TEMPERATURES:
                lp, ent = logp_entropy(z, ids, temp)
                row[f"logprobs_{temp}"], row[f"entropy_{temp}"] = short(lp.tolist()), short(ent.tolist())
        texts.append(row)
    rollouts = rollouts_of(m, encoded)
    loss, parts, _ = grpo_loss(m, rollouts, torch.float32)
    loss.backward()
    prints, total = {}, 0.0
    for n, p in m.named_parameters():
        g = p.grad.double().flatten()
        total += g.pow(2).sum().item()
        prints[n] = dict(norm=float(f"{g.norm().item():.8g}"), sum=float(f"{g.sum().item():.8g}"), at=[float(f"{g[i * (len(g) // 16)].item():.6g}") for i in range(16)])
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    head = dict(model="SmolLM2-135M-Instruct (from the Q4_1 GGUF, saved as bf16)", model_safetensors_sha256=digest, transformers=transformers.__version__)
    grpo = dict(config=GRPO, rollouts=rollouts, expected=dict(loss=loss.item(), grad_norm=math.sqrt(total), **parts))
    lines = [f'"{n}":{json.dumps(v, separators=(",", ":"))}' for n, v in prints.items()]
    rows = [json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in texts]
    body = json.dumps(head)[:-1] + ',\n"texts":[\n' + ",\n".join(rows) + '\n],\n"grpo":' + json.dumps(grpo, separators=(",", ":")) + ',\n"fingerprints":{\n' + ",\n".join(lines) + "\n}}\n"
    json.loads(body)
    out.write_text(body)
    print(len(texts), [len(x) for x in encoded], out.stat().st_size)


if __name__ == "__main__":
    main()
