"""Supervised fine-tuning on traces: cross-entropy of what was said, L = −Σ log π / N.

On gold traces it is plain SFT; on a policy's own traces with ``where`` it is rejection sampling (RFT, arXiv
2308.01825; STaR, arXiv 2203.14465): learn from what was rewarded. With ``weight`` a trace counts as much as its signal
says: a smoothed label is both labels, told with the weights 1 − ε and ε. Off policy by nature. Left out: loss on prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cotrain.core.errors import ConfigError
from cotrain.core.state import State, take
from cotrain.functional.likelihood import cross_entropy
from cotrain.functional.reductions import Normalise, masked_sum, reduce_loss
from cotrain.learn.contract import Annotated, Credit, Loss, MicroBatch, Needs, Normaliser
from cotrain.learn.signals import read_all, sample_of


@dataclass(frozen=True, kw_only=True)
class Sft:
    """Learn all traces, or those whose signal ``where`` is at least ``at_least``; each by the weight in signal ``weight``."""

    where: str | None = None  # a whole-trace signal
    at_least: float = 1.0
    weight: str | None = None  # a whole-trace signal, 0 or more; None: all weigh 1
    normalise: Normalise = "token"

    def __post_init__(self) -> None:
        if self.normalise not in ("token", "sequence"):
            raise ConfigError(f"Sft: normalise {self.normalise!r}, expected 'token' or 'sequence'")

    def needs(self) -> Needs:
        return Needs(on_policy=False)

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        read = read_all(traces, whole=[name for name in (self.where, self.weight) if name is not None], process=())
        dropped = Counter(read.dropped)
        samples = []
        for reading in read.kept:
            if self.where is not None and reading.whole[self.where] < self.at_least:
                dropped[f"{self.where} too low"] += 1
                continue
            weight = 1.0 if self.weight is None else reading.whole[self.weight]
            if weight < 0.0:
                raise ConfigError(
                    f"signal {self.weight!r} of trace {reading.annotated.trace.address} is {weight}, a weight below 0"
                )
            if weight > 0.0:
                samples.append(sample_of(reading.annotated, torch.ones(reading.length), weight=weight, temperature=1.0))
        return Credit(samples=tuple(samples), metrics={"traces": float(len(read.kept))}, dropped=dict(dropped))

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        value = reduce_loss(
            cross_entropy(predictions),
            batch.mask,
            normalise=self.normalise,
            tokens=normaliser.tokens,
            sequences=normaliser.sequences,
            weights=batch.weights,
        )
        return Loss(value=value, sums={"surprisal": masked_sum(-predictions.detach(), batch.mask)})

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        take(type(self).__name__, state)
