"""Supervised fine-tuning on traces: the cross-entropy of their tokens, L = −Σ log π / N.

On gold traces this is plain SFT. On a policy's own traces with ``where`` it is rejection sampling (RFT, arXiv
2308.01825; STaR, arXiv 2203.14465): only rewarded traces are learned. With ``weight`` each trace has the weight in that
signal; a smoothed label, for example, is two traces with the weights 1 − ε and ε. Left out: loss on prompts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from cotrain.algorithms.contract import Batch, BatchTotals, Credit, Loss, MicroBatch, Needs
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.likelihood import cross_entropy
from cotrain.algorithms.functional.reductions import Normalise, masked_sum, reduce_loss
from cotrain.algorithms.samples import usable_samples, value_of
from cotrain.core.errors import ConfigError
from cotrain.core.signals import Signal
from cotrain.core.types import State


@dataclass(frozen=True, kw_only=True)
class SFT:
    """Cross-entropy on all traces, or on those whose signal ``where`` is at least ``at_least``, each times its signal
    ``weight``."""

    where: Signal | None = None  # per answer
    at_least: float = 1.0
    weight: Signal | None = None  # per answer, 0 or more; None: all weigh 1
    normalise: Normalise = "token"

    def __post_init__(self) -> None:
        if self.normalise not in ("token", "sequence"):
            raise ConfigError(f"SFT: normalise {self.normalise!r}, expected 'token' or 'sequence'", code="E_NORMALISE")
        for label, signal in (("where", self.where), ("weight", self.weight)):
            if signal is not None and (not isinstance(signal, Signal) or signal.per != "answer"):
                raise ConfigError(
                    f"SFT: {label} is {signal!r}, expected a per-answer signal such as OUTCOME, or None",
                    code="E_SIGNAL_NOT_PER_ANSWER",
                )

    @property
    def _read_signals(self) -> tuple[Signal, ...]:
        return tuple(signal for signal in (self.where, self.weight) if signal is not None)

    def needs(self) -> Needs:
        return Needs(reward_signals=self._read_signals, on_policy=False)

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        usable, reasons = usable_samples(batch.samples, self._read_signals)
        dropped = Counter(reasons)
        learned = []
        for sample in usable:
            if self.where is not None and value_of(sample, self.where) < self.at_least:
                dropped[f"{self.where.name} too low"] += 1
                continue
            weight = 1.0 if self.weight is None else value_of(sample, self.weight)
            if weight < 0.0:
                raise ConfigError(
                    f"signal {str(self.weight)!r} of {sample.key} is {weight}, a weight below 0", code="E_SAMPLE_WEIGHT"
                )
            if weight > 0.0:
                ones = torch.ones(len(sample.token_ids))
                learned.append(replace(sample, advantages=ones, weight=weight, temperature=1.0))
        return Credit(samples=tuple(learned), metrics={"traces": float(len(usable))}, dropped=dict(dropped)), state

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        value = reduce_loss(
            cross_entropy(predictions),
            batch.mask,
            normalise=self.normalise,
            tokens=totals.tokens,
            sequences=totals.sequences,
            weights=batch.weights,
        )
        return Loss(value=value, sums={"surprisal": masked_sum(-predictions.detach(), batch.mask)})
