"""Edits of samples: ``PolicyGradient.edit_before`` changes rewards, ``edit_after`` changes samples with advantages.

An edit is a function from samples to (the samples to learn from, how many it left out by reason). A method's own edit
is in its own folder, such as ``recipes/mars/subsample.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from cotrain.algorithms.contract import Algorithm, ContextTokens, Sample
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.grpo import over_success
from cotrain.algorithms.policy_gradient import PolicyGradient, SampleEdit
from cotrain.core.errors import ConfigError
from cotrain.core.signals import Signal
from cotrain.core.types import Reward


@dataclass(frozen=True, slots=True)
class TrainWithPromptOf:
    """Train samples of other roles as answers to the prompt that ``role`` had in their group. So a refinement, which
    was sampled after a critique, is trained as an answer to the problem alone."""

    role: str

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        prompts = {sample.group: sample.prompt_ids for sample in samples if sample.role == self.role}
        without_prompt = [sample.key for sample in samples if sample.group not in prompts]
        if without_prompt:
            raise ConfigError(
                f"sample {without_prompt[0]} is to be learned with the prompt of role {self.role!r}, but that role "
                "has none in its group; give it the group of one that has, as in group=solution.group",
                code="E_PROMPT_OUTSIDE_GROUP",
            )
        return [self._replace_prompt(sample, prompts[sample.group]) for sample in samples], {}

    def _replace_prompt(self, sample: Sample, prompt_ids: tuple[int, ...]) -> Sample:
        if sample.role == self.role:
            return sample
        return replace(sample, prompt_ids=prompt_ids, off_policy=True)


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Turn tokens that carry a per-span signal into context: they get no advantage and no loss, and count in no total.
    SSRL (arXiv 2508.10874) leaves out what a policy wrote in the place of search results."""

    signal: Signal

    def __post_init__(self) -> None:
        if self.signal.per != "span":
            raise ConfigError(
                f"LeaveOut: signal {self.signal.name!r} is per answer; expected one that is per span",
                code="E_SIGNAL_NOT_PER_SPAN",
            )

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        kept = []
        for sample in samples:
            shorter = self._without_span_tokens(sample)
            if shorter is not None:
                kept.append(shorter)
        return kept, _left_out("all left out", samples, kept)

    def _without_span_tokens(self, sample: Sample) -> Sample | None:
        """The sample with the tokens of the signal as context; None if it has no other tokens."""
        left_out: set[int] = set()  # positions of tokens that become context
        for reward in sample.rewards_for(self.signal):
            if reward.tokens:
                left_out.update(range(*reward.tokens))
        if not left_out:
            return sample

        is_kept = [i not in left_out for i in range(len(sample.token_ids))]
        if not any(is_kept):
            return None

        n_kept_before = [0, *accumulate(is_kept)]  # [T + 1] kept tokens in front of each position
        n_kept = n_kept_before[-1]

        # New context in front of each kept token k: the old context there, and the tokens that are left out there.
        old_context = dict(sample.context_tokens)
        new_context: dict[int, list[int]] = {}
        for i, token in enumerate(sample.token_ids):
            ids_here = new_context.setdefault(n_kept_before[i], [])
            ids_here.extend(old_context.get(i, ()))
            if not is_kept[i]:
                ids_here.append(token)

        # Context in front of the first kept token belongs to the prompt; context after the last one has no use.
        context_tokens: ContextTokens = tuple(
            (k, tuple(ids)) for k, ids in sorted(new_context.items()) if 0 < k < n_kept and ids
        )
        index = torch.tensor([i for i, kept in enumerate(is_kept) if kept])

        def take_kept(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values[index]

        return replace(
            sample,
            prompt_ids=(*sample.prompt_ids, *new_context.get(0, ())),
            token_ids=tuple(token for token, kept in zip(sample.token_ids, is_kept, strict=True) if kept),
            sampler_logprobs=sample.sampler_logprobs[index],
            advantages=sample.advantages[index],
            reference=take_kept(sample.reference),
            targets=take_kept(sample.targets),
            old_values=take_kept(sample.old_values),
            scores={name: values[index] for name, values in sample.scores.items()},
            rewards=_shifted_rewards(sample.rewards, n_kept_before),
            context_tokens=context_tokens,
        )


def _shifted_rewards(rewards: Sequence[Reward], n_kept_before: Sequence[int]) -> tuple[Reward, ...]:
    """The rewards with spans in positions of kept tokens. A reward on no kept token is dropped. ``n_kept_before``:
    [T + 1] kept tokens in front of each position."""
    shifted = []
    for reward in rewards:
        if reward.tokens is None:
            shifted.append(reward)
            continue
        old_start, old_end = reward.tokens
        start = n_kept_before[old_start]
        end = n_kept_before[old_end]
        if start < end:
            shifted.append(replace(reward, tokens=(start, end)))
    return tuple(shifted)


def _left_out(reason: str, samples: Sequence[Sample], kept: Sequence[Sample]) -> dict[str, int]:
    """{reason: number of samples that are not kept}; {} if all are."""
    count = len(samples) - len(kept)
    return {reason: count} if count else {}


# -- Length. These edits act on rewards or losses of the first objective of a recipe; ``with_length_options`` adds them.


def mask_truncated(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
    """Leave out answers that were cut off at their token limit, after they counted in the baselines of their groups:
    nobody knows how they would have ended (DAPO, arXiv 2503.14476, section 3.4, "overlong filtering")."""
    kept = [sample for sample in samples if not sample.truncated]
    return kept, _left_out("truncated", samples, kept)


@dataclass(frozen=True, slots=True)
class OverlongPenalty:
    """Soft overlong punishment (DAPO, arXiv 2503.14476, eq. 13). Adds a penalty to ``signal``: 0 up to L − C tokens,
    then ((L − C) − tokens) / C, which is −1 at L and never less. L is the most tokens that the answer could have, C the
    field ``tokens``. Samples of one trajectory count as one answer."""

    signal: Signal
    tokens: int

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        lengths = _sums(samples, lambda sample: len(sample.token_ids))
        limits = _sums(samples, lambda sample: sample.limit)

        def penalty_of(sample: Sample) -> float:
            length = lengths[sample.trajectory_key]
            limit = limits[sample.trajectory_key]
            return max(-1.0, min(0.0, (limit - self.tokens - length) / self.tokens))

        return [_with_added_reward(sample, self.signal, penalty_of(sample)) for sample in samples], {}


@dataclass(frozen=True, slots=True)
class LengthPenalty:
    """Length reward (Kimi k1.5, arXiv 2501.12599, section 2.3.3). Adds ``weight`` · λ to ``signal``, with
    λ = ½ − (tokens − fewest) / (most − fewest) within the group, and λ ≤ 0 for an answer that earned ½ or less. Samples
    of one trajectory count as one answer."""

    signal: Signal
    weight: float

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        lengths = _sums(samples, lambda sample: len(sample.token_ids))
        lengths_by_group: dict[str, list[int]] = {}
        for sample in samples:
            lengths_by_group.setdefault(sample.group, []).append(lengths[sample.trajectory_key])

        def reward_of(sample: Sample) -> float:
            group_lengths = lengths_by_group[sample.group]
            fewest = min(group_lengths)
            most = max(group_lengths)
            if fewest == most:
                return 0.0
            length_reward = 0.5 - (lengths[sample.trajectory_key] - fewest) / (most - fewest)  # λ

            earned = sum(reward.value for reward in sample.rewards_for(self.signal))
            if earned <= 0.5:  # no reward for a short wrong answer
                length_reward = min(0.0, length_reward)
            return self.weight * length_reward

        return [_with_added_reward(sample, self.signal, reward_of(sample)) for sample in samples], {}


def _sums(samples: Sequence[Sample], count: Callable[[Sample], int]) -> dict[str, int]:
    """Trajectory → the sum of ``count`` over its samples."""
    sums: dict[str, int] = {}
    for sample in samples:
        sums[sample.trajectory_key] = sums.get(sample.trajectory_key, 0) + count(sample)
    return sums


def _with_added_reward(sample: Sample, signal: Signal, value: float) -> Sample:
    rewards = list(sample.rewards)
    for i, reward in enumerate(rewards):
        if reward.name == signal.name:
            rewards[i] = replace(reward, value=reward.value + value)
    return replace(sample, rewards=tuple(rewards))


def with_length_options(
    algorithm: Algorithm, masked: bool, overlong_tokens: int, length_penalty: float
) -> PolicyGradient:
    """The algorithm with ``mask_truncated`` (if ``masked``), ``OverlongPenalty`` and ``LengthPenalty`` (if above 0).
    Raises ConfigError for an algorithm without rewards of whole answers, and for MaxRL, which allows none below 0."""
    signals: list[Signal] = []
    if isinstance(algorithm, PolicyGradient):
        signals = [signal for signal in algorithm.reward_weights if signal.per == "answer"]
    if not isinstance(algorithm, PolicyGradient) or not signals:
        raise ConfigError(
            "mask_truncated, overlong_tokens and length_penalty change the rewards of answers, and the first objective "
            "of this recipe learns from none; leave them out",
            code="E_REWARD_EDITS_UNUSED",
        )
    if overlong_tokens < 0 or length_penalty < 0.0:
        raise ConfigError(
            f"overlong_tokens is {overlong_tokens} and length_penalty {length_penalty}; expected at least 0 of both",
            code="E_REWARD_EDITS_RANGE",
        )
    if algorithm.advantage is over_success and (overlong_tokens or length_penalty):
        raise ConfigError(
            "estimator='maxrl' divides by a rate of success, which overlong_tokens and length_penalty push below 0; "
            "leave them out, or take another estimator",
            code="E_MAXRL_WITH_REWARD_EDITS",
        )

    before: list[SampleEdit] = [*algorithm.edit_before]
    after: list[SampleEdit] = [*algorithm.edit_after]
    if length_penalty:  # before the next one, since it reads the reward without that penalty
        before.append(LengthPenalty(signals[0], length_penalty))
    if overlong_tokens:
        before.append(OverlongPenalty(signals[0], overlong_tokens))
    if masked:
        after.append(mask_truncated)
    return replace(algorithm, edit_before=tuple(before), edit_after=tuple(after))
