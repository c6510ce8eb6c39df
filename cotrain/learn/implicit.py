"""PRIME (arXiv 2502.01456): process rewards without process labels, from a model trained on outcomes alone.

An *implicit* process reward model φ is a language model that learns without speaking. Its reward for a token of an answer
is a log-ratio, and the sum of them over an answer is trained to tell right from wrong:

    r_t = log π_φ(y_t | ·) − log π_ref(y_t | ·)              loss  CE(σ(β Σ_t r_t), outcome)

``ImplicitPrm`` is φ's objective, ``Prime`` the generator's. As in the authors' code: β scales the loss and not the
rewards; the rewards of the whole batch are divided by the largest |Σ_{u≥t} r_u|, so that no return exceeds 1; each channel
has its leave-one-out baseline, the process channel that of the *mean* token reward of the others; returns of both channels
are added and whitened over the batch. Groups of which too few or too many answers are right are left out (0.2 to 0.8).

Left out: the buffer that is refilled until a batch is full (the batch is smaller instead), and one forward pass for
scoring and updating φ (here two).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cotrain.core.errors import ConfigError
from cotrain.core.state import State, take
from cotrain.functional.credit import leave_one_out, reward_to_go, whiten
from cotrain.functional.likelihood import outcome_cross_entropy
from cotrain.functional.reductions import masked_sum
from cotrain.learn.contract import Annotated, Credit, Loss, MicroBatch, Needs, Normaliser
from cotrain.learn.mixing import refuse_weightless
from cotrain.learn.policy_term import Kl, PolicyTerm, policy_loss
from cotrain.learn.signals import Reading, read_all, sample_of


@dataclass(frozen=True, kw_only=True)
class ImplicitPrm:
    """φ's side: learns from the generator's answers and their outcomes."""

    reference: str = "start"
    outcome: str = "outcome"
    beta: float = 0.05

    def needs(self) -> Needs:
        return Needs(on_policy=False, reference=self.reference)

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        read = read_all(traces, whole=(self.outcome,), process=())
        samples = tuple(
            replace(
                sample_of(r.annotated, torch.zeros(r.length)), targets=torch.full((r.length,), r.whole[self.outcome])
            )
            for r in read.kept
        )
        return Credit(samples=samples, metrics={"traces": float(len(read.kept))}, dropped=dict(read.dropped))

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        assert batch.targets is not None and batch.reference is not None  # credit and the reference pass set them
        outcomes = batch.targets[:, 0]
        losses = outcome_cross_entropy(predictions, batch.reference, batch.mask, outcomes, beta=self.beta)
        rewards = predictions.detach() - batch.reference
        says = torch.where(batch.mask > 0, rewards, torch.zeros_like(rewards)).sum(1) > 0
        mean = normaliser.tokens / normaliser.sequences  # sums are divided by all tokens, this one is of answers
        return Loss(
            value=losses.sum() / normaliser.sequences,
            sums={
                "accuracy": ((says == (outcomes > 0.5)).float() * mean).sum(),
                "reward": masked_sum(rewards, batch.mask),
            },
        )

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        take(type(self).__name__, state)


@dataclass(frozen=True, kw_only=True)
class Prime:
    """The generator's side."""

    prm: str = "prm"
    reference: str = "start"
    outcome: str = "outcome"
    process_weight: float = 5.0  # of the process returns, before whitening
    outcome_weight: float = 5.0
    keep: tuple[float, float] = (0.2, 0.8)  # share of right answers of a group that is learned from
    max_return_norm: bool = True
    clip: tuple[float, float] = (0.2, 0.2)
    kl: Kl | None = None

    def __post_init__(self) -> None:
        low, high = self.keep
        if not 0.0 <= low <= high <= 1.0:
            raise ConfigError(f"Prime: keep {self.keep} must be (low, high) shares of right answers within [0, 1]")
        refuse_weightless("Prime", {"outcome": self.outcome_weight, "process": self.process_weight})
        self._term()

    def _term(self) -> PolicyTerm:
        return PolicyTerm(clip=self.clip, kl=self.kl)

    def needs(self) -> Needs:
        scores = (self.prm, self.reference) if self.process_weight else ()
        return Needs(group=2, scores=scores, reference=self.kl.reference if self.kl else None)

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        read = read_all(traces, whole=(self.outcome,), process=())
        dropped = dict(read.dropped)
        groups: dict[str, list[Reading]] = {}
        for reading in read.kept:
            groups.setdefault(reading.annotated.trace.group, []).append(reading)
        low, high = self.keep
        kept: list[tuple[int, Reading]] = []
        filtered = 0
        for mine in groups.values():
            share = sum(r.whole[self.outcome] for r in mine) / len(mine)
            if low <= share <= high:
                kept += [(filtered, r) for r in mine]
                filtered += 1
        if len(kept) < len(read.kept):
            dropped["accuracy filter"] = len(read.kept) - len(kept)
        metrics = {"traces": float(len(read.kept)), "groups": float(len(groups)), "kept_groups": float(filtered)}
        if not kept:
            return Credit(samples=(), metrics=metrics, dropped=dropped)
        pools = torch.tensor([pool for pool, _ in kept], dtype=torch.int64)
        outcomes = torch.tensor([r.whole[self.outcome] for _, r in kept], dtype=torch.float64)
        centred = self.outcome_weight * leave_one_out(outcomes, pools)
        returns = [centred[i].repeat(r.length) for i, (_, r) in enumerate(kept)]
        if self.process_weight:
            rewards = self._process([r for _, r in kept])
            metrics |= _process_metrics(rewards, outcomes)
            shift = leave_one_out(torch.stack([r.mean() for r in rewards]), pools)
            counts = torch.bincount(pools).double()[pools]
            for i, reward in enumerate(rewards):
                # r_t · N/(N−1) − Σ_j mean_j/(N−1): each token against the others' mean token
                scale = counts[i] / (counts[i] - 1.0)
                token = (reward - reward.mean()) * scale + shift[i]
                returns[i] = returns[i] + self.process_weight * reward_to_go(token)
        flat = whiten(torch.cat(returns))
        parts = flat.split([r.length for _, r in kept])
        samples = tuple(sample_of(r.annotated, part) for (_, r), part in zip(kept, parts, strict=True))
        return Credit(samples=samples, metrics=metrics, dropped=dropped)

    def _process(self, readings: Sequence[Reading]) -> list[torch.Tensor]:
        """float64 ``[T]`` of each: log-ratios, scaled so that no return of the batch exceeds 1."""
        rewards = [(r.annotated.scores[self.prm] - r.annotated.scores[self.reference]).double() for r in readings]
        if self.max_return_norm:
            largest = max(float(reward_to_go(r).abs().max()) for r in rewards)
            rewards = [r / largest for r in rewards] if largest > 0.0 else rewards
        return rewards

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        return policy_loss(self._term(), predictions, entropy, batch, normaliser)

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        take(type(self).__name__, state)


def _process_metrics(rewards: Sequence[torch.Tensor], outcomes: torch.Tensor) -> dict[str, float]:
    """How well the sum of rewards tells right from wrong, before this update: over all pairs, and each answer's sign."""
    sums = torch.stack([r.sum() for r in rewards])
    right, wrong = sums[outcomes > 0.5], sums[outcomes <= 0.5]
    found = {"process/reward": float(sums.mean())}
    if len(right) and len(wrong):
        margins = right[:, None] - wrong[None, :]
        found["process/pair_accuracy"] = float(((margins > 0).double() + 0.5 * (margins == 0).double()).mean())
    return found
