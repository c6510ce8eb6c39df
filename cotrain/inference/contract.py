"""The Engine contract: who turns prompts into completions, whatever it runs on.

Every request names its policy and gets back the version that answered; an unknown policy is an error, never some
other weights. An engine forms its batches only when ``advance`` is called, which the runner of the rollouts does when
no coroutine can run on: what shares a batch then depends on the work and not on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from cotrain.core.errors import ConfigError, TooLong
from cotrain.core.seeding import Address
from cotrain.core.types import Completion, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call to a policy."""

    policy: str
    prompt_ids: tuple[int, ...]  # [P], P >= 1
    sampling: Sampling
    stop_ids: tuple[int, ...]  # a sampled token among these ends the completion (and is part of it)
    seed: int  # the seed of this request alone, from its address
    address: Address  # order of admission
    # what the call gave; for programs
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    # ids → text, for engines that look for stop strings themselves
    decode: Callable[[Sequence[int]], str] | None = field(default=None, repr=False, compare=False)
    continues: Address | None = None  # the request whose tokens, all of them, begin this prompt
    keep: bool = False  # another request may continue this one: its keys and values are worth keeping


class SpeakerError(RuntimeError):
    """A Python function that plays a role raised ``__cause__``: its episode ends, the batch continues."""


class Engine(Protocol):
    """Sampling and scoring for several policies."""

    async def sample(self, request: Request) -> Completion:
        """Wait for the completion of one request. Raises UnknownName for a policy that is not loaded, ConfigError
        when prompt and max_tokens exceed the policy's context.

        A completion ends with a stop token, with the token by which its text contains a stop string, or at
        max_tokens."""
        ...

    def advance(self) -> bool:
        """Admit what waits (sorted by address), decode until at least one row has finished, and resolve the finished
        requests in address order. Returns False when there was nothing to do."""
        ...

    def publish(self, policy: str, version: int) -> None:
        """Tell the engine that the weights of a policy have changed (local engines share them in place)."""
        ...

    def counts(self) -> dict[str, float]:
        """Work done since the engine was made, per policy: ``{policy}/prefill_tokens``, ``{policy}/sampled_tokens``,
        ``{policy}/decode_steps``, ``{policy}/seconds`` …"""
        ...


@runtime_checkable
class ContextLimitedEngine(Engine, Protocol):
    """One that says how much it takes."""

    def context(self, policy: str) -> int:
        """Tokens of the longest sequence that a policy takes, prompt and answer together. Raises UnknownName."""
        ...


@runtime_checkable
class ServingEngine(ContextLimitedEngine, Protocol):
    """The further methods for a server: answers are read while they grow. Training never calls these."""

    def step(self) -> bool:
        """One admission and one decode step: what waits enters at once, so that no answer waits for the end of another.
        Resolves what has finished; returns False when there was nothing to do."""
        ...

    def running_tokens(self) -> dict[Address, list[int]]:
        """The tokens that each running request has sampled so far: token ids [T]."""
        ...

    def check(self, request: Request) -> None:
        """Raise what ``sample`` would raise for this request."""
        ...


@runtime_checkable
class HoldingEngine(Engine, Protocol):
    """One that can leave some policies alone for a while, such as those whose weights are being changed, and go on
    afterwards as if nothing had been."""

    @property
    def is_paused(self) -> bool:
        """Did the last ``advance`` stop before a step of a policy that is held? Then it has to be called again once
        that is released, and nothing may be asked in between."""
        ...

    def hold(self, policies: Collection[str]) -> None:
        """From now on ``advance`` computes with none of these. What was paused before is forgotten."""
        ...

    def release(self) -> None:
        """From now on it computes with all; a pause goes on where it was."""
        ...


@runtime_checkable
class MemoryLimitedEngine(Engine, Protocol):
    """One that does with less at a time where memory runs out."""

    def limits(self) -> dict[str, int]:
        """The limits of the policies for which memory has run out: rows at a time, or tokens of a pass that scores."""
        ...

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Restore limits that ``limits()`` returned; policies that are not named get the limits of the start. No row
        may be running."""
        ...


def as_serving_engine(engine: Engine) -> ServingEngine:
    """The engine, for a server. Raises ConfigError for one that only trains."""
    if isinstance(engine, ServingEngine):
        return engine
    raise ConfigError(
        "the engine has no step, running_tokens, check and context, which a server needs; take another",
        code="E_ENGINE_WITHOUT_STEP",
    )


# -- What every engine asks of a request before it takes it.


def check_request(request: Request, context: int, vocabulary: int) -> None:
    """Raise ConfigError when the request's policy cannot answer it, TooLong where its context is too short.

    ``context``: tokens of prompt and answer together; ``vocabulary``: number of token ids.
    """
    sampling = request.sampling
    prompt = request.prompt_ids
    for wrong, code, problem in (
        (not prompt, "E_PROMPT_EMPTY", "the prompt is empty; render at least one token"),
        (
            sampling.max_tokens < 1,
            "E_SAMPLING_RANGE",
            f"max_tokens is {sampling.max_tokens}; it must be at least 1",
        ),
        (
            not sampling.temperature >= 0,
            "E_SAMPLING_RANGE",
            f"temperature is {sampling.temperature}; it must be 0 (greedy) or more",
        ),
        (not 0 < sampling.top_p <= 1, "E_SAMPLING_RANGE", f"top_p is {sampling.top_p}; it must be in (0, 1]"),
        (
            len(prompt) + sampling.max_tokens > context,
            TooLong.code,
            f"prompt ({len(prompt)}) and max_tokens ({sampling.max_tokens}) exceed the context of {context} tokens; "
            "lower max_tokens or shorten the prompt",
        ),
        (
            bool(prompt) and not 0 <= min(prompt) <= max(prompt) < vocabulary,
            "E_TOKEN_ID_RANGE",
            f"a prompt id is outside of the vocabulary of {vocabulary}; use the renderer of this policy",
        ),
        ("" in sampling.stop, "E_STOP_STRINGS_EMPTY", "a stop string is empty; leave it out"),
        (
            bool(sampling.stop) and request.decode is None,
            "E_STOP_WITHOUT_DECODE",
            "it has stop strings and no decode to find them in its text",
        ),
    ):
        if wrong:
            error = TooLong if code == TooLong.code else ConfigError
            raise error(f"role {request.address.role!r} (policy {request.policy!r}): {problem}", code=code)
