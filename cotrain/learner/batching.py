"""Sequences → micro-batches, in one of two layouts, under a budget of tokens; and the plan of one update.

    padded   rows of prompt and sampled tokens, padded on the right, where causal attention cannot see it from any token
             that counts: right for every model, no attention mask
    shared   one row of all tokens, in which sequences share what they begin with (``models.shared_prefix``), a prompt
             and all that answers to it have alike: no padding, half of the tokens and less with groups of eight, for
             models whose attention can be replaced

Sequences are sorted by length, longest first, so that neighbours waste little padding and the most expensive
micro-batch comes first (a batch that does not fit in memory fails at once); those of one prompt stand side by side, and
among them those that begin alike. The plan depends on the sequences alone and is the same every time; since totals come
from the whole update, it changes the result by rounding only. What was given between sampled tokens
(``algorithms/contract.py``) is an input like any other, from which nothing is read. The last sampled token is never an
input, as nothing is predicted after it: a sequence has P + T − 1 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch

from cotrain.algorithms.contract import ContextTokens, LossTerm, MicroBatch, Normaliser, Sample, Sequences, with_context
from cotrain.algorithms.policy_loss import bounds_of
from cotrain.core.errors import ConfigError
from cotrain.core.types import COLDEST
from cotrain.models.shared_prefix import RECTANGLE, Branches, common_length, prefix_tree

Carrier = TypeVar("Carrier", "ForwardInput", MicroBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInput:
    """Input of one forward pass. ``[N]`` runs over the sampled tokens of all B sequences, one after the other; ``[U]``
    over the places from which they are predicted, of which sampled tokens may have one in common where sequences share
    what they begin with."""

    input_ids: torch.Tensor  # [B, L] int64, L = max(P + T − 1), 0 on padding; shared layout: [1, L], L of all together
    row: torch.Tensor  # [U] int64, input row of each place
    column: torch.Tensor  # [U] int64, input position of each place
    source: torch.Tensor  # [N] int64, the place from which each sampled token is predicted: 0 to U − 1
    targets: torch.Tensor  # [N] int64, the sampled token
    mask: torch.Tensor  # [B, T] bool, True on sampled tokens
    temperatures: torch.Tensor | None  # [U] float32, None when all are 1
    branches: Branches | None = None  # branches of the shared-prefix layout


def input_length(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> int:
    """Input tokens of one row."""
    return len(prompt_ids) + len(token_ids) - 1


def plan_padded(widths: Sequence[int], budget: int) -> list[tuple[int, ...]]:
    """Which rows share a micro-batch: indices into ``widths``, each exactly once.

    Rows are taken longest first (ties by index) and each micro-batch holds as many as ``rows · longest ≤ budget``
    allows, but at least one: a row longer than the budget goes alone.
    """
    if budget < 1:
        raise ConfigError(f"micro_tokens is {budget}, expected at least 1", code="E_MICRO_TOKENS")
    batches: list[list[int]] = []
    for index in sorted(range(len(widths)), key=lambda i: -widths[i]):
        if batches and (len(batches[-1]) + 1) * widths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [tuple(batch) for batch in batches]


def plan_shared(sequences: Sequences, budget: int) -> list[tuple[int, ...]]:
    """As ``plan_padded`` for the shared layout: in each micro-batch a prompt counts once, and so does what answers to
    it begin with alike; the sequences of a prompt go side by side."""
    if budget < 1:
        raise ConfigError(f"micro_tokens is {budget}, expected at least 1", code="E_MICRO_TOKENS")
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, (prompt_ids, _) in enumerate(sequences):
        groups.setdefault(prompt_ids, []).append(index)
    widths = [input_length(p, t) for p, t in sequences]
    batches: list[list[int]] = []
    tokens = longest = 0
    for prompt_ids, group in sorted(groups.items(), key=lambda item: -max(widths[i] for i in item[1])):
        before: Sequence[int] | None = None  # the tokens of the sequence of this prompt before, in the last batch
        for index in sorted(group, key=lambda i: sequences[i][1]):
            own = sequences[index][1][:-1]
            extra_tokens = widths[index] - (0 if before is None else len(prompt_ids) + common_length(before, own))
            new_longest = max(longest, widths[index])
            wide = bool(batches) and (len(batches[-1]) + 1) * new_longest > RECTANGLE * budget
            if not batches or tokens + extra_tokens > budget or wide:
                batches.append([])
                tokens, extra_tokens, new_longest = 0, widths[index], widths[index]
            batches[-1].append(index)
            tokens, longest, before = tokens + extra_tokens, new_longest, own
    return [tuple(batch) for batch in batches]


def forward_input_of(
    sequences: Sequences,
    temperatures: Sequence[float],
    *,
    context_tokens: Sequence[ContextTokens] = (),
    shared: bool = False,
) -> ForwardInput:
    """Lay some sequences out for one forward pass, in the shared layout where ``shared`` says so. ``given``: what
    stands between the sampled tokens of each; it is an input, and nothing is predicted there.

    Raises ConfigError for a sequence without a prompt or without a sampled token, or a temperature that is not
    positive: a token drawn greedily has no log-probability to learn from.
    """
    for (prompt_ids, token_ids), temperature in zip(sequences, temperatures, strict=True):
        if not prompt_ids or not token_ids:
            counts_text = f"{len(prompt_ids)} prompt and {len(token_ids)} sampled tokens"
            raise ConfigError(f"a sequence of {counts_text}; expected at least one of each", code="E_SEQUENCE_EMPTY")
        if not temperature >= COLDEST:
            raise ConfigError(
                f"cannot learn from tokens sampled at temperature {temperature}; it must be at least {COLDEST:g}",
                code="E_TEMPERATURE_NOT_LEARNABLE",
            )
    lengths = [len(token_ids) for _, token_ids in sequences]
    counts = torch.tensor(lengths)
    context = context_tokens or [()] * len(sequences)
    full_sequences = [(p, *with_context(t, g)) for (p, t), g in zip(sequences, context, strict=True)]
    if shared:
        tree = prefix_tree([(*prompt_ids, *ids[:-1]) for prompt_ids, ids, _ in full_sequences])
        columns = [
            tree.places[b][len(prompt_ids) + place - 1]
            for b, (prompt_ids, _, places) in enumerate(full_sequences)
            for place in places
        ]
        input_ids, branches = torch.tensor([tree.ids]), tree.branches
        rows = [0] * len(columns)
    else:
        branches = None
        longest = max(input_length(p, ids) for p, ids, _ in full_sequences)
        input_ids = torch.zeros(len(full_sequences), longest, dtype=torch.int64)
        for b, (prompt_ids, ids, _) in enumerate(full_sequences):
            inputs = (*prompt_ids, *ids[:-1])
            input_ids[b, : len(inputs)] = torch.tensor(inputs)
        rows = [b for b, length in enumerate(lengths) for _ in range(length)]
        columns = [place + len(p) - 1 for p, _, places in full_sequences for place in places]
    heats = [temperature for temperature, length in zip(temperatures, lengths, strict=True) for _ in range(length)]
    predicting: dict[tuple[int, int, float], int] = {}  # row, column and temperature → its number
    source = [predicting.setdefault(key, len(predicting)) for key in zip(rows, columns, heats, strict=True)]
    row, column, heat = zip(*predicting, strict=True)
    plain = all(temperature == 1.0 for temperature in temperatures)
    return ForwardInput(
        input_ids=input_ids,
        row=torch.tensor(row),
        column=torch.tensor(column),
        source=torch.tensor(source),
        targets=torch.cat([torch.tensor(t) for _, t in sequences]),
        mask=torch.arange(max(lengths))[None, :] < counts[:, None],
        temperatures=None if plain else torch.tensor(heat, dtype=torch.float32),
        branches=branches,
    )


def collate(samples: Sequence[Sample], *, shared: bool = False) -> tuple[ForwardInput, MicroBatch]:
    """The input of the forward pass and what the loss needs, in the same order of sequences.

    Raises ConfigError when a per-token field is not as long as the sampled tokens, or only some samples have it.
    """
    rows = forward_input_of(
        [(s.prompt_ids, s.token_ids) for s in samples],
        [s.temperature for s in samples],
        context_tokens=[s.context_tokens for s in samples],
        shared=shared,
    )
    batch = MicroBatch(
        token_ids=torch.zeros(rows.mask.shape, dtype=torch.int64).masked_scatter(rows.mask, rows.targets),
        mask=rows.mask.float(),
        sampler_logprobs=_pad_field(samples, "sampler_logprobs", rows.mask),
        advantages=_pad_field(samples, "advantages", rows.mask),
        weights=torch.tensor([s.weight for s in samples], dtype=torch.float32),
        reference=_pad_optional_field(samples, "reference", rows.mask),
        targets=_pad_optional_field(samples, "targets", rows.mask),
        old_values=_pad_optional_field(samples, "old_values", rows.mask),
        off_policy=torch.tensor([s.off_policy for s in samples]),
        bounds=bounds_of(samples),
    )
    return rows, batch


def move_to(carrier: Carrier, device: torch.device) -> Carrier:
    """The same carrier with its tensors on ``device``."""
    present = {f.name: getattr(carrier, f.name) for f in fields(carrier) if getattr(carrier, f.name) is not None}
    return replace(carrier, **{name: tensor.to(device, non_blocking=True) for name, tensor in present.items()})


def _pad_field(samples: Sequence[Sample], name: str, mask: torch.Tensor) -> torch.Tensor:
    parts = [getattr(sample, name) for sample in samples]
    for sample, part in zip(samples, parts, strict=True):
        if part.shape != (len(sample.token_ids),):
            raise ConfigError(
                f"sample {sample.key}: {name} has shape {tuple(part.shape)}, expected ({len(sample.token_ids)},)",
                code="E_SAMPLE_SHAPE",
            )
    dtype = parts[0].dtype
    return torch.zeros(mask.shape, dtype=dtype).masked_scatter(mask, torch.cat(parts).to(dtype))


def _pad_optional_field(samples: Sequence[Sample], name: str, mask: torch.Tensor) -> torch.Tensor | None:
    given = sum(getattr(sample, name) is not None for sample in samples)
    if given not in (0, len(samples)):
        raise ConfigError(
            f"{given} of {len(samples)} samples have {name}; expected all or none", code="E_SAMPLES_UNLIKE"
        )
    return _pad_field(samples, name, mask) if given else None


# -- What one update consists of: its terms, their totals, and who shares a micro-batch.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTerm:
    """One objective's share of an update."""

    term: LossTerm
    normaliser: Normaliser  # of all samples of the term, wherever and whether they are computed
    tokens: float  # of those that are computed
    batches: tuple[tuple[int, ...], ...]  # micro-batches to run here: indices into ``term.samples``


def plan_update(terms: Sequence[LossTerm], *, micro_tokens: int, shared: bool) -> tuple[PlannedTerm, ...]:
    """The terms that have samples, in their order, with totals and micro-batches of at most ``micro_tokens``.

    ``shared``: samples share what they begin with in a forward pass (``batching.py``).
    """
    planned = []
    for term in terms:
        if not term.samples:
            continue
        tokens, chosen = sum(len(s.token_ids) for s in term.samples), computed_samples(term)
        samples = [term.samples[i] for i in chosen]
        sequences = [(s.prompt_ids, with_context(s.token_ids, s.context_tokens)[0]) for s in samples]
        batches = batches_of(sequences, micro_tokens=micro_tokens, shared=shared)
        planned.append(
            PlannedTerm(
                term=term,
                normaliser=Normaliser(tokens=float(tokens), sequences=float(len(term.samples))),
                tokens=float(sum(len(s.token_ids) for s in samples)),
                batches=tuple(tuple(chosen[i] for i in batch) for batch in batches),
            )
        )
    return tuple(planned)


def computed_samples(term: LossTerm) -> list[int]:
    """Which samples of a term have a forward and a backward pass: indices. Those without any advantage have none where
    nothing but advantages is learned from, as their gradient is 0; the shortest one has where no other is left, so that
    there is a gradient."""
    every = list(range(len(term.samples)))
    if term.algorithm.needs().zero_advantage_has_gradient:
        return every
    lengths = [len(s.prompt_ids) + len(s.token_ids) for s in term.samples]
    return [i for i in every if bool(term.samples[i].advantages.any())] or [min(every, key=lambda i: lengths[i])]


def batches_of(sequences: Sequences, *, micro_tokens: int, shared: bool) -> list[tuple[int, ...]]:
    """Which sequences share a forward pass: indices, each exactly once."""
    if shared:
        return plan_shared(sequences, micro_tokens)
    return plan_padded([input_length(prompt_ids, token_ids) for prompt_ids, token_ids in sequences], micro_tokens)
