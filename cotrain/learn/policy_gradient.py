"""Policy gradient from rewards: GRPO and its relatives, which differ in the functions that are passed
(``algorithms.py``).

Every signal of ``rewards`` is a channel. Its values are compared (``baseline``, ``advantage``), stand on the last token
of the answer or span, and are summed towards the front: A(t) = Σ_{k: end_k ≥ t} z_k, so an outcome reaches every token
and a token answers for every step that ends at it or later. ``over_batch`` may rescale them over all tokens. Then
*advantages* are mixed, never rewards. With channels o per answer and p per span, and weights at s updates of S planned:

    A(i,t) = (1 − Σ_p α_p) · Σ_o w_o A_o(i) + Σ_p α_p A_p(i,t)            blend="convex" (RL Tango, arXiv 2505.15034)
    A(i,t) =                 Σ_o w_o A_o(i) + Σ_p α_p A_p(i,t)            blend="add"

``rewards={OUTCOME: 1.0, STEP: decay(0.1, 1e-3)}`` is Tango's generator. Its verifier is paid one reward, agreement +
0.8 · format: ``rewards={AGREEMENT: 1.0, FORMAT: 0.8}, merge=True`` adds up the per-answer values before anything is
compared. A sample without steps (its review could not be read) has process advantage 0, and its outcome advantage keeps
the factor 1 − α; the steps of a group are one pool, so samples of many steps weigh more in it. A sample that lacks a
per-answer reward is dropped and counted. Roles in ``beside`` are in the groups and in these metrics, and are learned
from by nobody here: so two policies can share one mean and deviation.

Left out: length penalties, dynamic resampling until enough groups have spread, several epochs over a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import Signal
from cotrain.core.state import State
from cotrain.functional.credit import pool_is_flat, reward_to_go
from cotrain.functional.reductions import Normalise
from cotrain.learn.after import After, drop_flat_groups
from cotrain.learn.balance import ClassBalance
from cotrain.learn.contract import Batch, Credit, Loss, MicroBatch, Needs, Normaliser, Sample
from cotrain.learn.estimators import Baselines, Estimator, RunningMean, z_score
from cotrain.learn.losses import CLIPPED, Kl, TokenLoss, check_loss, policy_loss, uses_ratio
from cotrain.learn.mixing import weight_at
from cotrain.learn.samples import (
    PlacedRewards,
    RewardWeights,
    StepScale,
    check_rewards,
    check_step_scale,
    on_tokens,
    place_rewards,
    pools_of,
    usable_samples,
)

OverBatch = Callable[[torch.Tensor], torch.Tensor]  # [N] → [N], N tokens of the whole batch
MERGED = "merged"  # name of the channel that holds the sum of all per-answer rewards


@dataclass(frozen=True, kw_only=True)
class PolicyGradient:
    """Settings. What is remembered between updates, baselines and class counts, is the state that credit hands back."""

    rewards: RewardWeights  # signal → weight of its advantages
    merge: bool = False  # add up the weighted per-answer rewards to one before they are compared
    blend: Literal["convex", "add"] = "convex"
    step_scale: StepScale = "1/K"  # a step of a sample of K steps is worth ±1/K (Tango), or ±1 ("one")
    baseline: RunningMean | None = None  # taken off values first
    advantage: Estimator | None = z_score  # compares values within a group; None: with nobody
    over_batch: OverBatch | None = None  # rescales the advantages of a channel, over all of its tokens
    after: tuple[After, ...] = (drop_flat_groups,)  # done to the samples, in turn
    balance: ClassBalance | None = None
    loss: TokenLoss = CLIPPED
    normalise: Normalise = "token"
    constant: float | None = None  # tokens per sequence, with normalise="constant"
    kl: Kl | None = None
    entropy: float = 0.0
    beside: tuple[str, ...] = ()  # roles that answers are only compared with, whoever plays them

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_rewards(name, self.rewards)
        check_step_scale(self.step_scale)
        check_loss(self.loss, self.normalise, self.constant)
        if self.advantage is not None and not callable(self.advantage):
            raise ConfigError(f"{name}: advantage is {self.advantage!r}, expected a function such as z_score, or None")
        if self.blend not in ("convex", "add"):
            raise UnknownName("blend", self.blend, ("add", "convex"))
        if self.balance is not None and self.balance.label in self.rewards:
            raise ConfigError(
                f"{name}: {self.balance.label.name!r} is both a reward and the label of the class balance"
            )
        if self.merge and not self._signals_per("answer"):
            raise ConfigError(f"{name}: merge=True, but rewards has no per-answer signal to add up")
        for edge in (0, 1):
            self._outcome_share({signal: weight_at(weight, edge, 1) for signal, weight in self.rewards.items()})

    def _signals_per(self, per: str) -> list[Signal]:
        return [signal for signal in self.rewards if signal.per == per]

    def _outcome_share(self, weights: Mapping[Signal, float]) -> float:
        """What is left for the per-answer channels: 1 − Σ_p α_p, or all of it."""
        if self.blend == "add":
            return 1.0
        alphas = {signal.name: weights[signal] for signal in self._signals_per("span")}
        outcome_share = 1.0 - sum(alphas.values())
        if any(not 0.0 <= alpha <= 1.0 for alpha in alphas.values()) or outcome_share < -1e-9:
            raise ConfigError(
                f"{type(self).__name__}: weights of per-span rewards {alphas} must lie in [0, 1] and add up to at most "
                "1, the outcome has the rest; use blend='add' for free weights"
            )
        return outcome_share

    def needs(self) -> Needs:
        return Needs(
            reads=(*self.rewards, *([self.balance.label] if self.balance else [])),
            ratio=uses_ratio(self.loss),
            group=1 if self.advantage is None else 2,
            reference=self.kl.reference if self.kl else None,
            entropy=self.entropy != 0.0,
            beside=self.beside,
        )

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        samples, dropped = usable_samples(batch.samples, self.rewards)
        pools, groups = pools_of(samples)
        weights = {signal: weight_at(weight, batch.updates, batch.planned) for signal, weight in self.rewards.items()}
        rewards = {signal: place_rewards(samples, signal, self.step_scale) for signal in self.rewards}
        metrics = {"traces": float(len(samples)), "groups": float(groups)} | _reward_metrics(samples, rewards)
        memory: State = {}

        baselines: Baselines = state.get("baselines", {})
        mixed = [torch.zeros(len(sample.token_ids), dtype=torch.float64) for sample in samples]
        # whom a reward is compared with: those of its group, or without an estimator of groups all of the batch
        compared, count = (pools, groups) if self.advantage else (torch.zeros_like(pools), min(groups, 1))
        flat = torch.ones(count, dtype=torch.bool)
        for name, (channel, factor) in self._reward_channels(rewards, weights).items():
            tokens, baselines = self._channel_advantages(name, channel, samples, pools, baselines)
            metrics |= {f"advantage/{name}": _mean_size(tokens), f"mix/{name}": factor}
            if factor:
                flat &= pool_is_flat(channel.values, compared[channel.owners], count)
                for total, part in zip(mixed, tokens, strict=True):
                    total += factor * part
        if groups:
            metrics["zero_spread_groups"] = float(flat.double().mean())
        if self.baseline is not None:
            memory["baselines"] = dict(sorted(baselines.items()))

        learned = [
            replace(sample, advantages=mine)
            for sample, mine in zip(samples, mixed, strict=True)
            if sample.role not in self.beside
        ]
        for change in self.after:
            learned, left_out = change(learned)
            dropped |= left_out
        if self.balance is not None:
            learned, memory["classes"], balance_metrics = self.balance.weigh_samples(
                samples, learned, state.get("classes", (0.0, 0.0))
            )
            metrics |= balance_metrics
        rounded = tuple(replace(sample, advantages=sample.advantages.to(torch.float32)) for sample in learned)
        return Credit(samples=rounded, metrics=metrics, dropped=dropped), memory

    def _reward_channels(
        self, rewards: Mapping[Signal, PlacedRewards], weights: Mapping[Signal, float]
    ) -> dict[str, tuple[PlacedRewards, float]]:
        """All channels, per-answer ones first, with the factor by which their advantages enter the mixture."""
        outcome_share, answers = self._outcome_share(weights), self._signals_per("answer")
        channels = {signal.name: (rewards[signal], outcome_share * weights[signal]) for signal in answers}
        if self.merge:
            first = rewards[answers[0]]
            total = sum(
                (weights[signal] * rewards[signal].values for signal in answers), torch.zeros_like(first.values)
            )
            channels = {MERGED: (first._replace(values=total), outcome_share)}
        return channels | {signal.name: (rewards[signal], weights[signal]) for signal in self._signals_per("span")}

    def _channel_advantages(
        self, name: str, channel: PlacedRewards, samples: Sequence[Sample], pools: torch.Tensor, baselines: Baselines
    ) -> tuple[list[torch.Tensor], Baselines]:
        """The advantages of one channel, float64 ``[T]`` of each sample, and the baselines after it."""
        values = channel.values
        if self.baseline is not None:
            keys = [f"{samples[owner].role}/{name}" for owner in channel.owners.tolist()]
            games = [samples[owner].episode_key for owner in channel.owners.tolist()]
            values, baselines = self.baseline(values, keys, games, baselines)
        if self.advantage is not None:
            values = self.advantage(values, pools[channel.owners])
        tokens = [reward_to_go(part) for part in on_tokens(samples, channel, values)]
        valued_indices = sorted(
            set(channel.owners.tolist())
        )  # the others have no value in this channel and keep their zeros
        if self.over_batch is not None and valued_indices:
            lengths = [len(tokens[i]) for i in valued_indices]
            rescaled = self.over_batch(torch.cat([tokens[i] for i in valued_indices])).split(lengths)
            for i, part in zip(valued_indices, rescaled, strict=True):
                tokens[i] = part
        return tokens, baselines

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        return policy_loss(
            predictions,
            entropy,
            batch,
            normaliser,
            loss=self.loss,
            normalise=self.normalise,
            constant=self.constant,
            kl=self.kl,
            bonus=self.entropy,
        )


def _mean_size(tokens: Sequence[torch.Tensor]) -> float:
    """Mean |A| over tokens."""
    count = sum(map(len, tokens))
    return float(sum(part.abs().sum() for part in tokens)) / count if count else 0.0


def _reward_metrics(samples: Sequence[Sample], channels: Mapping[Signal, PlacedRewards]) -> dict[str, float]:
    """Means of per-answer rewards; of per-span ones how many samples have any, and how many spans these have."""
    metrics: dict[str, float] = {}
    for signal, channel in channels.items() if samples else ():
        if signal.per == "answer":
            metrics[f"reward/{signal.name}"] = sum(channel.values.tolist()) / len(samples)
            continue
        counts = [len({reward.tokens for reward in sample.rewards_for(signal)}) for sample in samples]
        span_counts = [count for count in counts if count]
        metrics[f"coverage/{signal.name}"] = len(span_counts) / len(samples)
        if span_counts:
            metrics[f"count/{signal.name}"] = sum(span_counts) / len(span_counts)
    return metrics
