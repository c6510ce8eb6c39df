"""The Algorithm and Learner contracts.

An *algorithm* knows mathematics: which traces it needs, how their signals become per-token credit, and what its loss
is. It is synchronous and touches neither an engine nor a model. A *learner* knows one policy: its weights and its
optimiser. It packs samples, runs forward and backward, and asks the algorithm for the loss of each micro-batch.

Several objectives may train one policy: their terms are summed into one optimiser step, each normalised by its own
count, so that a role with long answers does not drown a role with short ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from cotrain.core.state import State
from cotrain.core.types import Trace
from cotrain.learn.spoken import Given


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an algorithm asks of the recipe; checked when the recipe is built."""

    on_policy: bool = True  # samples must be drawn by the policy that is trained
    group: int = 1  # least number of traces that share a pool key; checked at the first step that has too few
    reference: str | None = (
        None  # policy whose log-probabilities the loss compares with; scored for what is learned from
    )
    values: str | None = None  # policy whose values are annotated before credit
    scores: tuple[str, ...] = ()  # policies whose log-probabilities of the sampled tokens are annotated before credit
    head: str = "lm"  # "lm", "value" or "reward": what the trained policy must predict
    entropy: bool = False  # the loss wants the entropy of every token's distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """A trace with what models said of its sampled tokens beforehand."""

    trace: Trace  # its sampled tokens alone (``spoken.py``): what was given between its turns is no part of it
    given: Given = ()  # and stands here
    temperature: float = 1.0  # at which its role samples
    values: torch.Tensor | None = None  # [T] float32 value predictions before each sampled token
    scores: Mapping[str, torch.Tensor] = field(default_factory=dict)  # policy → [T] float32 log-probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sequence to learn from: a prompt, sampled tokens, and per-token credit. ``[T]`` runs over the sampled
    tokens."""

    key: str  # the address of its trace; samples are ordered by their place in the batch, not by this
    prompt_ids: tuple[int, ...]  # [P]
    token_ids: tuple[int, ...]  # [T]
    behaviour: torch.Tensor  # [T] float32 log-probabilities when sampled
    advantages: torch.Tensor  # [T] float32, constants with respect to the weights
    weight: float = 1.0  # multiplies the sample's loss after all statistics (class balance)
    temperature: float = 1.0  # the logits are divided by this before log-probabilities are taken
    reference: torch.Tensor | None = None  # [T] float32 log-probabilities under the reference policy; set after credit
    targets: torch.Tensor | None = None  # [T] float32 regression targets (critics)
    old_values: torch.Tensor | None = None  # [T] float32 (critics with clipped loss)
    off_policy: bool = False  # it answered another prompt than the one it is learned under
    given: Given = ()  # what stands between the sampled tokens: context, without credit or loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What an algorithm made of the traces: samples to learn from, and what it left out and why."""

    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]  # e.g. "groups", "zero_spread", "advantage/outcome_abs"
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason → number of traces not trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser:
    """Totals over the whole update, so that splitting it into micro-batches changes nothing."""

    tokens: float  # number of sampled tokens in all samples of this term
    sequences: float  # number of samples of this term


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some samples of one term, right-padded. ``[B, T]`` runs over sampled tokens only (prompts are cut off)."""

    token_ids: torch.Tensor  # [B, T] int64
    mask: torch.Tensor  # [B, T] float32, 1 on sampled tokens, 0 on padding
    behaviour: torch.Tensor  # [B, T]
    advantages: torch.Tensor  # [B, T]
    weights: torch.Tensor  # [B]
    reference: torch.Tensor | None  # [B, T]
    targets: torch.Tensor | None  # [B, T]
    old_values: torch.Tensor | None  # [B, T]
    off_policy: torch.Tensor | None = None  # [B] bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One micro-batch's share of a term: ``value`` already divided by the normaliser; metrics are *sums* over tokens,
    divided by the term's token count when reported."""

    value: torch.Tensor  # scalar, differentiable
    sums: Mapping[str, torch.Tensor]  # detached scalars, summed over sampled tokens


class Algorithm(Protocol):
    """How a policy learns from traces. Instances are frozen settings plus, for some, named state (baselines)."""

    def needs(self) -> Needs: ...

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        """Signals → per-token advantages. Traces arrive in address order; ``updates`` is how many optimiser steps this
        policy has made, ``planned`` how many the recipe will make (decays run on these, not on the global step).
        Failed traces are already left out."""
        ...

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        """``predictions`` ``[B, T]``: log-probabilities of the sampled tokens (head "lm"), values (head "value")
        or scores ``[B, 1]`` (head "reward")."""
        ...

    def state(self) -> State: ...

    def load(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One objective's share of an update."""

    name: str  # of the objective
    algorithm: Algorithm
    samples: tuple[Sample, ...]
    weight: float = 1.0  # of its loss beside the other terms of the update


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one call of ``update`` did."""

    stepped: bool  # False when there was nothing to learn from, or the guard refused the gradient
    skipped: str | None  # reason when not stepped
    metrics: Mapping[str, float]  # "{objective}/loss", "{objective}/entropy", "grad_norm", "lr", "tokens", "seconds" …


class Learner(Protocol):
    """One policy, one optimiser."""

    def update(self, terms: Sequence[Term]) -> UpdateReport: ...

    def logprobs(
        self,
        samples: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        *,
        temperature: float = 1.0,
        given: Sequence[Given] = (),
    ) -> list[torch.Tensor]:
        """For each (prompt_ids [P], token_ids [T]): float32 ``[T]`` log-probabilities (or values) without gradient.

        ``given``: what stands between the tokens of each; () for nothing anywhere."""
        ...

    def state(self) -> State: ...

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything to be saved: weights under ``model.``, optimiser moments under ``optimizer.``."""
        ...

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Exactly what ``state`` and ``tensors`` gave; missing and unknown names raise StateError."""
        ...
