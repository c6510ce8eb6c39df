"""What tests let the engine's own process do: functions of the engine."""

from __future__ import annotations

import asyncio
from typing import Any

from cotrain.rollout.event_loop import EngineEventLoop


def raised(engine: Any, request: Any) -> tuple[str, str]:
    """The error that a request is refused with."""
    try:
        engine.check(request)
    except Exception as error:  # noqa: BLE001  compared by the test
        return type(error).__name__, str(error)
    return "", ""


def begun_and_cancelled(engine: Any, requests: list[Any], policy: str) -> dict[str, Any]:
    """The first request is short, the others are cancelled while they run; in between weights are published."""
    found: dict[str, Any] = {}

    async def play() -> None:
        tasks = [asyncio.ensure_future(engine.sample(request)) for request in requests]
        found["first"] = await tasks[0]
        try:
            engine.publish(policy, 9)
        except RuntimeError as error:
            found["refused"] = str(error)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.wait(tasks[1:])
        engine.publish(policy, 0)
        found["left"] = engine._llm.has_unfinished_requests()
        found["advanced"] = engine.advance()

    EngineEventLoop().run_to_end(play(), engine.advance)
    return found


def stopped_by_text(engine: Any, request: Any, stop: str) -> Any:
    """An answer in which every token id is a letter, and which ends with a string of them."""
    from dataclasses import replace

    from tests.helpers import answers

    asked = replace(request, sampling=replace(request.sampling, stop=(stop,)), decode=as_letters)
    return answers(engine, [asked])[0]


def as_letters(ids: Any) -> str:
    return "".join(chr(0x4E00 + token) for token in ids)


def counts(engine: Any) -> dict[str, float]:
    return dict(engine.counts())


def entered(engine: Any, chains: list[list[Any]]) -> list[Any]:
    """Chains of requests, each made when the one before it is answered."""

    async def one_after_another(chain: list[Any]) -> list[Any]:
        return [await engine.sample(request) for request in chain]

    async def everything() -> list[Any]:
        return list(await asyncio.gather(*(one_after_another(chain) for chain in chains)))

    return list(EngineEventLoop().run_to_end(everything(), engine.advance))
