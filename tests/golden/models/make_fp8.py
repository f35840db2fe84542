"""A tiny Qwen3 in blocks of 8 bits, made by PyTorch: `python make_fp8.py` writes qwen3-fp8-tiny/.

`source/` has the weights in bf16. `model.safetensors` has every projection in blocks of 128 x 128 (E4M3, scale = largest /
448, no side a multiple of the block), `logits.json` what transformers computes in float64 from them multiplied out.
Versions as in requirements.txt.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

FOLDER = Path(__file__).parent / "qwen3-fp8-tiny"
BLOCK = 128


def blocks(x):
    """Bytes, scales, and both multiplied out."""
    rows, cols = x.shape
    down, across = -(-rows // BLOCK), -(-cols // BLOCK)
    padded = torch.zeros(down * BLOCK, across * BLOCK)
    padded[:rows, :cols] = x
    tiles = padded.view(down, BLOCK, across, BLOCK)
    scale = tiles.abs().amax((1, 3)) / 448.0
    scale[scale == 0] = 1.0
    eighths = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    whole = (eighths.float() * scale[:, None, :, None]).reshape(padded.shape)[:rows, :cols]
    return eighths.reshape(padded.shape)[:rows, :cols].contiguous(), scale, whole


def main():
    torch.manual_seed(8)
    config = Qwen3Config(
        vocab_size=64, hidden_size=136, intermediate_size=144, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=40, max_position_embeddings=64, tie_word_embeddings=True, rope_theta=1e4, bos_token_id=1, eos_token_id=2,
    )
    model = Qwen3ForCausalLM(config).eval()
    stored, source, whole = {}, {}, {}
    for name, x in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        noise = torch.randn(x.shape) * (0.3 if x.dim() > 1 else 0.1) + (1.0 if x.dim() == 1 else 0.0)
        source[name] = noise.to(torch.bfloat16)
        if name.endswith("_proj.weight"):
            if name.endswith("up_proj.weight"):
                source[name][128:] = 0  # the last band is of zeros
            stored[name], stored[name + "_scale_inv"], whole[name] = blocks(source[name].float())
        else:
            stored[name], whole[name] = source[name], source[name].float()
    model.load_state_dict(whole, strict=False)
    tokens = torch.tensor([[3, 1, 4, 15, 9, 26, 5, 35, 8, 58]])
    with torch.no_grad():
        logits = model.double()(tokens).logits[0]
    (FOLDER / "source").mkdir(parents=True, exist_ok=True)
    save_file(stored, FOLDER / "model.safetensors", metadata={"format": "pt"})
    save_file(source, FOLDER / "source" / "model.safetensors", metadata={"format": "pt"})
    text = config.to_dict() | dict(
        architectures=["Qwen3ForCausalLM"], torch_dtype="bfloat16", dtype="bfloat16",
        quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK]),
    )
    (FOLDER / "config.json").write_text(json.dumps(text, indent=2) + "\n")
    text = dict(tokens=tokens[0].tolist(), logits=logits.tolist())
    (FOLDER / "logits.json").write_text(json.dumps(text) + "\n")


if __name__ == "__main__":
    main()
