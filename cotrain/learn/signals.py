"""From traces to numbers: which signals an algorithm reads, traces it cannot use, and samples for the learner.

A *whole-trace* signal has no token range and occurs once on a trace. A *span* signal has one, and its value stands on
the span's last token. Several values for one span (several reviewers) are averaged: each gets the share 1/(number of
values on this span). A trace with no span signal of a name has no steps there; that is not a failure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from cotrain.core.errors import ConfigError
from cotrain.core.types import Trace
from cotrain.learn.contract import Annotated, Sample

StepScale = Literal["1/K", "one"]
STEP_SCALES: tuple[StepScale, ...] = ("1/K", "one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The span signals of one name on one trace. ``[M]`` runs over signals, in the order they were given."""

    values: tuple[float, ...] = ()  # [M] scaled by 1/K or by one
    shares: tuple[float, ...] = ()  # [M] 1 / number of values on the same span
    ends: tuple[int, ...] = ()  # [M] index of the span's last token
    count: int = 0  # K, number of different spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one trace was given."""

    annotated: Annotated
    whole: Mapping[str, float]
    steps: Mapping[str, Steps]
    label: bool | None = None  # class of the sample, where a class balance asks for it

    @property
    def length(self) -> int:
        return len(self.annotated.trace.token_ids)


@dataclass(slots=True, kw_only=True)
class Readings:
    """The traces that can be learned from, in the order given, and why the others cannot."""

    kept: list[Reading] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)  # reason → number of traces


def read_all(
    traces: Iterable[Annotated],
    *,
    whole: Collection[str],
    process: Collection[str],
    step_scale: StepScale = "1/K",
    label: str | None = None,
) -> Readings:
    """Read the named signals of every trace.

    A trace is dropped, with its reason, when it has no sampled token ("no tokens"), lacks a whole-trace signal
    ("no outcome", by its name), or a signal is not finite ("non-finite outcome"). Raises ConfigError for a signal that
    is not of the kind the algorithm expects: the protocol and the algorithm disagree.
    """
    readings = Readings()
    for annotated in traces:
        trace = annotated.trace
        reason = _unusable(trace, whole, process)
        if reason is not None:
            readings.dropped[reason] += 1
            continue
        readings.kept.append(
            Reading(
                annotated=annotated,
                whole={name: _one(trace, name) for name in whole},
                steps={name: _steps(trace, name, step_scale) for name in process},
                label=None if label is None else _label(trace, label),
            )
        )
    return readings


def sample_of(
    annotated: Annotated, advantages: torch.Tensor, *, weight: float = 1.0, temperature: float | None = None
) -> Sample:
    """The sample that a trace becomes; ``advantages`` ``[T]`` of any floating type.

    ``temperature`` replaces the one it was sampled at, for losses that do not compare with the sampler.
    """
    trace = annotated.trace
    return Sample(
        key=str(trace.address),
        prompt_ids=trace.prompt_ids if trace.learn_ids is None else trace.learn_ids,
        token_ids=trace.token_ids,
        behaviour=torch.tensor(trace.logprobs, dtype=torch.float32),
        advantages=advantages.to(torch.float32),
        weight=weight,
        temperature=annotated.temperature if temperature is None else temperature,
        off_policy=trace.learn_ids is not None,
        given=annotated.given,
    )


def check_step_scale(step_scale: str) -> None:
    if step_scale not in STEP_SCALES:
        raise ConfigError(f"step_scale is {step_scale!r}, expected one of {STEP_SCALES}")


def _unusable(trace: Trace, whole: Collection[str], process: Collection[str]) -> str | None:
    if not trace.token_ids:
        return "no tokens"
    given = {signal.name for signal in trace.signals}
    for name in whole:
        if name not in given:
            return f"no {name}"
    for signal in trace.signals:
        if (signal.name in whole or signal.name in process) and not math.isfinite(signal.value):
            return f"non-finite {signal.name}"
    return None


def _one(trace: Trace, name: str) -> float:
    given = [signal for signal in trace.signals if signal.name == name]
    if any(signal.tokens is not None for signal in given):
        raise ConfigError(
            f"signal {name!r} of role {trace.role!r} was given for a span of tokens, but the algorithm reads it for "
            f"whole traces; name it in process=({name!r},), or reward without a span"
        )
    if len(given) > 1:
        raise ConfigError(
            f"signal {name!r} was given {len(given)} times to trace {trace.address} of role {trace.role!r}; "
            "give it once, for example the mean"
        )
    return given[0].value


def _steps(trace: Trace, name: str, step_scale: StepScale) -> Steps:
    spans: list[tuple[int, int]] = []
    values: list[float] = []
    for signal in trace.signals:
        if signal.name != name:
            continue
        if signal.tokens is None:
            raise ConfigError(
                f"signal {name!r} of role {trace.role!r} was given for the whole trace, but the algorithm reads it for "
                "spans of tokens; reward with a span, or leave its name out of process"
            )
        start, end = signal.tokens
        if not 0 <= start < end <= len(trace.token_ids):
            raise ConfigError(
                f"signal {name!r} of trace {trace.address}: tokens [{start}, {end}) in {len(trace.token_ids)} tokens"
            )
        spans.append((start, end))
        values.append(signal.value)
    times = Counter(spans)
    scale = 1.0 / len(times) if spans and step_scale == "1/K" else 1.0
    return Steps(
        values=tuple(value * scale for value in values),
        shares=tuple(1.0 / times[span] for span in spans),
        ends=tuple(end - 1 for _, end in spans),
        count=len(times),
    )


def _label(trace: Trace, name: str) -> bool | None:
    for signal in trace.signals:
        if signal.name == name:
            if signal.value not in (0.0, 1.0):
                raise ConfigError(f"class label {name!r} of trace {trace.address} is {signal.value}, expected 0 or 1")
            return bool(signal.value)
    return None
