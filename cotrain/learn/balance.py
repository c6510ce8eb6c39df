"""Class balance: two classes of samples weigh as 1/√(how often each was seen lately) (RL Tango, arXiv 2505.15034).

A verifier whose generator is mostly wrong earns most by calling everything wrong. With n± the running counts of
samples that judge a right (+) or a wrong (−) solution,

    n± ← ρ n± + (1 − ρ) · count in this batch,      w_i = s_i / mean_j s_j with s_i = 1/√n_{class of i}

so the mean weight of a batch is 1. The weight multiplies the policy loss of a sample and touches no statistic:
advantages are those of the unweighted rewards. Counts start at 0; only their ratio matters, so no bias correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotrain.core.errors import ConfigError

Counts = tuple[float, float]  # running counts of class 0 and class 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBalance:
    """Settings. The class of a trace is its signal ``label`` (1 or 0), which the protocol writes and no mix reads."""

    label: str = "truth"  # name of the signal
    ema: float = 0.8  # ρ

    def __post_init__(self) -> None:
        if not 0.0 <= self.ema < 1.0:
            raise ConfigError(f"ClassBalance: ema {self.ema} must be in [0, 1)")


def by_class(label: str = "truth", ema: float = 0.8) -> ClassBalance:
    """``ClassBalance(label=label, ema=ema)``."""
    return ClassBalance(label=label, ema=ema)


def update_counts(counts: Counts, labels: Sequence[bool | None], ema: float) -> Counts:
    """n± ← ρ n± + (1 − ρ) · count; labels that are None count nowhere."""
    negatives = sum(label is False for label in labels)
    positives = sum(label is True for label in labels)
    return ema * counts[0] + (1.0 - ema) * negatives, ema * counts[1] + (1.0 - ema) * positives


def class_weights(counts: Counts, labels: Sequence[bool | None]) -> list[float]:
    """One weight a label, with mean 1 over the labels that are not None; None gets 1.

    Raises ValueError when a label's class has count 0: update the counts with the batch first.
    """
    known = [label for label in labels if label is not None]
    for label in known:
        if not counts[label] > 0.0:
            raise ValueError(f"class_weights: class {int(label)} occurs but its running count is {counts[label]}")
    scales = [counts[label] ** -0.5 for label in known]
    mean = sum(scales) / len(scales) if scales else 1.0
    return [1.0 if label is None else counts[label] ** -0.5 / mean for label in labels]
