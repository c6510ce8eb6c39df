"""Policy gradient from rewards: GRPO and its relatives, which differ in the functions that are passed
(``grpo.py``); class balance and the usual estimators.

Every signal of ``rewards`` is a channel. Its values are compared (``baseline``, ``advantage``), stand on the last token
of the answer or span, and are summed towards the front: A(t) = Σ_{k: end_k ≥ t} z_k, so an outcome reaches every token
and a token answers for every step that ends at it or later. ``over_batch`` may rescale them over all tokens. Then
*advantages* are mixed. With channels o per answer and p per span, and weights at s updates of S planned:

    A(i,t) = (1 − Σ_p α_p) · Σ_o w_o A_o(i) + Σ_p α_p A_p(i,t)            blend="convex" (RL Tango, arXiv 2505.15034)
    A(i,t) =                 Σ_o w_o A_o(i) + Σ_p α_p A_p(i,t)            blend="add"

Or *rewards* are added before anything is compared, and every token of an answer has the same advantage:

    r(i) = Σ_o w_o r_o(i) + Σ_p α_p r_p(i)                                blend="reward"

with r_p(i) the mean of an answer's values per span (``step_scale="1/K"``) or their sum ("one"), and 0 for an answer
without any.

``rewards={OUTCOME: 1.0, STEP: decay(0.1, 1e-3)}`` is Tango's generator. Its verifier is paid one reward, agreement +
0.8 · format: ``rewards={AGREEMENT: 1.0, FORMAT: 0.8}, merge=True`` adds up the per-answer values before anything is
compared. A sample without steps (its review could not be read) has process advantage 0, and its outcome advantage keeps
the factor 1 − α; the steps of a group are one pool, so samples of many steps weigh more in it. A sample that lacks a
per-answer reward is dropped and counted. Samples of one trajectory share a reward of the whole: it is one value of its
group, and its advantage goes to all of them. Roles in ``beside`` are in the groups and in these metrics, and are
learned from by nobody here: so two policies can share one mean and deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from cotrain.algorithms.contract import Batch, Credit, Needs, Sample
from cotrain.algorithms.functional.credit import ema_baseline, group_mean_std, leave_one_out, pool_is_flat, reward_to_go
from cotrain.algorithms.policy_loss import PolicyLoss, check_loss, has_other_terms, uses_ratio
from cotrain.algorithms.samples import (
    BLENDS,
    Blend,
    PlacedRewards,
    RewardWeights,
    StepScale,
    check_rewards,
    check_step_scale,
    first_samples,
    on_tokens,
    place_rewards,
    pools_of,
    trajectories_of,
    usable_samples,
    weight_at,
)
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import TRUTH, Signal
from cotrain.core.types import State

# -- Class balance: samples of two classes weigh less the more often their class was seen lately (RL Tango, arXiv
# 2505.15034).
#
# A verifier whose generator is mostly wrong earns most by calling everything wrong. With n± the running counts of
# samples that judge a right (+) or a wrong (−) solution,
#
#     n± ← ρ n± + (1 − ρ) · count in this batch,      w_i = s_i / mean_j s_j with s_i = n_{class of i}^−power
#
# so the mean weight of a batch is 1; a review of several training sequences counts once. Tango's power is ½, which
# leaves the rare class the lighter one in sum; with 1 both classes weigh the same. The weight multiplies the policy
# loss of a sample and touches no statistic: advantages are those of the unweighted rewards. Counts start at 0; only
# their ratio matters, so no bias correction.


Counts = Sequence[float]  # running counts of class 0 and class 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBalance:
    """Settings. The class of a sample is its signal ``label`` (1 or 0), which the protocol gives and is no reward."""

    label: Signal = TRUTH
    ema: float = 0.8  # ρ
    power: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.label, Signal) or self.label.per != "answer":
            raise ConfigError(f"ClassBalance: label is {self.label!r}, expected a per-answer signal such as TRUTH")
        if not 0.0 <= self.ema < 1.0:
            raise ConfigError(f"ClassBalance: ema {self.ema} must be in [0, 1)")
        if not 0.0 < self.power <= 1.0:
            raise ConfigError(
                f"ClassBalance: power {self.power} must be in (0, 1]; 0.5 is Tango's, 1 weighs both classes the same"
            )

    def weigh_samples(
        self, seen: Sequence[Sample], kept: Sequence[Sample], counts: Counts
    ) -> tuple[list[Sample], list[float], dict[str, float]]:
        """The samples ``kept``, with their weights; the counts after all that were ``seen``, as if none had been
        dropped; and metrics. Raises ConfigError where samples were seen and none has a label."""
        labels = [self._class_label(sample) for sample in first_samples(seen)]
        if labels and all(label is None for label in labels):
            raise ConfigError(
                f"the class balance reads signal {self.label.name!r}, but no turn of role {seen[0].role!r} has it; let "
                "the protocol reward it with 1 or 0"
            )
        counts = update_counts(counts, labels, self.ema)
        kept_labels = [self._class_label(sample) for sample in first_samples(kept)]
        scales = class_weights(counts, kept_labels, self.power)
        metrics = {"balance/unlabelled": float(sum(label is None for label in labels))}
        if sum(counts) > 0.0:
            metrics["balance/positive"] = counts[1] / sum(counts)
        for side, side_label in (("negative", False), ("positive", True)):
            if side_label in kept_labels:
                metrics[f"balance/weight_{side}"] = scales[kept_labels.index(side_label)]
        trajectories, _ = trajectories_of(kept)
        weighed = [
            replace(sample, weight=scales[trajectory])
            for sample, trajectory in zip(kept, trajectories.tolist(), strict=True)
        ]
        return weighed, list(counts), metrics

    def _class_label(self, sample: Sample) -> bool | None:
        given = sample.rewards_for(self.label)
        if given and given[0].value not in (0.0, 1.0):
            raise ConfigError(f"class label {self.label.name!r} of {sample.key} is {given[0].value}, expected 0 or 1")
        return bool(given[0].value) if given else None


def update_counts(counts: Counts, labels: Sequence[bool | None], ema: float) -> tuple[float, float]:
    """n± ← ρ n± + (1 − ρ) · count; labels that are None count nowhere."""
    negatives = sum(label is False for label in labels)
    positives = sum(label is True for label in labels)
    return ema * counts[0] + (1.0 - ema) * negatives, ema * counts[1] + (1.0 - ema) * positives


def class_weights(counts: Counts, labels: Sequence[bool | None], power: float = 0.5) -> list[float]:
    """One weight a label, with mean 1 over the labels that are not None; None gets 1.

    Raises ValueError when a label's class has count 0: update the counts with the batch first.
    """
    known = [label for label in labels if label is not None]
    for label in known:
        if not counts[label] > 0.0:
            raise ValueError(f"class_weights: class {int(label)} occurs but its running count is {counts[label]}")
    scales = [counts[label] ** -power for label in known]
    mean = sum(scales) / len(scales) if scales else 1.0
    return [1.0 if label is None else counts[label] ** -power / mean for label in labels]


# -- Advantage estimators: what a value is worth beside the others of its group. Each is a function that is passed.
#
#     z_score         (r − mean) / std         GRPO, arXiv 2402.03300
#     mean_baseline   r − mean                 Dr. GRPO, arXiv 2503.20783
#     leave_one_out   r − mean of the others   RLOO, arXiv 2402.14740
#
# ``values`` ``[N]`` float64 are the rewards of one channel and ``pools`` ``[N]`` the index of each one's group; the
# result is ``[N]``, 0 in a group without spread. ``RunningMean`` is a baseline that needs no group: a mean of earlier
# batches, which is passed in and handed back. Another estimator is another such function (docs/new-estimator.md).


__all__ = ["Baselines", "Estimator", "RunningMean", "mean_baseline", "leave_one_out", "z_score"]

Estimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # values [N], pools [N] → advantages [N]
Baselines = Mapping[str, float]  # "role/channel" → running mean


def z_score(values: torch.Tensor, pools: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group, divided by its sample standard deviation (n − 1, as verl and RL Tango have it)."""
    return group_mean_std(values, pools, std="sample")


def mean_baseline(values: torch.Tensor, pools: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group."""
    return group_mean_std(values, pools, std=None)


@dataclass(frozen=True, slots=True)
class RunningMean:
    """Minus a running mean over the games that the role has played (SPIRAL, arXiv 2506.24119; Williams 1992), 0 before
    the first one. A game's own payoff enters after it was compared; games of a batch follow each other."""

    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError(f"RunningMean: decay {self.decay} must be in [0, 1)")

    def __call__(
        self, values: torch.Tensor, keys: Sequence[str], games: Sequence[str], seen: Baselines
    ) -> tuple[torch.Tensor, Baselines]:
        """Values ``[N]`` minus the baseline of each one's key, and the baselines after this batch. ``games`` ``[N]``:
        the game of each."""
        centred, after = torch.zeros_like(values), dict(seen)
        for key in sorted(set(keys)):
            mine = [i for i, one in enumerate(keys) if one == key]
            played = [games[i] for i in mine]
            centred[mine], after[key] = ema_baseline(values[mine], played, after.get(key, 0.0), decay=self.decay)
        return centred, after


# -- what is done to samples before their rewards are compared, or once their advantages are known (and
# ``advantage_edits.py``)

After = Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, int]]]


def drop_flat_groups(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
    """Groups in which no token has an advantage teach nothing and would cost a forward pass. The totals of the
    normaliser then count the others alone, and the KL term does not see them."""
    alive = {sample.group for sample in samples if bool(sample.advantages.any())}
    kept = [sample for sample in samples if sample.group in alive]
    return kept, {"zero_spread": len(samples) - len(kept)} if len(kept) < len(samples) else {}


OverBatch = Callable[[torch.Tensor], torch.Tensor]  # [N] → [N], N tokens of the whole batch
MERGED = "merged"  # name of the channel that holds a sum of rewards


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(PolicyLoss):
    """Settings. What is remembered between updates, baselines and class counts, is the state that credit hands back."""

    rewards: RewardWeights  # signal → weight of its advantages
    merge: bool = False  # add up the weighted per-answer rewards to one before they are compared
    blend: Blend = "convex"
    step_scale: StepScale = "1/K"  # a step of a sample of K steps is worth ±1/K (Tango), or ±1 ("one")
    baseline: RunningMean | None = None  # taken off values first
    advantage: Estimator | None = z_score  # compares values within a group; None: with nobody
    over_batch: OverBatch | None = None  # rescales the advantages of a channel, over all of its tokens
    before: tuple[After, ...] = ()  # done to the samples before their rewards are compared, in turn
    after: tuple[After, ...] = (drop_flat_groups,)  # done to the samples, in turn
    balance: ClassBalance | None = None
    beside: tuple[str, ...] = ()  # roles that answers are only compared with, whoever plays them

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.rewards or not self.kl:  # the pull to a reference may be all that is learned from
            check_rewards(name, self.rewards)
        check_step_scale(self.step_scale)
        check_loss(self.loss, self.normalise, self.constant)
        if self.advantage is not None and not callable(self.advantage):
            raise ConfigError(f"{name}: advantage is {self.advantage!r}, expected a function such as z_score, or None")
        if self.blend not in BLENDS:
            raise UnknownName("blend", self.blend, BLENDS)
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
        if self.blend != "convex":
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
            group=2 if self.advantage and self.rewards else 1,
            reference=self.kl.reference if self.kl else None,
            entropy=self.entropy != 0.0,
            zeros=has_other_terms(self.loss, self.kl, self.entropy),
            beside=self.beside,
        )

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        samples, dropped = usable_samples(batch.samples, self.rewards)
        for change in self.before:
            samples, left_out = change(samples)
            dropped |= left_out
        pools, groups = pools_of(samples)
        weights = {signal: weight_at(weight, batch.updates, batch.planned) for signal, weight in self.rewards.items()}
        rewards = {signal: place_rewards(samples, signal, self.step_scale) for signal in self.rewards}
        metrics = {"traces": float(len(samples)), "groups": float(groups)} | _reward_metrics(samples, rewards)
        if self.blend == "reward":  # the advantages have no channels to tell of, so the weights are told here
            metrics |= {f"mix/{signal.name}": weight for signal, weight in weights.items()}
        memory: State = {}

        baselines: Baselines = state.get("baselines", {})
        mixed = [torch.zeros(len(sample.token_ids), dtype=torch.float64) for sample in samples]
        # whom a reward is compared with: those of its group, or without an estimator of groups all of the batch
        compared, count = (pools, groups) if self.advantage else (torch.zeros_like(pools), min(groups, 1))
        flat = torch.ones(count, dtype=torch.bool)
        for name, (channel, factor) in self._reward_channels(samples, rewards, weights).items():
            tokens, baselines = self._channel_advantages(name, channel, samples, pools, baselines)
            metrics |= {f"advantage/{name}": _mean_size(tokens), f"mix/{name}": factor}
            if factor:
                flat &= pool_is_flat(channel.values[channel.once], compared[channel.owners[channel.once]], count)
                for total, part in zip(mixed, tokens, strict=True):
                    total += factor * part
        if groups and self.rewards:
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
        self, samples: Sequence[Sample], rewards: Mapping[Signal, PlacedRewards], weights: Mapping[Signal, float]
    ) -> dict[str, tuple[PlacedRewards, float]]:
        """All channels, per-answer ones first, with the factor by which their advantages enter the mixture."""
        outcome_share, answers = self._outcome_share(weights), self._signals_per("answer")
        spans = self._signals_per("span")
        if self.blend == "reward":
            return {MERGED: (_summed_rewards(samples, rewards, weights), outcome_share)}
        if self.merge:
            answer_weights = {signal: weights[signal] for signal in answers}
            channels = {MERGED: (_summed_rewards(samples, rewards, answer_weights), outcome_share)}
        else:
            channels = {signal.name: (rewards[signal], outcome_share * weights[signal]) for signal in answers}
        return channels | {signal.name: (rewards[signal], weights[signal]) for signal in spans}

    def _channel_advantages(
        self, name: str, channel: PlacedRewards, samples: Sequence[Sample], pools: torch.Tensor, baselines: Baselines
    ) -> tuple[list[torch.Tensor], Baselines]:
        """The advantages of one channel, float64 ``[T]`` of each sample, and the baselines after it."""
        values, owners = channel.values[channel.once], channel.owners[channel.once]
        if self.baseline is not None:
            keys = [f"{samples[owner].role}/{name}" for owner in owners.tolist()]
            games = [samples[owner].episode_key for owner in owners.tolist()]
            values, baselines = self.baseline(values, keys, games, baselines)
        if self.advantage is not None:
            values = self.advantage(values, pools[owners])
        tokens = [reward_to_go(part) for part in on_tokens(samples, channel, values[channel.given])]
        valued_indices = sorted(set(channel.owners.tolist()))  # the others have no value here and keep their zeros
        if self.over_batch is not None and valued_indices:
            lengths = [len(tokens[i]) for i in valued_indices]
            rescaled = self.over_batch(torch.cat([tokens[i] for i in valued_indices])).split(lengths)
            for i, part in zip(valued_indices, rescaled, strict=True):
                tokens[i] = part
        return tokens, baselines


def _summed_rewards(
    samples: Sequence[Sample], rewards: Mapping[Signal, PlacedRewards], weights: Mapping[Signal, float]
) -> PlacedRewards:
    """One value for each trajectory, on the last token of its samples: the weighted sum of all its values. Several
    values of one span count as their mean."""
    trajectories, count = trajectories_of(samples)
    totals = torch.zeros(count, dtype=torch.float64)
    for signal, weight in weights.items():
        channel = rewards[signal]
        given = channel.values[channel.once] * channel.shares[channel.once]
        totals.index_add_(0, trajectories[channel.owners[channel.once]], weight * given)
    firsts = dict(reversed([(trajectory, at) for at, trajectory in enumerate(trajectories.tolist())]))
    return PlacedRewards(
        values=totals[trajectories],
        shares=torch.ones(len(samples), dtype=torch.float64),
        ends=torch.tensor([len(sample.token_ids) - 1 for sample in samples], dtype=torch.int64),
        owners=torch.arange(len(samples)),
        once=torch.tensor([firsts[trajectory] for trajectory in range(count)], dtype=torch.int64),
        given=trajectories,
    )


def _mean_size(tokens: Sequence[torch.Tensor]) -> float:
    """Mean |A| over tokens."""
    count = sum(map(len, tokens))
    return float(sum(part.abs().sum() for part in tokens)) / count if count else 0.0


def _reward_metrics(samples: Sequence[Sample], channels: Mapping[Signal, PlacedRewards]) -> dict[str, float]:
    """Means over trajectories: of per-answer rewards; of per-span ones the share that has any, and how many spans these
    have."""
    metrics: dict[str, float] = {}
    trajectories, number = trajectories_of(samples)
    for signal, channel in channels.items() if samples else ():
        if signal.per == "answer":
            metrics[f"reward/{signal.name}"] = sum(channel.values[channel.once].tolist()) / number
            continue
        counts = [0] * number
        for trajectory, sample in zip(trajectories.tolist(), samples, strict=True):
            counts[trajectory] += len({reward.tokens for reward in sample.rewards_for(signal)})
        span_counts = [count for count in counts if count]
        metrics[f"coverage/{signal.name}"] = len(span_counts) / number
        if span_counts:
            metrics[f"count/{signal.name}"] = sum(span_counts) / len(span_counts)
    return metrics
