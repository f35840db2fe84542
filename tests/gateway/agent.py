"""An agent outside the sandbox, with OpenAI's own client: answers arith's sums through a run's gateway and rewards them.

    pip install openai
    slime-host run plugins/arith -c configs/demo.toml --set run.gateway=127.0.0.1:8900 --set run.gateway_rewards=true &
    python tests/gateway/agent.py http://127.0.0.1:8900/v1 [--at-once 64]

Ends when the run does, and prints the mean reward of every 1,000 sessions.
"""

import argparse
import json
import threading
import time
import urllib.error
import urllib.request

from openai import OpenAI

direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(url, body=None, key=""):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with direct.open(urllib.request.Request(url, json.dumps(body or {}).encode(), headers)) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def session(base, policy, offer):
    policy = policy.with_options(api_key=offer["api_key"])
    answer = policy.chat.completions.create(model="policy", messages=offer["messages"])
    reward = float(answer.choices[0].message.content.strip() == offer["label"])
    post(f"{base}/sessions/end", {"reward": reward, "metrics": {"tokens": answer.usage.completion_tokens}}, offer["api_key"])
    return reward


def work(base, policy, rewards, lock):
    while True:
        try:
            offer = post(f"{base}/sessions")
            if offer is None:
                continue
            reward = session(base, policy, offer)
        except urllib.error.HTTPError as error:
            if error.code == 410:
                return
            print("a session failed:", error.read().decode(), flush=True)
            continue
        except OSError:
            return
        with lock:
            rewards.append(reward)
            if len(rewards) % 1000 == 0:
                print(json.dumps({"sessions": len(rewards), "reward": sum(rewards[-1000:]) / 1000}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--at-once", type=int, default=64)
    said = parser.parse_args()
    rewards, lock, policy = [], threading.Lock(), OpenAI(base_url=said.base, api_key="none")
    begun = time.time()
    threads = [threading.Thread(target=work, args=(said.base, policy, rewards, lock)) for _ in range(said.at_once)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps({"sessions": len(rewards), "seconds": round(time.time() - begun, 1)}))


main()
