"""An engine without a model: it answers requests from what a run's ledger recorded.

With it the same protocol can be run again, for a debugger, for another reward or another parser, without weights
and in no time. A request whose prompt is not the recorded one means that protocol, templates or tasks have changed; it
is refused, since the recorded answer belongs to another question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from cotrain.core.errors import DataError, UnknownName
from cotrain.core.seeding import Address
from cotrain.core.types import Completion, Trace
from cotrain.inference.contract import Request


class ReplayEngine:
    """Answers each request with the completion recorded at its address. Implements ``Engine``."""

    def __init__(self, traces: Iterable[Trace]) -> None:
        """``traces``: of any number of episodes. Raises DataError when two of them have one address."""
        self._recorded: dict[Address, Trace] = {}
        for trace in traces:
            if trace.address in self._recorded:
                raise DataError(
                    f"replay: two recorded traces have the address {trace.address}; give one run's ledger",
                    code="E_REPLAY_TWICE",
                )
            for number, turn in enumerate(turns_of(trace)):
                self._recorded[trace.address.later_turn(number)] = turn
        self._replayed = {trace.policy: 0 for trace in self._recorded.values()}
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []

    async def sample(self, request: Request) -> Completion:
        """Raises DataError when nothing was recorded at the address, or for another prompt or policy."""
        if request.policy not in self._replayed:
            raise UnknownName("recorded policy", request.policy, self._replayed)
        trace = self._recorded.get(request.address)
        if trace is None:
            raise DataError(
                f"replay: nothing is recorded at {request.address}; give the same steps and group size",
                code="E_REPLAY_MISSING",
            )
        if trace.policy != request.policy:
            raise DataError(
                f"replay: {trace.policy!r} answered at {request.address}, not {request.policy!r}",
                code="E_REPLAY_POLICY",
            )
        if trace.prompt_ids != request.prompt_ids:
            pairs = zip(trace.prompt_ids, request.prompt_ids, strict=False)
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            raise DataError(
                f"replay: prompt at {request.address} differs from token {same} on ({len(request.prompt_ids)} tokens,"
                f" recorded {len(trace.prompt_ids)}); use templates, tasks and tokenizer of the recorded run",
                code="E_REPLAY_PROMPT",
            )
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        return await future

    def advance(self) -> bool:
        """Answer everything that waits, in the order of addresses."""
        waiting = sorted((p for p in self._waiting if not p[1].cancelled()), key=lambda p: p[0].address)
        self._waiting = []
        for request, future in waiting:
            trace = self._recorded[request.address]
            self._replayed[request.policy] += len(trace.token_ids)
            future.set_result(
                Completion(
                    token_ids=trace.token_ids,
                    logprobs=trace.logprobs,
                    entropies=trace.entropies,
                    finish=trace.finish,
                    policy=trace.policy,
                    version=trace.version,
                    failure=trace.failure if trace.finish == "failed" else None,
                )
            )
        return bool(waiting)

    def publish(self, policy: str, version: int) -> None:
        """Nothing to do: each recorded answer carries the version that gave it."""

    def counts(self) -> dict[str, float]:
        return {f"{policy}/sampled_tokens": float(count) for policy, count in self._replayed.items()}


def turns_of(trace: Trace) -> list[Trace]:
    """Each turn of a trace as a trace of its own, with everything before it as its prompt."""
    if not trace.turns:
        return [trace]
    return [
        replace(
            trace,
            prompt_ids=(*trace.prompt_ids, *trace.token_ids[: turn.start]),
            token_ids=trace.token_ids[turn.start : turn.end],
            logprobs=trace.logprobs[turn.start : turn.end],
            entropies=trace.entropies[turn.start : turn.end],
            finish=turn.finish,
            turns=(),
        )
        for turn in trace.turns
    ]
