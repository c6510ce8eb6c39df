"""Training a reward model, a policy with a "reward" head, on what it has just scored.

    Pairwise   −log σ(s⁺ − s⁻) over pairs of a group (Bradley & Terry 1952; Cooper, arXiv 2508.05613)
    Pointwise  cross-entropy of σ(s) against the label (VerifyRM of the same paper)

Both read a label in [0, 1] from the signal ``label`` of the traces of a scoring role. The gradient of the pairwise loss
with respect to a score is known as soon as all scores are: ∂/∂s⁺ = −σ(s⁻ − s⁺). Since one update is made from each batch,
with the weights that scored it, credit computes these factors and the loss is linear in the scores; pairs need not share
a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cotrain.core.errors import ConfigError
from cotrain.core.state import State, take
from cotrain.functional.likelihood import binary_cross_entropy
from cotrain.learn.contract import Annotated, Credit, Loss, MicroBatch, Needs, Normaliser
from cotrain.learn.signals import Reading, read_all, sample_of


@dataclass(frozen=True, kw_only=True)
class Pairwise:
    """Higher scores for better labels of the same group.

    Every pair of different labels counts, and every group that has one counts the same. The loss does not see a common
    shift of all scores, but a reward σ(s) does: ``anchor`` adds ``anchor`` · cross-entropy of σ(s) against the label.
    """

    label: str = "label"
    anchor: float = 0.0

    def needs(self) -> Needs:
        return Needs(on_policy=False, head="reward")

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        read = read_all(traces, whole=(self.label,), process=())
        groups: dict[str, list[Reading]] = {}
        for reading in read.kept:
            groups.setdefault(reading.annotated.trace.group, []).append(reading)
        slopes: dict[int, float] = {}
        losses, right, pairs = 0.0, 0.0, 0
        useful = [mine for mine in groups.values() if len({r.whole[self.label] for r in mine}) > 1]
        for mine in useful:
            found = [(a, b) for a in mine for b in mine if a.whole[self.label] > b.whole[self.label]]
            for better, worse in found:
                margin = _score(better) - _score(worse)
                share = 1.0 / (len(found) * len(useful))
                pull = share / (1.0 + math.exp(min(margin, 700.0)))
                slopes[id(better)] = slopes.get(id(better), 0.0) - pull
                slopes[id(worse)] = slopes.get(id(worse), 0.0) + pull
                losses += share * (math.log1p(math.exp(-abs(margin))) + max(-margin, 0.0))
                right += share * (float(margin > 0) + 0.5 * float(margin == 0))
            pairs += len(found)
        kept = [r for r in read.kept if id(r) in slopes or self.anchor]
        samples = tuple(
            replace(
                sample_of(r.annotated, torch.tensor([slopes.get(id(r), 0.0)])),
                targets=torch.tensor([r.whole[self.label]], dtype=torch.float32),
            )
            for r in kept
        )
        metrics = {"traces": float(len(read.kept)), "pairs": float(pairs), **_scores(read.kept)}
        if useful:
            metrics |= {"pair_loss": losses, "pair_accuracy": right, "groups": float(len(useful))}
        dropped = dict(read.dropped)
        if len(kept) < len(read.kept):
            dropped["no pair"] = len(read.kept) - len(kept)
        return Credit(samples=samples, metrics=metrics, dropped=dropped)

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        scores, targets = _first(predictions, batch)
        value = (batch.advantages[:, 0] * scores).sum()
        if self.anchor:
            value = value + self.anchor * binary_cross_entropy(scores, targets).sum() / normaliser.sequences
        return Loss(value=value, sums={"score": scores.detach().sum()})

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        take(type(self).__name__, state)


@dataclass(frozen=True, kw_only=True)
class Pointwise:
    """σ(s) towards the label, each trace for itself."""

    label: str = "label"

    def needs(self) -> Needs:
        return Needs(on_policy=False, head="reward")

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        read = read_all(traces, whole=(self.label,), process=())
        samples = tuple(
            replace(
                sample_of(r.annotated, torch.zeros(1)),
                targets=torch.tensor([r.whole[self.label]], dtype=torch.float32),
            )
            for r in read.kept
        )
        return Credit(
            samples=samples,
            metrics={"traces": float(len(read.kept)), **_scores(read.kept)},
            dropped=dict(read.dropped),
        )

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        scores, targets = _first(predictions, batch)
        losses = binary_cross_entropy(scores, targets)
        hits = ((scores > 0) == (targets > 0.5)).float()
        return Loss(
            value=losses.sum() / normaliser.sequences,
            sums={"score": scores.detach().sum(), "accuracy": hits.sum()},
        )

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        take(type(self).__name__, state)


def _score(reading: Reading) -> float:
    score = reading.annotated.trace.score
    if score is None:
        trace = reading.annotated.trace
        raise ConfigError(f"role {trace.role!r} speaks; a reward model learns from a role that a reward model plays")
    return score


def _scores(readings: Sequence[Reading]) -> dict[str, float]:
    """Mean and spread of the scores: their drift shows here."""
    scores = [_score(r) for r in readings]
    if not scores:
        return {}
    mean = sum(scores) / len(scores)
    return {"score_mean": mean, "score_std": math.sqrt(sum((s - mean) ** 2 for s in scores) / len(scores))}


def _first(predictions: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and labels ``[B]``."""
    assert batch.targets is not None  # credit sets them
    return predictions[:, 0], batch.targets[:, 0]
