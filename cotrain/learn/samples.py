"""From traces with rewards to training samples.

A value of a *per-answer* signal stands on the last token, one of a *per-span* signal on the last token of its span.
Several values for one span (several reviewers) are averaged: each gets the share 1/(number of values on this span). A
sample without a value of a per-span signal has no steps there; that is not a failure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch

from cotrain.core.errors import ConfigError
from cotrain.core.signals import Signal
from cotrain.core.types import Trace
from cotrain.functional.credit import add_at_tokens
from cotrain.learn.contract import Sample
from cotrain.learn.mixing import Mixing
from cotrain.learn.sampled_tokens import Given

StepScale = Literal["1/K", "one"]
STEP_SCALES: tuple[StepScale, ...] = ("1/K", "one")
RewardWeights = Mapping[Signal, float | Mixing]


def sample_of(
    trace: Trace,
    *,
    temperature: float = 1.0,
    values: torch.Tensor | None = None,
    scores: Mapping[str, torch.Tensor] | None = None,
    given: Given = (),
) -> Sample:
    """The sample that a trace becomes, before credit.

    Args:
        trace: its sampled tokens alone (``sampled_tokens.py``).
        temperature: at which its role samples.
        values: ``[T]`` float32 predictions before each token.
        scores: policy → ``[T]`` float32 log-probabilities.
        given: what stands between its tokens.
    """
    return Sample(
        key=str(trace.address),
        prompt_ids=trace.prompt_ids,
        token_ids=trace.token_ids,
        sampler_logprobs=torch.tensor(trace.logprobs, dtype=torch.float32),
        advantages=torch.zeros(len(trace.token_ids)),
        temperature=temperature,
        old_values=values,
        role=trace.role,
        group=trace.group,
        rewards=trace.signals,
        score=trace.score,
        scores=scores or {},
        given=given,
    )


def check_rewards(owner: str, rewards: RewardWeights) -> None:
    """Raise ConfigError unless these are weights of signals, none below 0 and at least one above."""
    if not rewards:
        raise ConfigError(f"{owner}: rewards names no signal; expected for example rewards={{OUTCOME: 1.0}}")
    ends: list[float] = []
    for signal, weight in rewards.items():
        if not isinstance(signal, Signal):
            raise ConfigError(f"{owner}: rewards names {signal!r}; expected a signal, as in rewards={{OUTCOME: 1.0}}")
        both = (weight.start, weight.end) if isinstance(weight, Mixing) else (float(weight),)
        if not all(0.0 <= end < math.inf for end in both):
            raise ConfigError(
                f"{owner}: the weight of reward {signal.name!r} is {weight}, expected a number of at least 0; what "
                "shall be avoided gets a negative reward from the protocol"
            )
        ends += both
    if not any(ends):
        raise ConfigError(f"{owner}: all weights of rewards are 0, nothing would be learned; give one of them a weight")


def check_step_scale(step_scale: str) -> None:
    if step_scale not in STEP_SCALES:
        raise ConfigError(f"step_scale is {step_scale!r}, expected one of {STEP_SCALES}")


def usable_samples(samples: Iterable[Sample], signals: Collection[Signal]) -> tuple[list[Sample], dict[str, int]]:
    """The samples that can be learned from with these signals, in the order given, and why how many others cannot: no
    sampled token ("no tokens"), a per-answer signal that was not given ("no outcome", by its name), or a value that is
    not finite ("non-finite outcome")."""
    kept: list[Sample] = []
    dropped: Counter[str] = Counter()
    for sample in samples:
        reason = _unusable_reason(sample, signals)
        if reason is None:
            kept.append(sample)
        else:
            dropped[reason] += 1
    return kept, dict(dropped)


def _unusable_reason(sample: Sample, signals: Collection[Signal]) -> str | None:
    if not sample.token_ids:
        return "no tokens"
    for signal in signals:
        if signal.per == "answer" and not sample.rewards_for(signal):
            return f"no {signal.name}"
    read = {signal.name for signal in signals}
    for reward in sample.rewards:
        if reward.name in read and not math.isfinite(reward.value):
            return f"non-finite {reward.name}"
    return None


def value_of(sample: Sample, signal: Signal) -> float:
    """The value of a per-answer signal, on a sample that has it."""
    return sample.rewards_for(signal)[0].value


class PlacedRewards(NamedTuple):
    """The values of one channel of rewards over a list of samples. ``[M]`` runs over values, sample by sample."""

    values: torch.Tensor  # [M] float64
    shares: torch.Tensor  # [M] float64, 1 / number of values on the same span
    ends: torch.Tensor  # [M] int64, index of the token that each value stands on
    owners: torch.Tensor  # [M] int64, index of the sample it belongs to


def place_rewards(samples: Sequence[Sample], signal: Signal, scale: StepScale = "1/K") -> PlacedRewards:
    """All values of a signal and where they stand. A per-span value of a sample with K spans is divided by K with
    "1/K"."""
    values: list[float] = []
    shares: list[float] = []
    ends: list[int] = []
    owners: list[int] = []
    for index, sample in enumerate(samples):
        signal_rewards = sample.rewards_for(signal)
        length = len(sample.token_ids)
        spans = [reward.tokens or (0, length) for reward in signal_rewards]
        if any(not 0 <= start < end <= length for start, end in spans):
            raise ConfigError(f"signal {signal.name!r} of {sample.key}: tokens {spans} in an answer of {length} tokens")
        times = Counter(spans)
        divisor = len(times) if signal.per == "span" and scale == "1/K" else 1
        values += [reward.value * (1.0 / divisor) for reward in signal_rewards]
        shares += [1.0 / times[span] for span in spans]
        ends += [end - 1 for _, end in spans]
        owners += [index] * len(signal_rewards)
    return PlacedRewards(
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(shares, dtype=torch.float64),
        torch.tensor(ends, dtype=torch.int64),
        torch.tensor(owners, dtype=torch.int64),
    )


def on_tokens(samples: Sequence[Sample], channel: PlacedRewards, values: torch.Tensor) -> list[torch.Tensor]:
    """``values`` ``[M]`` times their shares at the tokens they stand on, 0 elsewhere: float64 ``[T]`` of each
    sample."""
    lengths = torch.tensor([len(sample.token_ids) for sample in samples], dtype=torch.int64)
    starts = lengths.cumsum(0) - lengths
    stream = add_at_tokens(values * channel.shares, starts[channel.owners] + channel.ends, int(lengths.sum()))
    return list(stream.split(lengths.tolist()))


def pools_of(samples: Sequence[Sample]) -> tuple[torch.Tensor, int]:
    """The index of each sample's group, int64 ``[N]``, and the number of groups."""
    index: dict[str, int] = {}
    pools = [index.setdefault(sample.group, len(index)) for sample in samples]
    return torch.tensor(pools, dtype=torch.int64), len(index)
