"""How a check asks the server, and what it may expect of any answer."""

import argparse
import http.client
import json
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

CHECKS = []
CAPTURED = []
A = argparse.Namespace()  # the command line


def check(f):
    CHECKS.append(f)
    return f


class Answer:
    def __init__(self, status, raw):
        self.status, self.raw = status, raw
        try:
            self.json = json.loads(raw)
        except ValueError:
            self.json = None

    def __repr__(self):
        return f"{self.status} {self.raw[:300]!r}"


def call(method, path, body=None, timeout=120):
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    request = urllib.request.Request(A.url + path, data=data, method=method, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as r:
            return Answer(r.status, r.read().decode())
    except urllib.error.HTTPError as e:
        return Answer(e.code, e.read().decode())


def get(path, **more):
    return call("GET", path, **more)


def post(path, body, **more):
    return call("POST", path, body, **more)


def ok(answer):
    assert answer.status == 200, answer
    return answer.json


def generate(temperature=0, max_new_tokens=8, sampling=None, **body):
    if not {"input_ids", "text"} & body.keys():
        body["input_ids"] = A.ids
    body["sampling_params"] = {"temperature": temperature, "max_new_tokens": max_new_tokens} | (sampling or {})
    return post("/generate", body)


def capture(name, method, path, body, answer):
    CAPTURED.append(dict(name=name, method=method, path=path, request=body, status=answer.status, response=answer.json if answer.json is not None else answer.raw))


class Later(threading.Thread):
    """A request whose answer is asked for afterwards."""

    def __init__(self, f):
        super().__init__(daemon=True)
        self.f, self.answer, self.error = f, None, None
        self.start()

    def run(self):
        try:
            self.answer = self.f()
        except Exception as e:
            self.error = e

    def wait(self, seconds=120):
        self.join(seconds)
        assert not self.is_alive(), f"no answer within {seconds} s"
        if self.error:
            raise self.error
        return self.answer


def stream(path, body, timeout=120):
    """SSE events of a request; the last one is the string "[DONE]"."""
    at = urlsplit(A.url)
    c = http.client.HTTPConnection(at.hostname, at.port, timeout=timeout)
    c.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, (r.status, r.read()[:300])
    assert r.headers.get("content-type", "").startswith("text/event-stream"), r.headers.get("content-type")
    try:
        for line in r:
            line = line.decode().rstrip("\r\n")
            if not line:
                continue
            assert line.startswith("data: "), line
            yield "[DONE]" if line == "data: [DONE]" else json.loads(line[6:])
    finally:
        r.close()
        c.close()


def long_request(rid, tokens):
    """Started in the background; returns once the server has it running."""
    started = threading.Event()
    last = {}

    def run():
        body = dict(input_ids=A.ids, rid=rid, stream=True, return_logprob=True, sampling_params=dict(temperature=1.0, max_new_tokens=tokens, ignore_eos=True))
        for event in stream("/generate", body):
            if event == "[DONE]":
                return last["event"]
            last["event"] = event
            started.set()
        raise AssertionError("the stream ended without [DONE]")

    later = Later(run)
    if not started.wait(60):
        later.wait(0)
    return later


def finish(meta):
    return meta["finish_reason"]


def pause(mode):
    a = post("/pause_generation", {"mode": mode})
    r = ok(a)
    assert r == {"message": "Generation paused successfully.", "status": "ok"}, r
    return a


def resume():
    return ok(post("/continue_generation", {}))


def refused(answer, status=400, *words):
    assert answer.status == status, answer
    e = answer.json.get("error", answer.json)
    message = e if isinstance(e, str) else e.get("message", e.get("detail"))
    assert isinstance(message, str) and all(w in message for w in words), answer
    return answer


class Skip(Exception):
    pass


def needs(path):
    if path not in ok(get("/openapi.json"))["paths"]:
        raise Skip(f"the server has no {path}")
