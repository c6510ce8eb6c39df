"""Further edits of samples, for ``PolicyGradient.edit_before`` (rewards) and ``edit_after`` (samples with advantages).

Each takes samples and returns those to learn from, with the number that it left out by reason.
``recipes/mars/subsample.py`` has another one.
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
    """Samples of other roles are learned as answers to the prompt that ``role`` had in their group: a refinement is
    learned as if there had been no critique."""

    role: str

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        prompts = {sample.group: sample.prompt_ids for sample in samples if sample.role == self.role}
        lonely = [sample.key for sample in samples if sample.group not in prompts]
        if lonely:
            raise ConfigError(
                f"sample {lonely[0]} is to be learned with the prompt of role {self.role!r}, but that role has none in "
                "its group; give it the group of one that has, as in group=solution.group",
                code="E_PROMPT_OUTSIDE_GROUP",
            )
        return [self._replace_prompt(sample, prompts[sample.group]) for sample in samples], {}

    def _replace_prompt(self, sample: Sample, prompt_ids: tuple[int, ...]) -> Sample:
        if sample.role == self.role:
            return sample
        return replace(sample, prompt_ids=prompt_ids, off_policy=True)


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Tokens that a per-span signal is on become context, as if they had been given: they have neither credit nor
    loss and count in no total. SSRL (arXiv 2508.10874) leaves out what a policy wrote in the place of search
    results."""

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
            remainder = self._without_hidden(sample)
            if remainder is not None:
                kept.append(remainder)
        return kept, _left_out("all left out", samples, kept)

    def _without_hidden(self, sample: Sample) -> Sample | None:
        """The sample without the tokens of the signal; None if it has no other ones."""
        hidden: set[int] = set()
        for reward in sample.rewards_for(self.signal):
            if reward.tokens:
                hidden.update(range(*reward.tokens))
        if not hidden:
            return sample

        stays = [i not in hidden for i in range(len(sample.token_ids))]
        if not any(stays):
            return None

        before = [0, *accumulate(stays)]  # kept tokens in front of each place
        n_kept = before[-1]

        # Context is keyed by the kept token that it is before: what was given there, and what is hidden now.
        given_at = dict(sample.context_tokens)
        context: dict[int, list[int]] = {}
        for i, token in enumerate(sample.token_ids):
            here = context.setdefault(before[i], [])
            here.extend(given_at.get(i, ()))
            if not stays[i]:
                here.append(token)
        between: ContextTokens = tuple((k, tuple(ids)) for k, ids in sorted(context.items()) if 0 < k < n_kept and ids)

        index = torch.tensor([i for i, kept in enumerate(stays) if kept])

        def take_kept(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else values[index]

        return replace(
            sample,
            prompt_ids=(*sample.prompt_ids, *context.get(0, ())),
            token_ids=tuple(token for token, kept in zip(sample.token_ids, stays, strict=True) if kept),
            sampler_logprobs=sample.sampler_logprobs[index],
            advantages=sample.advantages[index],
            reference=take_kept(sample.reference),
            targets=take_kept(sample.targets),
            old_values=take_kept(sample.old_values),
            scores={name: values[index] for name, values in sample.scores.items()},
            rewards=_moved_rewards(sample.rewards, before),
            context_tokens=between,
        )


def _moved_rewards(rewards: Sequence[Reward], before: Sequence[int]) -> tuple[Reward, ...]:
    """The rewards at the places of the kept tokens. One whose tokens are all hidden is left out. ``before[i]`` is the
    number of kept tokens in front of place i."""
    moved = []
    for reward in rewards:
        if reward.tokens is None:
            moved.append(reward)
            continue
        start, end = (before[place] for place in reward.tokens)
        if start < end:
            moved.append(replace(reward, tokens=(start, end)))
    return tuple(moved)


def _left_out(reason: str, samples: Sequence[Sample], kept: Sequence[Sample]) -> dict[str, int]:
    """How many of the samples are not kept, by the reason; {} if all are."""
    count = len(samples) - len(kept)
    return {reason: count} if count else {}


# -- Length. These edits act on rewards or losses of the first objective of a recipe; ``with_length_options`` adds them.


def mask_truncated(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
    """Answers that were cut are compared with the others, and not learned from: nobody knows how they would have ended
    (DAPO, arXiv 2503.14476, section 3.4, "overlong filtering")."""
    kept = [sample for sample in samples if not sample.truncated]
    return kept, _left_out("truncated", samples, kept)


@dataclass(frozen=True, slots=True)
class OverlongPenalty:
    """Adds to ``signal`` 0 up to L − C tokens, then ((L − C) − tokens) / C, which is −1 at L, the most that the answer
    could have, and never less (DAPO, arXiv 2503.14476, eq. 13). ``tokens``: C. The samples of a trajectory are one
    answer."""

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
    """Adds to ``signal`` ``weight`` · λ, with λ = ½ − (tokens − fewest) / (most − fewest) within the group, at most 0
    for an answer that earned no more than ½ (Kimi k1.5, arXiv 2501.12599, section 2.3.3). The samples of a trajectory
    are one answer."""

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
            share = 0.5 - (lengths[sample.trajectory_key] - fewest) / (most - fewest)

            earned = sum(reward.value for reward in sample.rewards_for(self.signal))
            if earned <= 0.5:  # no reward for a short wrong answer
                share = min(0.0, share)
            return self.weight * share

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


def with_length_options(by: Algorithm, masked: bool, overlong_tokens: int, length_penalty: float) -> PolicyGradient:
    """The algorithm with ``mask_truncated``, ``OverlongPenalty`` and ``LengthPenalty`` where they are asked for. Raises
    ConfigError for one that compares no rewards of whole answers, or none below 0."""
    signals: list[Signal] = []
    if isinstance(by, PolicyGradient):
        signals = [signal for signal in by.reward_weights if signal.per == "answer"]
    if not isinstance(by, PolicyGradient) or not signals:
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
    if by.advantage is over_success and (overlong_tokens or length_penalty):
        raise ConfigError(
            "estimator='maxrl' divides by a rate of success, which overlong_tokens and length_penalty push below 0; "
            "leave them out, or take another estimator",
            code="E_MAXRL_WITH_REWARD_EDITS",
        )

    before: list[SampleEdit] = [*by.edit_before]
    after: list[SampleEdit] = [*by.edit_after]
    if length_penalty:  # first, as it reads what was earned, without the penalty for overlong answers
        before.append(LengthPenalty(signals[0], length_penalty))
    if overlong_tokens:
        before.append(OverlongPenalty(signals[0], overlong_tokens))
    if masked:
        after.append(mask_truncated)
    return replace(by, edit_before=tuple(before), edit_after=tuple(after))
