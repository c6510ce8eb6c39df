"""What a slow remote judge costs the solver that is decoded here: Tango, its verifier behind HTTP at a second an
answer.

    python benchmarks/remote_judge.py [--tasks 32] [--group 8] [--rounds 5] [--pause 1.0] [--concurrency 32] [--resting]

The same steps in turns: reviews by a program in this process, and by a server in another process that waits before
each answer.
Reported are the solver's tokens a second, from the start of the rollouts to the last solution, and their ratio: by the
clock, and by the processor time of the engine's thread, which other work on the machine does not change. With
``--resting`` the engine rests while an answer is awaited, as it does for graders: what this would be without
``awaiting_server``.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import time
from dataclasses import replace
from typing import Any

import torch

from cotrain.config.policies import Policy, program
from cotrain.config.remote import remote
from cotrain.core.types import Completion
from cotrain.distributed import openai_policy as remote_policy
from cotrain.formats.role_replies import write_review
from cotrain.inference.contract import Engine, Request
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer


def review(solution: str) -> str:
    """Every step is right: what a review says is of no matter here."""
    steps = solution.count("<step>")
    return write_review(["so"] * steps, [True] * steps, True)


def serve(port: Any, pause: float) -> None:
    """A server in a process of its own, on a free port of the loopback, which it tells."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from cotrain.serving.app import open_listener

    async def chat(request: Any) -> JSONResponse:
        asked = await request.json()
        await asyncio.sleep(pause)
        message = {"content": review(asked["messages"][-1]["content"])}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}]})

    listener = open_listener("127.0.0.1", 0)
    port.send(listener.getsockname()[1])
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listener])


class Timed:
    """Any engine, with the time of the last solution and the tokens of all."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.tokens, self.last, self.worked = engine, 0, 0.0, 0.0
        self.advance, self.publish, self.counts = engine.advance, engine.publish, engine.counts

    async def sample(self, request: Request) -> Completion:
        completion = await self.engine.sample(request)
        if request.policy == "generator":
            self.tokens += len(completion.token_ids)
            self.last, self.worked = time.perf_counter(), time.thread_time()
        return completion


class Arm:
    """One way to judge, and what its steps gave."""

    def __init__(self, judge: Policy, given: argparse.Namespace) -> None:
        recipe = tango(steps=given.rounds + 1, verifier="frozen", tasks_per_step=given.tasks, group_size=given.group)
        recipe = replace(recipe, policies={**recipe.policies, "verifier": judge})
        self.engines: list[Timed] = []
        self.trainer = CoTrainer(recipe, wrap_engine=self._timed)
        self.rates: list[float] = []  # tokens a second
        self.costs: list[float] = []  # processor seconds a token
        self.rollout_seconds: list[float] = []

    def _timed(self, engine: Engine) -> Timed:
        self.engines.append(Timed(engine))
        return self.engines[-1]

    def step(self, counted: bool) -> None:
        (engine,) = self.engines
        engine.tokens, began, worked = 0, time.perf_counter(), time.thread_time()
        result = self.trainer.step()
        if counted:
            self.rates.append(engine.tokens / (engine.last - began))
            self.costs.append((engine.worked - worked) / engine.tokens)
            self.rollout_seconds.append(result.seconds["rollout"])


class Resting:
    """``awaiting_server`` as if a server were a grader: an ordinary context that counts as busy."""

    def __enter__(self) -> None:
        self.loop: Any = asyncio.get_running_loop()
        self.loop.outside += 1

    def __exit__(self, *raised: object) -> None:
        self.loop.outside -= 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before the server answers")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--resting", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if given.resting:
        remote_policy.awaiting_server = Resting  # type: ignore[assignment]
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, given.pause), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{ours.recv()}/v1"
        here = Arm(program(lambda fields, rng: review(fields["solution"])), given)
        far = Arm(remote(url, "judge", concurrency=given.concurrency), given)
        for step in range(given.rounds + 1):  # the first one warms up
            for arm in (here, far):
                arm.step(counted=step > 0)
    finally:
        server.terminate()
        server.join()
    ratios = [b / a for a, b in zip(here.rates, far.rates, strict=True)]
    middle = statistics.median
    found = {
        "solver_tokens_per_second": round(middle(here.rates)),
        "with_remote_judge": round(middle(far.rates)),
        "ratio": round(middle(ratios), 3),
        "ratio_least": round(min(ratios), 3),
        "ratio_largest": round(max(ratios), 3),
        "ratio_by_processor_time": round(middle(a / b for a, b in zip(here.costs, far.costs, strict=True)), 3),
        "play_seconds": round(middle(here.rollout_seconds), 2),
        "play_seconds_with_remote_judge": round(middle(far.rollout_seconds), 2),
    }
    print(f"solver's decoding with a remote judge of {given.pause:g} s an answer / without: {found['ratio']}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
