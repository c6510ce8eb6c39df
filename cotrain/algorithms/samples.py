"""From traces with rewards to training samples, and weights of rewards that change while a policy learns.

A value of a *per-answer* signal stands on the last token, one of a *per-span* signal on the last token of its span.
Samples of one *trajectory* share what was given to the whole of it: one value, which stands in each of them.
Several values for one span (several reviewers) are averaged: each gets the share 1/(number of values on this span). A
sample without a value of a per-span signal has no steps there; that is not a failure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from cotrain.algorithms.contract import ContextTokens, Sample
from cotrain.algorithms.functional.credit import add_at_tokens
from cotrain.algorithms.functional.late_torch import torch
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import Signal
from cotrain.core.types import Trace

# -- Weights that change while a policy learns: ``decay(0.1, 1e-3)`` is one over that policy's own updates.
#
# With s updates made of S planned:
#
#     constant(x)         x
#     decay(a, b)         max(b, a · exp(−s · ln(a/b) / S))      RL Tango's α (arXiv 2505.15034): a at s = 0, b at s = S
#     linear(a, b)        a + (b − a) · min(1, s/S)
#     cosine(a, b)        b + (a − b) · ½(1 + cos(π · min(1, s/S)))
#
# s counts the updates of the policy that learns, not the steps of the run: a generator that learns in three steps of
# four decays over its own updates. After S updates the end value stays.


Shape = Literal["constant", "decay", "linear", "cosine"]
SHAPES: tuple[Shape, ...] = ("constant", "decay", "linear", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Anneal:
    """A number as a function of (updates made, updates planned)."""

    shape: Shape
    start: float  # value before the first update
    end: float  # value after the last planned update

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise UnknownName("shape of a mixing weight", self.shape, SHAPES)
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ConfigError(
                f"mixing weight {self.shape}: start {self.start} and end {self.end} must be finite",
                code="E_MIXING_WEIGHT",
            )
        if self.shape == "decay" and not self.start >= self.end > 0.0:
            raise ConfigError(f"decay({self.start}, {self.end}): expected start ≥ end > 0", code="E_MIXING_WEIGHT")

    def __call__(self, updates: int, planned: int) -> float:
        """The value after ``updates`` of ``planned`` updates of this policy. Raises ConfigError unless planned ≥ 1."""
        if self.shape == "constant":
            return self.start
        if planned < 1 or updates < 0:
            raise ConfigError(
                f"{self.shape}: {updates} of {planned} updates; expected at least 0 of at least 1",
                code="E_MIXING_WEIGHT",
            )
        if self.shape == "decay":
            return max(self.end, self.start * math.exp(-updates * math.log(self.start / self.end) / planned))
        done = min(1.0, updates / planned)
        if self.shape == "linear":
            return self.start + (self.end - self.start) * done
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * done))


def constant(value: float) -> Anneal:
    """Always ``value``; a plain number in a ``mix`` means the same."""
    return Anneal(shape="constant", start=value, end=value)


def decay(start: float, end: float) -> Anneal:
    """Exponential from ``start`` to ``end`` (RL Tango: 0.1 to 0.001; from 0.5 for REINFORCE++)."""
    return Anneal(shape="decay", start=start, end=end)


def linear(start: float, end: float) -> Anneal:
    """A straight line from ``start`` to ``end``."""
    return Anneal(shape="linear", start=start, end=end)


def cosine(start: float, end: float) -> Anneal:
    """Half a cosine from ``start`` to ``end``."""
    return Anneal(shape="cosine", start=start, end=end)


def weight_at(weight: float | Anneal, updates: int, planned: int) -> float:
    """A weight of a ``mix`` as a number."""
    return weight(updates, planned) if isinstance(weight, Anneal) else float(weight)


StepScale = Literal["1/K", "one"]
STEP_SCALES: tuple[StepScale, ...] = ("1/K", "one")
AdvantageMix = Literal["convex", "add", "reward"]  # how per-span rewards are combined with per-answer ones
# (``policy_gradient.py``)
ADVANTAGE_MIXES: tuple[AdvantageMix, ...] = ("convex", "add", "reward")
RewardWeights = Mapping[Signal, float | Anneal]


def sample_of(
    trace: Trace,
    *,
    temperature: float = 1.0,
    values: torch.Tensor | None = None,
    scores: Mapping[str, torch.Tensor] | None = None,
    context_tokens: ContextTokens = (),
    limit: int = 0,
) -> Sample:
    """The sample that a trace becomes, before credit.

    Args:
        trace: its sampled tokens alone (``contract.py``).
        temperature: at which its role samples.
        values: ``[T]`` float32 predictions before each token.
        scores: policy → ``[T]`` float32 log-probabilities.
        given: what stands between its tokens.
        limit: the most tokens that it could have had.
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
        rewards=trace.rewards,
        score=trace.score,
        scores=scores or {},
        context_tokens=context_tokens,
        truncated=trace.finish == "length",
        limit=limit,
        trajectory=trace.trajectory,
    )


def token_limit(trace: Trace, max_tokens: int, stop_ids: Collection[int]) -> int:
    """The most tokens that a trace could have had whose role may sample ``max_tokens`` in an answer. Turns are one
    answer as long as nothing ends its message, or the next one ``goes_on``, as between the calls of ``use_tools``."""
    pairs = (pair for pair in pairwise(trace.turns) if not pair[1].goes_on)
    ends = (trace.token_ids[turn.end - 1 : after.start] for turn, after in pairs)
    return max_tokens * (1 + sum(not set(stop_ids).isdisjoint(end) for end in ends))


def check_rewards(owner: str, rewards: RewardWeights) -> None:
    """Raise ConfigError unless these are weights of signals: at least 0, and one of them above."""
    if not rewards:
        raise ConfigError(
            f"{owner}: rewards names no signal; expected for example reward_weights={{OUTCOME: 1.0}}",
            code="E_NO_REWARD_NAMED",
        )
    ends: list[float] = []
    for signal, weight in rewards.items():
        if not isinstance(signal, Signal):
            raise ConfigError(
                f"{owner}: rewards names {signal!r}; expected a signal, as in reward_weights={{OUTCOME: 1.0}}",
                code="E_REWARD_NOT_SIGNAL",
            )
        both = (weight.start, weight.end) if isinstance(weight, Anneal) else (float(weight),)
        if not all(0.0 <= end < math.inf for end in both):
            raise ConfigError(
                f"{owner}: the weight of reward {signal.name!r} is {weight}, expected a number of at least 0; what "
                "shall be avoided gets a negative reward from the protocol",
                code="E_REWARD_WEIGHT",
            )
        ends += both
    if not any(ends):
        raise ConfigError(
            f"{owner}: all weights of rewards are 0, nothing would be learned; give one of them a weight",
            code="E_REWARD_WEIGHTS_ZERO",
        )


def check_step_scale(step_scale: str) -> None:
    if step_scale not in STEP_SCALES:
        raise ConfigError(f"step_scale is {step_scale!r}, expected one of {STEP_SCALES}", code="E_STEP_SCALE")


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


class TokenRewards(NamedTuple):
    """The values of one channel of rewards over a list of samples. ``[M]`` runs over values, sample by sample."""

    values: torch.Tensor  # [M] float64
    shares: torch.Tensor  # [M] float64, 1 / number of values on the same span
    token_index: torch.Tensor  # [M] int64, index of the token that each value stands on
    sample_index: torch.Tensor  # [M] int64, index of the sample it belongs to
    first_index: torch.Tensor  # [U] int64, index in [M] of each reward that was given: one of a whole trajectory counts
    # once
    reward_index: torch.Tensor  # [M] int64, index in [U] of the reward that each value is


def place_rewards(samples: Sequence[Sample], signal: Signal, scale: StepScale = "1/K") -> TokenRewards:
    """All values of a signal and where they stand. A per-span value of a trajectory with K spans is divided by K with
    "1/K". Raises ConfigError for a trajectory whose samples have different values of the whole."""
    values: list[float] = []
    shares: list[float] = []
    ends: list[int] = []
    owners: list[int] = []
    once: list[int] = []
    given: list[int] = []
    whole: dict[str, int] = {}  # trajectory → the place in ``once`` of its reward for the whole
    divisors = _span_counts(samples, signal) if signal.per == "span" and scale == "1/K" else {}
    for index, sample in enumerate(samples):
        signal_rewards = sample.rewards_for(signal)
        length = len(sample.token_ids)
        spans = [reward.tokens or (0, length) for reward in signal_rewards]
        if any(not 0 <= start < end <= length for start, end in spans):
            raise ConfigError(
                f"signal {signal.name!r} of {sample.key}: tokens {spans} in an answer of {length} tokens",
                code="E_SPAN_OUTSIDE_ANSWER",
            )
        times = Counter(spans)
        divisor = divisors.get(sample.trajectory_key, 1)
        for reward in signal_rewards:
            value = reward.value * (1.0 / divisor)
            place = len(once)
            if reward.tokens is None and sample.trajectory:
                place = whole.setdefault(sample.trajectory, place)
            if place == len(once):
                once.append(len(values))
            elif values[once[place]] != value:
                raise ConfigError(
                    f"signal {signal.name!r} of trajectory {sample.trajectory} is {values[once[place]]} and {value}; "
                    "give the whole of each conversation that joins it the same",
                    code="E_SIGNAL_DIFFERS_IN_CONVERSATION",
                )
            given.append(place)
            values.append(value)
        shares += [1.0 / times[span] for span in spans]
        ends += [end - 1 for _, end in spans]
        owners += [index] * len(signal_rewards)
    return TokenRewards(
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(shares, dtype=torch.float64),
        torch.tensor(ends, dtype=torch.int64),
        torch.tensor(owners, dtype=torch.int64),
        torch.tensor(once, dtype=torch.int64),
        torch.tensor(given, dtype=torch.int64),
    )


def _span_counts(samples: Sequence[Sample], signal: Signal) -> dict[str, int]:
    """trajectory → how many spans of it a signal has values for; at least 1."""
    spans: dict[str, set[tuple[str, tuple[int, int]]]] = {}
    for sample in samples:
        for reward in sample.rewards_for(signal):
            tokens = reward.tokens or (0, len(sample.token_ids))
            spans.setdefault(sample.trajectory_key, set()).add((sample.key, tokens))
    return {trajectory: len(places) for trajectory, places in spans.items()}


def trajectories_of(samples: Sequence[Sample]) -> tuple[torch.Tensor, int]:
    """The index of each sample's trajectory, int64 ``[N]``, and how many there are. A sample that is repeated counts
    each time."""
    index: dict[str | int, int] = {}
    trajectories = [index.setdefault(sample.trajectory or at, len(index)) for at, sample in enumerate(samples)]
    return torch.tensor(trajectories, dtype=torch.int64), len(index)


def first_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The first sample of each trajectory: what is counted once for each."""
    firsts: dict[str | int, Sample] = {}
    for at, sample in enumerate(samples):
        firsts.setdefault(sample.trajectory or at, sample)
    return list(firsts.values())


def on_tokens(samples: Sequence[Sample], channel: TokenRewards, values: torch.Tensor) -> list[torch.Tensor]:
    """``values`` ``[M]`` times their shares at the tokens they stand on, 0 elsewhere: float64 ``[T]`` of each
    sample."""
    lengths = torch.tensor([len(sample.token_ids) for sample in samples], dtype=torch.int64)
    starts = lengths.cumsum(0) - lengths
    stream = add_at_tokens(
        values * channel.shares, starts[channel.sample_index] + channel.token_index, int(lengths.sum())
    )
    return list(stream.split(lengths.tolist()))


def index_groups(samples: Sequence[Sample]) -> tuple[torch.Tensor, int]:
    """The index of each sample's group, int64 ``[N]``, and the number of groups."""
    index: dict[str, int] = {}
    group_ids = [index.setdefault(sample.group, len(index)) for sample in samples]
    return torch.tensor(group_ids, dtype=torch.int64), len(index)


# -- What each token was worth in training, as it is kept beside a rollout: advantages as runs of equal values.


AdvantageRuns = list[list[float]]  # [advantage, number of sampled tokens], in order; values to four digits
TokenAdvantages = dict[str, dict[str, AdvantageRuns]]  # address of a trace → objective → its advantages


def token_advantages(credited: Mapping[str, Sequence[Sample]]) -> TokenAdvantages:
    """Advantages of the samples of each objective; a repeated sample counts once."""
    by_trace: TokenAdvantages = {}
    for objective, samples in credited.items():
        for sample in samples:
            values, counts = torch.unique_consecutive(sample.advantages, return_counts=True)
            pairs = zip(values.tolist(), counts.tolist(), strict=True)
            runs = [[float(f"{value:.4g}"), count] for value, count in pairs]
            by_trace.setdefault(sample.key, {}).setdefault(objective, runs)
    return by_trace
