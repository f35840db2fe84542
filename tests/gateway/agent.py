"""An agent outside the sandbox, with OpenAI's own client: answers arith's sums through a run's gateway and rewards them.

    pip install openai
    slime-host run plugins/arith -c configs/demo.toml --set run.gateway=127.0.0.1:8900 --set run.gateway_rewards=true &
    python tests/gateway/agent.py http://127.0.0.1:8900/v1 [--at-once 64]

Ends when the run does, and prints the mean reward of every 1,000 sessions.
"""

import argparse
import asyncio
import json

import httpx
from openai import AsyncOpenAI


async def session(http, base, offer):
    key = offer["api_key"]
    policy = AsyncOpenAI(base_url=base, api_key=key, http_client=http)
    answer = await policy.chat.completions.create(model="policy", messages=offer["messages"])
    text = answer.choices[0].message.content
    reward = float(text.strip() == offer["label"])
    ended = await http.post(
        f"{base}/sessions/end",
        headers={"Authorization": f"Bearer {key}"},
        json={"reward": reward, "metrics": {"tokens": answer.usage.completion_tokens}},
    )
    ended.raise_for_status()
    return reward


async def worker(http, base, rewards):
    while True:
        try:
            taken = await http.post(f"{base}/sessions", timeout=60)
            if taken.status_code == 204:
                continue
            taken.raise_for_status()
            rewards.append(await session(http, base, taken.json()))
        except Exception as error:
            try:
                await http.get(f"{base}/models")
            except httpx.TransportError:
                return
            print(f"a session failed: {error}", flush=True)
        if len(rewards) % 1000 == 0:
            last = rewards[-1000:]
            print(json.dumps({"sessions": len(rewards), "reward": sum(last) / len(last)}), flush=True)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--at-once", type=int, default=64)
    said = parser.parse_args()
    rewards = []
    limits = httpx.Limits(max_connections=2 * said.at_once)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as http:
        await asyncio.gather(*(worker(http, said.base, rewards) for _ in range(said.at_once)))
    print(json.dumps({"sessions": len(rewards), "ended": True}))


asyncio.run(main())
