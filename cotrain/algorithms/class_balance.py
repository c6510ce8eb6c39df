"""Class balance: the more often a class occurred lately, the less its samples weigh (RL Tango, arXiv 2505.15034).

A verifier whose generator is mostly wrong earns most by calling everything wrong. With n± the running counts of
samples that judge a right (+) or a wrong (−) solution,

    n± ← ρ n± + (1 − ρ) · count in this batch,      w_i = s_i / mean_j s_j with s_i = n_{class of i}^−power

so that the mean weight of a batch is 1. A review in several training sequences counts once. Tango's power is ½, with
which the rare class still weighs less in total; with 1 both classes weigh the same. The weight multiplies the policy
loss of a sample and changes no statistic: advantages are those of the unweighted rewards.

Counts start at 0 without a bias correction, as only their ratio matters. In Tango's code they start at the counts of
the first batch, which so weighs more from the second batch on: ``from_first_batch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotrain.algorithms.contract import Sample
from cotrain.algorithms.samples import first_samples, trajectories_of
from cotrain.core.errors import ConfigError
from cotrain.core.signals import CLASS_LABEL, Signal

Counts = Sequence[float]  # running counts of class 0 and class 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBalance:
    """Class weights. The class of a sample, 1 or 0, is its signal ``class_label``, which the protocol gives."""

    class_label: Signal = CLASS_LABEL
    ema: float = 0.8  # ρ
    power: float = 0.5
    from_first_batch: bool = False  # the running counts start at those of the first batch, not at 0

    def __post_init__(self) -> None:
        if not isinstance(self.class_label, Signal) or self.class_label.per != "answer":
            raise ConfigError(
                f"ClassBalance: label is {self.class_label!r}, expected a per-answer signal such as CLASS_LABEL",
                code="E_CLASS_LABEL_KIND",
            )
        if not 0.0 <= self.ema < 1.0:
            raise ConfigError(f"ClassBalance: ema {self.ema} must be in [0, 1)", code="E_CLASS_BALANCE_RANGE")
        if not 0.0 < self.power <= 1.0:
            raise ConfigError(
                f"ClassBalance: power {self.power} must be in (0, 1]; 0.5 is Tango's, 1 weighs both classes the same",
                code="E_CLASS_BALANCE_RANGE",
            )

    def weigh_samples(
        self, seen: Sequence[Sample], kept: Sequence[Sample], counts: Counts
    ) -> tuple[list[Sample], list[float], dict[str, float]]:
        """Returns the samples ``kept`` with their weights, the new counts, and metrics.

        Args:
            seen: all samples of the batch, also those that are dropped: they all count.
            kept: the samples that are learned from.
            counts: running counts before this batch.

        Raises ConfigError if no sample has a class label.
        """
        labels = [self._class_label(sample) for sample in first_samples(seen)]
        if labels and all(label is None for label in labels):
            raise ConfigError(
                f"the class balance reads signal {self.class_label.name!r}, but no turn of role {seen[0].role!r} "
                "has it; let the protocol reward it with 1 or 0",
                code="E_CLASS_LABEL_MISSING",
            )
        if self.from_first_batch and sum(counts) == 0.0:
            counts = (float(labels.count(False)), float(labels.count(True)))
        else:
            counts = update_counts(counts, labels, self.ema)
        kept_labels = [self._class_label(sample) for sample in first_samples(kept)]
        weights = class_weights(counts, kept_labels, self.power)  # the weight of each trajectory

        metrics = {"balance/unlabelled": float(sum(label is None for label in labels))}
        if sum(counts) > 0.0:
            metrics["balance/positive"] = counts[1] / sum(counts)
        if False in kept_labels:
            metrics["balance/weight_negative"] = weights[kept_labels.index(False)]
        if True in kept_labels:
            metrics["balance/weight_positive"] = weights[kept_labels.index(True)]

        trajectories, _ = trajectories_of(kept)
        weighted = [
            replace(sample, weight=weights[trajectory])
            for sample, trajectory in zip(kept, trajectories.tolist(), strict=True)
        ]
        return weighted, list(counts), metrics

    def _class_label(self, sample: Sample) -> bool | None:
        labels = sample.rewards_for(self.class_label)
        if not labels:
            return None
        value = labels[0].value
        if value not in (0.0, 1.0):
            raise ConfigError(
                f"class label {self.class_label.name!r} of {sample.key} is {value}, expected 0 or 1",
                code="E_CLASS_LABEL_VALUE",
            )
        return bool(value)


def update_counts(counts: Counts, labels: Sequence[bool | None], ema: float) -> tuple[float, float]:
    """n± ← ρ n± + (1 − ρ) · count. Returns (n−, n+). Labels that are None are not counted."""
    negatives = sum(label is False for label in labels)
    positives = sum(label is True for label in labels)
    new_negatives = ema * counts[0] + (1.0 - ema) * negatives
    new_positives = ema * counts[1] + (1.0 - ema) * positives
    return new_negatives, new_positives


def class_weights(counts: Counts, labels: Sequence[bool | None], power: float = 0.5) -> list[float]:
    """A weight for each label: n^−power of its class, scaled to mean 1 over all labels; 1 for a label that is None.

    Raises ValueError for a class with count 0: the counts must include this batch.
    """
    known_labels = [label for label in labels if label is not None]
    for label in known_labels:
        if not counts[label] > 0.0:
            raise ValueError(f"class_weights: class {int(label)} occurs but its running count is {counts[label]}")
    if not known_labels:
        return [1.0] * len(labels)

    scales = [counts[label] ** -power for label in known_labels]
    mean = sum(scales) / len(scales)

    def weight_of(label: bool | None) -> float:
        if label is None:
            return 1.0
        return counts[label] ** -power / mean

    return [weight_of(label) for label in labels]
