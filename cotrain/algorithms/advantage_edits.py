"""Further changes of samples: functions for ``PolicyGradient.edit_after``, once their advantages are known, and
``before``, for the rewards.

Each takes samples and hands back those to learn from, with the number that it left out by reason.
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


@dataclass(frozen=True, slots=True)
class TrainWithPromptOf:
    """Samples of other roles are learned as answers to what ``role`` was asked in their group: refinements as if there
    had been no critique."""

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
        return sample if sample.role == self.role else replace(sample, prompt_ids=prompt_ids, off_policy=True)


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Tokens that a per-span signal stands on become context, as if they had been given: they have neither credit nor
    loss and count in no total. What a policy wrote in the place of search results (SSRL, arXiv 2508.10874)."""

    signal: Signal

    def __post_init__(self) -> None:
        if self.signal.per != "span":
            raise ConfigError(
                f"LeaveOut: signal {self.signal.name!r} is per answer; expected one that is per span",
                code="E_SIGNAL_NOT_PER_SPAN",
            )

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        kept = [rest for sample in samples if (rest := self._without_hidden(sample)) is not None]
        return kept, {"all left out": len(samples) - len(kept)} if len(kept) < len(samples) else {}

    def _without_hidden(self, sample: Sample) -> Sample | None:
        hidden = {i for reward in sample.rewards_for(self.signal) if reward.tokens for i in range(*reward.tokens)}
        if not hidden:
            return sample
        stays = [i not in hidden for i in range(len(sample.token_ids))]
        if not any(stays):
            return None
        before, given_at = [0, *accumulate(stays)], dict(sample.context_tokens)
        context: dict[int, list[int]] = {}  # by the kept token that it stands before
        for i, token in enumerate(sample.token_ids):
            context.setdefault(before[i], []).extend((*given_at.get(i, ()), *(() if stays[i] else (token,))))
        context_given: ContextTokens = tuple(
            (k, tuple(ids)) for k, ids in sorted(context.items()) if 0 < k < before[-1] and ids
        )
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
            rewards=tuple(
                reward if reward.tokens is None else replace(reward, tokens=(before[low], before[high]))
                for reward in sample.rewards
                for low, high in [reward.tokens or (0, 0)]
                if reward.tokens is None or before[low] < before[high]
            ),
            context_tokens=context_given,
        )


# -- Length. All of it acts on rewards or losses of the first objective of a recipe; ``with_length_options`` adds it.


def mask_truncated(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
    """Answers that were cut are compared with the others, and not learned from: nobody knows how they would have ended
    (DAPO, arXiv 2503.14476, section 3.4, "overlong filtering")."""
    kept = [sample for sample in samples if not sample.truncated]
    return kept, {"truncated": len(samples) - len(kept)} if len(kept) < len(samples) else {}


@dataclass(frozen=True, slots=True)
class OverlongPenalty:
    """Adds to ``signal`` 0 up to L − C tokens, then ((L − C) − tokens) / C, which is −1 at L, the most that the answer
    could have, and never less (DAPO, arXiv 2503.14476, eq. 13). ``tokens``: C. The samples of a trajectory are one
    answer."""

    signal: Signal
    tokens: int

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
        lengths, limits = _sums(samples, lambda sample: len(sample.token_ids)), _sums(samples, lambda one: one.limit)

        def penalty_of(sample: Sample) -> float:
            length, limit = lengths[sample.trajectory_key], limits[sample.trajectory_key]
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
            fewest, most = min(lengths_by_group[sample.group]), max(lengths_by_group[sample.group])
            length = lengths[sample.trajectory_key]
            share = 0.5 - (length - fewest) / (most - fewest) if most > fewest else 0.0
            earned = sum(reward.value for reward in sample.rewards_for(self.signal))
            return self.weight * (share if earned > 0.5 else min(0.0, share))

        return [_with_added_reward(sample, self.signal, reward_of(sample)) for sample in samples], {}


def _sums(samples: Sequence[Sample], count: Callable[[Sample], int]) -> dict[str, int]:
    """trajectory → the sum over its samples."""
    sums: dict[str, int] = {}
    for sample in samples:
        sums[sample.trajectory_key] = sums.get(sample.trajectory_key, 0) + count(sample)
    return sums


def _with_added_reward(sample: Sample, signal: Signal, value: float) -> Sample:
    rewards = tuple(replace(r, value=r.value + value) if r.name == signal.name else r for r in sample.rewards)
    return replace(sample, rewards=rewards)


def with_length_options(by: Algorithm, masked: bool, overlong_tokens: int, length_penalty: float) -> PolicyGradient:
    """The algorithm with ``mask_truncated``, ``OverlongPenalty`` and ``LengthPenalty`` where they are asked for. Raises
    ConfigError for one that compares no rewards of whole answers, or none below 0."""
    signals = (
        [signal for signal in by.reward_weights if signal.per == "answer"] if isinstance(by, PolicyGradient) else []
    )
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
    before: tuple[SampleEdit, ...] = by.edit_before
    before += (LengthPenalty(signals[0], length_penalty),) if length_penalty else ()  # it asks for what was earned
    before += (OverlongPenalty(signals[0], overlong_tokens),) if overlong_tokens else ()
    return replace(by, edit_before=before, edit_after=(*by.edit_after, mask_truncated) if masked else by.edit_after)
