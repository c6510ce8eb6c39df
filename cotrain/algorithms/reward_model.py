"""Training a reward model (a policy with a "reward" head) on answers that it has just scored.

    Pairwise   −log σ(s⁺ − s⁻) over pairs of a group (Bradley & Terry 1952; Cooper, arXiv 2508.05613)
    Pointwise  cross-entropy of σ(s) against the label (VerifyRM of the same paper)

Both read a label in [0, 1] from the signal ``label`` of a scoring role's turns.

How the two answers of a pair can be in different micro-batches: a batch is used for one update, by the weights that
scored it. So ``credit`` knows all scores and the gradient of the pairwise loss with respect to each of them,
∂L/∂s⁺ = −σ(s⁻ − s⁺). With these slopes as advantages, a loss that is linear in the scores has the same gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotrain.algorithms.contract import Batch, BatchTotals, Credit, Loss, MicroBatch, Needs, Sample
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.likelihood import binary_cross_entropy
from cotrain.algorithms.samples import usable_samples, value_of
from cotrain.core.errors import ConfigError
from cotrain.core.signals import LABEL, Signal
from cotrain.core.types import State


@dataclass(frozen=True, kw_only=True)
class Pairwise:
    """Higher scores for better labels of the same group.

    All pairs of different labels count, and every group with such a pair weighs the same. The loss does not change if
    all scores shift together, but a reward σ(s) does: ``anchor`` adds anchor · cross-entropy of σ(s) against the label.
    """

    label: Signal = LABEL
    anchor: float = 0.0

    def needs(self) -> Needs:
        return Needs(reward_signals=(self.label,), on_policy=False, off_policy_corrected=False, head="reward")

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        rated, dropped = usable_samples(batch.samples, (self.label,))
        labels = [value_of(sample, self.label) for sample in rated]
        scores = [_score_of(sample) for sample in rated]
        groups_of_pairs = _pairs_by_group(rated, labels)

        slopes: dict[int, float] = {}  # index of a sample → ∂L/∂s, summed over its pairs
        pair_loss = 0.0
        pair_accuracy = 0.0
        n_pairs = 0
        for pairs in groups_of_pairs:
            pair_weight = 1.0 / (len(pairs) * len(groups_of_pairs))  # so that every group weighs the same
            for better, worse in pairs:
                margin = scores[better] - scores[worse]
                slope = pair_weight / (1.0 + math.exp(min(margin, 700.0)))  # pair_weight · σ(−margin), no overflow
                slopes[better] = slopes.get(better, 0.0) - slope
                slopes[worse] = slopes.get(worse, 0.0) + slope
                pair_loss += pair_weight * (math.log1p(math.exp(-abs(margin))) + max(-margin, 0.0))
                pair_accuracy += pair_weight * (float(margin > 0) + 0.5 * float(margin == 0))
            n_pairs += len(pairs)

        # Without the anchor, a sample that is in no pair has no gradient.
        kept_indices = [i for i in range(len(rated)) if i in slopes or self.anchor]
        samples = tuple(
            replace(rated[i], advantages=torch.tensor([slopes.get(i, 0.0)]), targets=torch.tensor([labels[i]]))
            for i in kept_indices
        )

        metrics = {"traces": float(len(rated)), "pairs": float(n_pairs), **_score_moments(scores)}
        if groups_of_pairs:
            metrics["pair_loss"] = pair_loss
            metrics["pair_accuracy"] = pair_accuracy
            metrics["groups"] = float(len(groups_of_pairs))
        if len(kept_indices) < len(rated):
            dropped["no pair"] = len(rated) - len(kept_indices)
        return Credit(samples=samples, metrics=metrics, dropped=dropped), state

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        scores, targets = _scores_and_labels(predictions, batch)
        value = (batch.advantages[:, 0] * scores).sum()
        if self.anchor:
            value = value + self.anchor * binary_cross_entropy(scores, targets).sum() / totals.sequences
        return Loss(value=value, sums={"score": scores.detach().sum()})


@dataclass(frozen=True, kw_only=True)
class Pointwise:
    """Cross-entropy of σ(s) against the label, for each answer by itself."""

    label: Signal = LABEL

    def needs(self) -> Needs:
        return Needs(reward_signals=(self.label,), on_policy=False, head="reward")

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        rated, dropped = usable_samples(batch.samples, (self.label,))
        samples = tuple(replace(s, targets=torch.tensor([value_of(s, self.label)])) for s in rated)
        metrics = {"traces": float(len(rated)), **_score_moments([_score_of(s) for s in rated])}
        return Credit(samples=samples, metrics=metrics, dropped=dropped), state

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        scores, targets = _scores_and_labels(predictions, batch)
        losses = binary_cross_entropy(scores, targets)
        is_right = ((scores > 0) == (targets > 0.5)).float()
        return Loss(
            value=losses.sum() / totals.sequences, sums={"score": scores.detach().sum(), "accuracy": is_right.sum()}
        )


def _pairs_by_group(samples: Sequence[Sample], labels: Sequence[float]) -> list[list[tuple[int, int]]]:
    """The pairs (index of the better one, index of the worse one) of each group that has any."""
    groups: dict[str, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(i)

    pairs_by_group = []
    for members in groups.values():
        pairs = [(a, b) for a in members for b in members if labels[a] > labels[b]]
        if pairs:
            pairs_by_group.append(pairs)
    return pairs_by_group


def _score_of(sample: Sample) -> float:
    if sample.score is None:
        raise ConfigError(
            f"role {sample.role!r} speaks; a reward model learns from a role that a reward model plays",
            code="E_ROLE_SPEAKS",
        )
    return sample.score


def _score_moments(scores: Sequence[float]) -> dict[str, float]:
    """Mean and spread of the scores."""
    if not scores:
        return {}
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / len(scores)
    return {"score_mean": mean, "score_std": math.sqrt(variance)}


def _scores_and_labels(predictions: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and labels ``[B]``."""
    assert batch.targets is not None  # credit sets them
    return predictions[:, 0], batch.targets[:, 0]
