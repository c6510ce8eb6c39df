"""Servers on this machine for the tests of remote policies: ours, and one that is slow, wrong or gone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cotrain.serving.app import make_application, open_listener
from cotrain.serving.models import ServedRun


@contextmanager
def running(app):
    """The application on a free port of the loopback: its address up to "/v1", and a function that ends it."""
    listener = open_listener("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)

    def end():
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()

    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", end
    finally:
        end()


@contextmanager
def serving_run(trainer):
    """``cotrain serve`` of a run's models."""
    served = ServedRun(trainer)
    try:
        with running(make_application(served)) as (url, _):
            yield url
    finally:
        served.engine.close()


ROOM = 40  # tokens of an answer that the context of "narrow" holds beside a prompt


class Odd:
    """Answers as its model's name says: "slow", "broken", "malformed", "empty", "textless", "thoughtful" (its thought
    filled the limit of tokens), "calling" (a tool, without a text), "refusing", "flaky", "long", "narrow" (its context
    holds answers of ``ROOM`` tokens), or with a status, as "429", and a reason. ``limits``: of tokens, as they were
    asked for. ``pause``: seconds before each answer; ``until``: what is true before each, for 20 seconds at most."""

    def __init__(self, pause=0.0, until=lambda: True):
        self.asked, self.keys, self.lines, self.open, self.most = Counter(), set(), set(), 0, 0
        self.pause, self.until, self.limits = pause, until, []
        routes = [Route("/v1/chat/completions", self.chat, methods=["POST"])]
        self.app = Starlette(routes=routes)

    async def chat(self, request):
        body = json.loads(await request.body())
        model, said = body["model"], body["messages"][-1]["content"]
        self.asked[model] += 1
        self.keys.add(request.headers.get("authorization"))
        self.lines.add(request.client.port)
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(60.0 if model == "slow" else self.pause)
        late = time.monotonic() + 20.0
        while not self.until() and time.monotonic() < late:
            await asyncio.sleep(0.005)
        self.open -= 1
        if model == "broken" or (model == "flaky" and self.asked[model] % 2):
            return Response("oh", status_code=500)
        self.limits.append(body["max_tokens"])
        if model in ("malformed", "empty", "textless"):
            wrong = {"malformed": "{", "empty": '{"choices": []}', "textless": '{"choices": [{"message": {}}]}'}
            return Response(wrong[model], media_type="application/json")
        if model in ("thoughtful", "calling"):
            finish = "length" if model == "thoughtful" else "tool_calls"
            silent = {"message": {"content": None, "reasoning_content": "Let me see"}, "finish_reason": finish}
            return JSONResponse({"choices": [silent]})
        if model == "narrow" and body["max_tokens"] > ROOM:
            why = f"the prompt has 605 tokens and max_tokens is {body['max_tokens']}, more than the context of 645"
            return JSONResponse({"error": {"message": why}}, status_code=400)
        if model.isdecimal():
            why = f"as {model} says, with sk-{'a' * 20} and \x1b[2J"
            return JSONResponse({"error": {"message": why}}, status_code=int(model))
        if model in ("refusing", "locked"):
            return JSONResponse({}, status_code=400 if model == "refusing" else 401)
        choice = {"message": {"content": f"é {said}"}, "finish_reason": "length" if model == "long" else "stop"}
        return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
