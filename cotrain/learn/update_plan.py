"""The plan of one update, made before any forward pass: its loss terms, their totals, and which samples share a
micro-batch.

The totals are those of the whole update. A learner therefore may run any part of the micro-batches: gradients of
several parts add up to the gradient of the whole, whether they run one after the other or on several ranks. Left out:
dealing the micro-batches to ranks, which belongs to the learner that has some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotrain.learn.collate import Sequences, input_length, plan_padded, plan_shared
from cotrain.learn.contract import LossTerm, Normaliser
from cotrain.learn.sampled_tokens import with_context


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTerm:
    """One objective's share of an update."""

    term: LossTerm
    normaliser: Normaliser  # of all samples of the term, wherever they are computed
    batches: tuple[tuple[int, ...], ...]  # micro-batches to run here: indices into ``term.samples``


def plan_update(terms: Sequence[LossTerm], *, micro_tokens: int, shared: bool) -> tuple[PlannedTerm, ...]:
    """The terms that have samples, in their order, with totals and micro-batches of at most ``micro_tokens``.

    ``shared``: samples with one prompt share it in a forward pass (``collate.py``).
    """
    planned = []
    for term in terms:
        if not term.samples:
            continue
        tokens = sum(len(s.token_ids) for s in term.samples)
        sequences = [(s.prompt_ids, with_context(s.token_ids, s.given)[0]) for s in term.samples]
        planned.append(
            PlannedTerm(
                term=term,
                normaliser=Normaliser(tokens=float(tokens), sequences=float(len(sequences))),
                batches=tuple(batches_of(sequences, micro_tokens=micro_tokens, shared=shared)),
            )
        )
    return tuple(planned)


def batches_of(sequences: Sequences, *, micro_tokens: int, shared: bool) -> list[tuple[int, ...]]:
    """Which sequences share a forward pass: indices, each exactly once."""
    if shared:
        return plan_shared(sequences, micro_tokens)
    return plan_padded([input_length(prompt_ids, token_ids) for prompt_ids, token_ids in sequences], micro_tokens)
