"""From traces with rewards to training samples, and weights of rewards that change while a policy learns.

A value of a *per-answer* signal is placed on the last token of the answer, one of a *per-span* signal on the last token
of its span. Samples of one *trajectory* (a conversation in several traces) share its per-answer reward: each of them
has the same value. Several values on one span (several reviewers) are averaged: each weighs 1 / (number of values on
this span). A sample may lack values of a per-span signal; it then has no steps, which is no failure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Literal, NamedTuple

from cotrain.algorithms.contract import ContextTokens, Sample
from cotrain.algorithms.functional.advantages import add_at_tokens
from cotrain.algorithms.functional.late_torch import torch
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import Signal
from cotrain.core.types import Trace

# -- Weights that change while a policy learns, such as ``decay(0.1, 1e-3)``.
#
# With s updates made of S planned:
#
#     constant(x)         x
#     decay(a, b)         max(b, a · exp(−s · ln(a/b) / S))      RL Tango's α (arXiv 2505.15034): a at s = 0, b at s = S
#     linear(a, b)        a + (b − a) · min(1, s/S)
#     cosine(a, b)        b + (a − b) · ½(1 + cos(π · min(1, s/S)))
#
# s counts the updates of the policy that learns, not the steps of the run: a generator that learns in three of four
# steps decays over its own updates. After S updates the weight stays at its end value.


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
            raise ConfigError(
                f"decay({self.start}, {self.end}): expected start ≥ end > 0; of tango and grpo these are alpha and "
                "alpha_end, and steps_judged_by=none leaves the rewards of steps out",
                code="E_MIXING_WEIGHT",
            )

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
        progress = min(1.0, updates / planned)
        if self.shape == "linear":
            return self.start + (self.end - self.start) * progress
        return self.end + (self.start - self.end) * 0.5 * (1.0 + math.cos(math.pi * progress))


def constant(value: float) -> Anneal:
    """Always ``value``; a plain number as a weight means the same."""
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
    """The weight as a number, after ``updates`` of ``planned`` updates."""
    return weight(updates, planned) if isinstance(weight, Anneal) else float(weight)


StepScale = Literal["1/K", "one"]  # divide the rewards of K steps by K, or not
STEP_SCALES: tuple[StepScale, ...] = ("1/K", "one")
# How per-span rewards are combined with per-answer ones: equations at the top of ``policy_gradient.py``.
AdvantageMix = Literal["convex", "add", "reward"]
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
        trace: a trace of sampled tokens alone (``contract.py: split_context``).
        temperature: the temperature at which its role samples.
        values: ``[T]`` float32 predictions before each token.
        scores: policy → ``[T]`` float32 log-probabilities.
        context_tokens: the tokens between the sampled ones.
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
    """Most tokens that a trace could have had, if its role may sample ``max_tokens`` for each answer. Two turns belong
    to one answer if no stop token is between them, or if the second one continues the first after a tool's output
    (``goes_on``)."""
    answers = 1
    for turn, following in pairwise(trace.turns):
        if following.goes_on:
            continue
        last_token_and_context = trace.token_ids[turn.end - 1 : following.start]
        if not set(stop_ids).isdisjoint(last_token_and_context):
            answers += 1
    return max_tokens * answers


def check_rewards(owner: str, rewards: RewardWeights) -> None:
    """Raise ConfigError unless these are weights of signals, all at least 0 and one above 0."""
    if not isinstance(rewards, Mapping):
        raise ConfigError(
            f"{owner}: reward_weights is {rewards!r}; expected the weight of each signal, as in "
            "reward_weights={OUTCOME: 1.0}",
            code="E_REWARD_WEIGHTS_NOT_MAPPING",
        )
    if not rewards:
        raise ConfigError(
            f"{owner}: reward_weights names no signal; expected for example reward_weights={{OUTCOME: 1.0}}",
            code="E_NO_REWARD_NAMED",
        )
    start_and_end_weights: list[float] = []  # all signals' weights at both ends
    for signal, weight in rewards.items():
        if not isinstance(signal, Signal):
            raise ConfigError(
                f"{owner}: reward_weights names {signal!r}; expected a signal, as in reward_weights={{OUTCOME: 1.0}}",
                code="E_REWARD_NOT_SIGNAL",
            )
        weights = (weight.start, weight.end) if isinstance(weight, Anneal) else (weight,)
        if not all(isinstance(value, Real) and 0.0 <= value < math.inf for value in weights):
            raise ConfigError(
                f"{owner}: the weight of reward {signal.name!r} is {weight}, expected a number of at least 0; what "
                "shall be avoided gets a negative reward from the protocol",
                code="E_REWARD_WEIGHT",
            )
        start_and_end_weights += map(float, weights)

    if not any(start_and_end_weights):
        raise ConfigError(
            f"{owner}: all of reward_weights are 0, nothing would be learned; give one of them a weight",
            code="E_REWARD_WEIGHTS_ZERO",
        )


def check_step_scale(step_scale: str) -> None:
    if step_scale not in STEP_SCALES:
        raise ConfigError(f"step_scale is {step_scale!r}, expected one of {STEP_SCALES}", code="E_STEP_SCALE")


def usable_samples(samples: Iterable[Sample], signals: Collection[Signal]) -> tuple[list[Sample], dict[str, int]]:
    """The samples that have what these signals need, in their order, and the number of others by reason.

    Reasons: "no tokens" (nothing was sampled), "no outcome" (a per-answer signal is missing; by its name), "non-finite
    outcome" (a value is NaN or infinite)."""
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
    signal_names = {signal.name for signal in signals}
    for reward in sample.rewards:
        if reward.name in signal_names and not math.isfinite(reward.value):
            return f"non-finite {reward.name}"
    return None


def value_of(sample: Sample, signal: Signal) -> float:
    """The value of a per-answer signal, on a sample that has it."""
    return sample.rewards_for(signal)[0].value


class TokenRewards(NamedTuple):
    """The rewards of one channel over a list of N samples, and the tokens that they are placed on.

    A reward of a whole trajectory is placed in each of the trajectory's samples, so there are two ways to count:

        [rewards]   each reward once                              ``unique_values``, ``unique_samples``
        [places]    each reward once for each sample that has it  ``values``, ``sample_index``, ``token_index``

    E.g. a trajectory of samples 0 and 1, with 5 and 3 tokens, has the reward 1.0 as a whole, and sample 2, with 4
    tokens, has the reward 0.5:

        values         1.0  1.0  0.5
        sample_index   0    1    2
        token_index    4    2    3      the last token of each sample
        reward_index   0    0    1      the first two places have one reward, number 0
        first_index    0         2      reward 0 begins at place 0, reward 1 at place 2
    """

    values: torch.Tensor  # [places] float64
    # [places] float64, 1 / number of values on the same span: 1/2 where two reviews judged it, 1 for a whole answer
    span_weights: torch.Tensor
    token_index: torch.Tensor  # [places] int64, index of the token that each value is on
    sample_index: torch.Tensor  # [places] int64, index of the sample it belongs to
    first_index: torch.Tensor  # [rewards] int64, index in [places] of the first value of each reward
    reward_index: torch.Tensor  # [places] int64, index in [rewards] of the reward to which each value belongs

    @property
    def unique_values(self) -> torch.Tensor:
        """[rewards] float64, the value of each reward."""
        return self.values[self.first_index]

    @property
    def unique_samples(self) -> torch.Tensor:
        """[rewards] int64, the index of the (first) sample that has each reward."""
        return self.sample_index[self.first_index]

    @property
    def unique_span_weights(self) -> torch.Tensor:
        """[rewards] float64, the span weight of each reward."""
        return self.span_weights[self.first_index]

    def samples_with_value(self) -> list[int]:
        """The indices of the samples that have any value, in order."""
        return sorted(set(self.sample_index.tolist()))

    def gather_from_samples(self, by_sample: torch.Tensor) -> torch.Tensor:
        """[N] → [rewards]: for each reward what belongs to its sample, such as the sample's group."""
        return by_sample[self.unique_samples]


def place_rewards(samples: Sequence[Sample], signal: Signal, scale: StepScale = "1/K") -> TokenRewards:
    """All values of a signal, and the token on which each is placed. With the scale "1/K" the per-span values of a
    trajectory with K spans are divided by K. Raises ConfigError for a trajectory whose samples have different
    per-answer values."""
    values: list[float] = []
    span_weights: list[float] = []
    token_index: list[int] = []
    sample_index: list[int] = []
    first_index: list[int] = []
    reward_index: list[int] = []
    reward_of_trajectory: dict[str, int] = {}  # trajectory → index in [rewards] of its reward as a whole

    span_counts: dict[str, int] = {}
    if signal.per == "span" and scale == "1/K":
        span_counts = _span_counts(samples, signal)

    for index, sample in enumerate(samples):
        rewards = sample.rewards_for(signal)
        length = len(sample.token_ids)
        spans = [reward.tokens or (0, length) for reward in rewards]
        if any(not 0 <= start < end <= length for start, end in spans):
            raise ConfigError(
                f"signal {signal.name!r} of {sample.key}: tokens {spans} in an answer of {length} tokens",
                code="E_SPAN_OUTSIDE_ANSWER",
            )

        values_on_span = Counter(spans)  # span → how many reviewers judged it
        divisor = span_counts.get(sample.trajectory_key, 1)  # K, the spans of the whole trajectory
        for reward, (start, end) in zip(rewards, spans, strict=True):
            value = reward.value * (1.0 / divisor)

            # The number of the reward: a new one, unless an earlier sample of the trajectory has the same reward.
            is_of_whole = reward.tokens is None and bool(sample.trajectory)
            known_number = reward_of_trajectory.get(sample.trajectory) if is_of_whole else None
            if known_number is None:
                number = len(first_index)
                first_index.append(len(values))
                if is_of_whole:
                    reward_of_trajectory[sample.trajectory] = number
            else:
                number = known_number
                first_value = values[first_index[number]]
                if first_value != value:
                    raise ConfigError(
                        f"signal {signal.name!r} of trajectory {sample.trajectory} is {first_value} and "
                        f"{value}; give the whole of each conversation that joins it the same",
                        code="E_SIGNAL_DIFFERS_IN_CONVERSATION",
                    )

            values.append(value)
            span_weights.append(1.0 / values_on_span[start, end])
            token_index.append(end - 1)
            sample_index.append(index)
            reward_index.append(number)

    return TokenRewards(
        values=torch.tensor(values, dtype=torch.float64),
        span_weights=torch.tensor(span_weights, dtype=torch.float64),
        token_index=torch.tensor(token_index, dtype=torch.int64),
        sample_index=torch.tensor(sample_index, dtype=torch.int64),
        first_index=torch.tensor(first_index, dtype=torch.int64),
        reward_index=torch.tensor(reward_index, dtype=torch.int64),
    )


def _span_counts(samples: Sequence[Sample], signal: Signal) -> dict[str, int]:
    """Trajectory → its number of spans with a value of this signal."""
    spans: dict[str, set[tuple[str, tuple[int, int]]]] = {}
    for sample in samples:
        for reward in sample.rewards_for(signal):
            tokens = reward.tokens or (0, len(sample.token_ids))
            spans.setdefault(sample.trajectory_key, set()).add((sample.key, tokens))
    return {trajectory: len(places) for trajectory, places in spans.items()}


def trajectories_of(samples: Sequence[Sample]) -> tuple[torch.Tensor, int]:
    """The index of each sample's trajectory, int64 ``[N]``, and the number of trajectories. A sample without a
    trajectory is one of its own, each time that it occurs."""
    numbers: dict[str | int, int] = {}  # name of a trajectory, or the place of a sample without one → its number
    trajectories = []
    for place, sample in enumerate(samples):
        key = sample.trajectory or place
        trajectories.append(numbers.setdefault(key, len(numbers)))
    return torch.tensor(trajectories, dtype=torch.int64), len(numbers)


def one_per_trajectory(samples: Sequence[Sample], values: torch.Tensor) -> TokenRewards:
    """One reward for each trajectory, on the last token of each of its samples. ``values``: float64, by trajectory in
    the order of ``trajectories_of``. So [rewards] runs over trajectories here, and [places] over samples."""
    trajectories, n_trajectories = trajectories_of(samples)
    first_sample: dict[int, int] = {}  # trajectory → index of its first sample
    for index, trajectory in enumerate(trajectories.tolist()):
        first_sample.setdefault(trajectory, index)

    return TokenRewards(
        values=values[trajectories],  # each sample has the value of its trajectory
        span_weights=torch.ones(len(samples), dtype=torch.float64),
        token_index=torch.tensor([len(sample.token_ids) - 1 for sample in samples], dtype=torch.int64),
        sample_index=torch.arange(len(samples)),
        first_index=torch.tensor([first_sample[trajectory] for trajectory in range(n_trajectories)], dtype=torch.int64),
        reward_index=trajectories,
    )


def first_samples(samples: Sequence[Sample]) -> list[Sample]:
    """The first sample of each trajectory."""
    firsts: dict[str | int, Sample] = {}
    for place, sample in enumerate(samples):
        firsts.setdefault(sample.trajectory or place, sample)
    return list(firsts.values())


def put_on_tokens(samples: Sequence[Sample], rewards: TokenRewards, values: torch.Tensor) -> list[torch.Tensor]:
    """One row of tokens for each sample, float64 ``[T]``: at each place the value of its reward times the span weight,
    0 elsewhere. ``values``: ``[rewards]``, such as the advantage of each reward."""
    lengths = torch.tensor([len(sample.token_ids) for sample in samples], dtype=torch.int64)

    # All samples one after the other in one long row, which is split at the end.
    starts = lengths.cumsum(0) - lengths
    positions = starts[rewards.sample_index] + rewards.token_index
    values_at_places = values[rewards.reward_index]
    row = add_at_tokens(values_at_places * rewards.span_weights, positions, int(lengths.sum()))
    return list(row.split(lengths.tolist()))


def index_groups(samples: Sequence[Sample]) -> tuple[torch.Tensor, int]:
    """The index of each sample's group, int64 ``[N]``, and the number of groups."""
    index: dict[str, int] = {}
    group_ids = [index.setdefault(sample.group, len(index)) for sample in samples]
    return torch.tensor(group_ids, dtype=torch.int64), len(index)


# -- Advantages in the form in which the ledger stores them: runs of equal values.


AdvantageRuns = list[list[float]]  # [advantage, number of sampled tokens], in order; values to four digits
TokenAdvantages = dict[str, dict[str, AdvantageRuns]]  # address of a trace → objective → its advantages


def token_advantages(credited: Mapping[str, Sequence[Sample]]) -> TokenAdvantages:
    """The advantages of each objective's samples, by trace; a sample that occurs twice is stored once."""
    by_trace: TokenAdvantages = {}
    for objective, samples in credited.items():
        for sample in samples:
            values, counts = torch.unique_consecutive(sample.advantages, return_counts=True)
            pairs = zip(values.tolist(), counts.tolist(), strict=True)
            runs = [[float(f"{value:.4g}"), count] for value, count in pairs]
            by_trace.setdefault(sample.key, {}).setdefault(objective, runs)
    return by_trace
