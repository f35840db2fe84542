"""The embedded engine beside SGLang on one GPU: tokens a second of many requests at once, prompts included, with log-probs.

    python3 serving.py HOST_BINARY OUT [--shape 1024,3072,28,16,8] [--rows 256,1024,512 256,128,1024 64,1024,512] [--sglang COMMAND]

Makes a random model of that shape in OUT/model (hidden, feed-forward, layers, query heads, key heads of 128), serves it with
`slime-host serve` and then with SGLang, launched as `--sglang` says (`'["python3", "-m", "sglang.launch_server",
"--skip-tokenizer-init", "--mem-fraction-static", "0.8"]'`; the model and the port are added). A row is requests, prompt tokens
and answer tokens; each runs twice, after eight short requests. A line of JSON a run, a table at the end. Needs torch,
transformers and aiohttp; `--device cpu` serves small shapes without a GPU.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request

import aiohttp

VOCAB = 151_936


def write_model(folder, shape, device):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden, ffn, layers, query, kv = shape
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        config = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=hidden,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            num_attention_heads=query,
            num_key_value_heads=kv,
            head_dim=128,
            max_position_embeddings=40_960,
            tie_word_embeddings=True,
        )
        Qwen3ForCausalLM(config).save_pretrained(folder)
    # Every id has a text, so that any of them may be drawn: the bytes first, as byte-level tokenizers write them.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    ids = {text: i for i, text in enumerate(letters + [f"tok{i}" for i in range(256, VOCAB)])}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": ids, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": bytes_, "decoder": bytes_, "model": model}
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)


async def ask(session, url, ids, answer):
    body = {"input_ids": ids, "return_logprob": True, "logprob_start_len": -1}
    body["sampling_params"] = {"temperature": 1.0, "max_new_tokens": answer, "ignore_eos": True}
    async with session.post(f"{url}/generate", json=body) as response:
        response.raise_for_status()
        return (await response.json())["meta_info"]["completion_tokens"]


async def measure(name, url, rows):
    connections = aiohttp.TCPConnector(limit=0)
    rates = {}
    async with aiohttp.ClientSession(connector=connections, timeout=aiohttp.ClientTimeout(total=600)) as session:
        await asyncio.gather(*[ask(session, url, [100 + i] * 64, 16) for i in range(8)])
        for row in rows:
            requests, prompt, answer = row
            for turn in range(2):
                draw = random.Random(turn)
                prompts = [[draw.randrange(100, VOCAB - 100) for _ in range(prompt)] for _ in range(requests)]
                began = time.time()
                tokens = sum(await asyncio.gather(*[ask(session, url, ids, answer) for ids in prompts]))
                seconds = time.time() - began
                assert tokens == requests * answer, "an answer is not whole"
                rates.setdefault(row, []).append(tokens / seconds)
                print(json.dumps({"server": name, "row": row, "seconds": seconds, "tokens_per_s": tokens / seconds}), flush=True)
    return rates


def is_up(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=30).status == 200
    except OSError:
        return False


def served(name, command, port, log, rows):
    """Start a server, measure it, end it."""
    url = f"http://127.0.0.1:{port}"
    with open(log, "w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        while not is_up(url):
            if server.poll() is not None:
                sys.exit(f"{name} ended before it served; read {log}")
            time.sleep(0.5)
        return asyncio.run(measure(name, url, rows))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def numbers(text):
    return tuple(int(each) for each in text.split(","))


def main():
    args = argparse.ArgumentParser()
    args.add_argument("host")
    args.add_argument("out")
    args.add_argument("--shape", type=numbers, default=(1024, 3072, 28, 16, 8))
    args.add_argument("--rows", type=numbers, nargs="+", default=[(256, 1024, 512), (256, 128, 1024), (64, 1024, 512)])
    args.add_argument("--sglang", type=json.loads)
    args.add_argument("--device", default="cuda")
    args = args.parse_args()
    model = os.path.join(args.out, "model")
    os.makedirs(model, exist_ok=True)
    write_model(model, args.shape, args.device)
    log = lambda name: os.path.join(args.out, f"{name}.log")
    ours = [args.host, "serve", "--model", model, "--device", args.device, "--port", "30100"]
    rates = [served("slime-host", ours, 30100, log("slime-host"), args.rows)]
    if args.sglang:
        theirs = [*args.sglang, "--model-path", model, "--port", "30200"]
        rates.append(served("sglang", theirs, 30200, log("sglang"), args.rows))
    print("\n| requests, prompt + answer | slime-host, tokens/s | SGLang |\n| --- | --- | --- |")
    for row in args.rows:
        cells = [", ".join(f"{rate:,.0f}" for rate in of[row]) for of in rates]
        print(f"| {row[0]}, {row[1]} + {row[2]} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
