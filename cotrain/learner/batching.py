"""Sequences → micro-batches, in one of two layouts, under a budget of tokens; and the plan of one update.

    padded   one row for each sequence, prompt and sampled tokens, padded on the right. Causal attention keeps padding
             from changing any token before it, so no attention mask is needed. Right for every model.
    shared   one row for all sequences, in which a common prefix occurs once (``models/shared_prefix.py``): the prompt,
             and the equal beginnings of its answers. No padding, and half of the tokens or fewer with groups of eight.
             For models whose attention can be replaced.

Sequences are sorted by length, longest first: neighbours waste little padding, and the largest micro-batch comes first,
so that one that does not fit in memory fails at once. In the shared layout the sequences of a prompt are neighbours,
and among them those with a common beginning. The plan depends on the sequences alone. Losses are divided by totals of
the whole update, so another plan changes the result by rounding only.

A sequence has P prompt tokens and T sampled ones. The last sampled token is never an input, as nothing is predicted
after it, so a row has P + T − 1 tokens. Context between sampled tokens (``algorithms/contract.py``) is an input at
which nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch

from cotrain.algorithms.contract import (
    BatchTotals,
    ContextTokens,
    LossTerm,
    MicroBatch,
    Sample,
    Sequences,
    with_context,
)
from cotrain.algorithms.policy_loss import bounds_of
from cotrain.core.errors import ConfigError
from cotrain.core.types import COLDEST
from cotrain.models.shared_prefix import RECTANGLE, Branches, common_length, prefix_tree

Carrier = TypeVar("Carrier", "ForwardInput", MicroBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInput:
    """Input of one forward pass over B sequences.

    ``[N]`` runs over the sampled tokens of all sequences, one after the other. ``[U]`` runs over places: the input
    positions from which sampled tokens are predicted. U < N if two of them are predicted from one place, as the first
    tokens of two answers to one prompt are in the shared layout.

    E.g. the answers "a b" and "a c" to the prompt "p q", in the shared layout:

        input_ids   p q a       the last token of an answer is never an input
        row         0 0         [U] two places: "q", from which "a" is predicted, and "a", from which "b" and "c" are
        column      1 2
        source      0 1 0 1     [N] the place of each sampled token
        targets     a b a c
    """

    input_ids: torch.Tensor  # [B, L] int64, L = max(P + T − 1), 0 on padding; shared layout: [1, L], L in total
    row: torch.Tensor  # [U] int64, row of each place in ``input_ids``
    column: torch.Tensor  # [U] int64, column of each place in ``input_ids``
    source: torch.Tensor  # [N] int64, index in [U] of the place from which each sampled token is predicted
    targets: torch.Tensor  # [N] int64, the sampled token
    mask: torch.Tensor  # [B, T] bool, True on sampled tokens
    temperatures: torch.Tensor | None  # [U] float32, None when all are 1
    branches: Branches | None = None  # which positions attend to which in the shared layout; None: padded


def input_length(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> int:
    """Input tokens of one row."""
    return len(prompt_ids) + len(token_ids) - 1


def plan_padded(widths: Sequence[int], budget: int) -> list[tuple[int, ...]]:
    """The rows of each micro-batch: indices into ``widths``, each exactly once.

    Rows are taken longest first (ties by index) and each micro-batch holds as many as ``rows · longest ≤ budget``
    allows, but at least one: a row longer than the budget goes alone.
    """
    if budget < 1:
        raise ConfigError(f"micro_tokens is {budget}, expected at least 1", code="E_MICRO_TOKENS")
    longest_first = sorted(range(len(widths)), key=lambda i: -widths[i])
    batches: list[list[int]] = []
    for index in longest_first:
        if batches:
            batch = batches[-1]
            longest = widths[batch[0]]
            if (len(batch) + 1) * longest <= budget:
                batch.append(index)
                continue
        batches.append([index])
    return [tuple(batch) for batch in batches]


def plan_shared(sequences: Sequences, budget: int) -> list[tuple[int, ...]]:
    """As ``plan_padded``, for the shared layout: in each micro-batch a prompt counts once, and so does the common
    beginning of two answers to it. The sequences of a prompt are neighbours."""
    if budget < 1:
        raise ConfigError(f"micro_tokens is {budget}, expected at least 1", code="E_MICRO_TOKENS")
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, (prompt_ids, _) in enumerate(sequences):
        groups.setdefault(prompt_ids, []).append(index)
    widths = [input_length(prompt_ids, token_ids) for prompt_ids, token_ids in sequences]

    def longest_of_group(item: tuple[tuple[int, ...], list[int]]) -> int:
        _, members = item
        return max(widths[i] for i in members)

    batches: list[list[int]] = []
    tokens = 0  # tokens of the last batch, common beginnings counted once
    longest = 0  # width of the longest sequence of the last batch
    for prompt_ids, members in sorted(groups.items(), key=longest_of_group, reverse=True):
        previous: Sequence[int] | None = None  # answer before this one, to the same prompt
        for index in sorted(members, key=lambda i: sequences[i][1]):
            answer = sequences[index][1][:-1]  # its last token is no input
            width = widths[index]
            extra_tokens = width
            if previous is not None:
                extra_tokens -= len(prompt_ids) + common_length(previous, answer)
            new_longest = max(longest, width)

            fits = bool(batches) and tokens + extra_tokens <= budget
            # Off the CPU, attention pads sequences to the longest one, so the padded size has a bound, too.
            if fits and (len(batches[-1]) + 1) * new_longest <= RECTANGLE * budget:
                batches[-1].append(index)
                tokens += extra_tokens
                longest = new_longest
            else:
                batches.append([index])
                tokens = width
                longest = width
            previous = answer
    return [tuple(batch) for batch in batches]


def forward_input_of(
    sequences: Sequences,
    temperatures: Sequence[float],
    *,
    context_tokens: Sequence[ContextTokens] = (),
    shared: bool = False,
) -> ForwardInput:
    """The input of one forward pass, in the shared or the padded layout.

    Args:
        sequences: (prompt ids, sampled ids) of each.
        temperatures: at which each sequence was sampled.
        context_tokens: of each sequence, the tokens between its sampled ones: inputs at which nothing is predicted.

    Raises ConfigError for a sequence without a prompt or without a sampled token, and for a temperature of 0: a token
    drawn greedily has no log-probability to learn from.
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

    context = context_tokens or [()] * len(sequences)
    inputs: list[tuple[int, ...]] = []  # the input tokens of each sequence
    predicted_from: list[list[int]] = []  # for each sequence the input position that predicts each sampled token
    for (prompt_ids, token_ids), own_context in zip(sequences, context, strict=True):
        ids, sampled_at = with_context(token_ids, own_context)
        inputs.append((*prompt_ids, *ids[:-1]))
        predicted_from.append([len(prompt_ids) + position - 1 for position in sampled_at])

    # Row and column of the input, and the temperature, of each sampled token.
    rows: list[int] = []
    columns: list[int] = []
    branches = None
    if shared:
        tree = prefix_tree(inputs)
        input_ids = torch.tensor([tree.ids])
        branches = tree.branches
        for b, positions in enumerate(predicted_from):
            rows += [0] * len(positions)
            columns += [tree.places[b][position] for position in positions]
    else:
        input_ids = torch.zeros(len(inputs), max(map(len, inputs)), dtype=torch.int64)
        for b, ids in enumerate(inputs):
            input_ids[b, : len(ids)] = torch.tensor(ids)
        for b, positions in enumerate(predicted_from):
            rows += [b] * len(positions)
            columns += positions

    token_temperatures: list[float] = []
    for temperature, positions in zip(temperatures, predicted_from, strict=True):
        token_temperatures += [temperature] * len(positions)

    # Sampled tokens of the same place and temperature share one row of logits.
    place_numbers: dict[tuple[int, int, float], int] = {}  # (row, column, temperature) → index in [U]
    source = []
    for place in zip(rows, columns, token_temperatures, strict=True):
        source.append(place_numbers.setdefault(place, len(place_numbers)))
    row, column, place_temperatures = zip(*place_numbers, strict=True)  # [U] each, in the order of their numbers
    all_ones = all(temperature == 1.0 for temperature in temperatures)

    counts = torch.tensor([len(token_ids) for _, token_ids in sequences])
    return ForwardInput(
        input_ids=input_ids,
        row=torch.tensor(row),
        column=torch.tensor(column),
        source=torch.tensor(source),
        targets=torch.cat([torch.tensor(token_ids) for _, token_ids in sequences]),
        mask=torch.arange(int(counts.max()))[None, :] < counts[:, None],
        temperatures=None if all_ones else torch.tensor(place_temperatures, dtype=torch.float32),
        branches=branches,
    )


def collate(samples: Sequence[Sample], *, shared: bool = False) -> tuple[ForwardInput, MicroBatch]:
    """The input of the forward pass and the tensors of the loss, in the same order of sequences.

    Raises ConfigError if a per-token field is not as long as the sampled tokens, or only some samples have it.
    """
    inputs = forward_input_of(
        [(s.prompt_ids, s.token_ids) for s in samples],
        [s.temperature for s in samples],
        context_tokens=[s.context_tokens for s in samples],
        shared=shared,
    )
    # ``masked_scatter`` puts a row of values, one after the other, where the mask is True.
    batch = MicroBatch(
        token_ids=torch.zeros(inputs.mask.shape, dtype=torch.int64).masked_scatter(inputs.mask, inputs.targets),
        mask=inputs.mask.float(),
        sampler_logprobs=_pad_field(samples, "sampler_logprobs", inputs.mask),
        advantages=_pad_field(samples, "advantages", inputs.mask),
        weights=torch.tensor([s.weight for s in samples], dtype=torch.float32),
        reference=_pad_optional_field(samples, "reference", inputs.mask),
        targets=_pad_optional_field(samples, "targets", inputs.mask),
        old_values=_pad_optional_field(samples, "old_values", inputs.mask),
        off_policy=torch.tensor([s.off_policy for s in samples]),
        bounds=bounds_of(samples),
    )
    return inputs, batch


def move_to(carrier: Carrier, device: torch.device) -> Carrier:
    """The same carrier with its tensors on ``device``."""
    moved = {}
    for field in fields(carrier):
        tensor = getattr(carrier, field.name)
        if tensor is not None:
            moved[field.name] = tensor.to(device, non_blocking=True)
    return replace(carrier, **moved)


def _pad_field(samples: Sequence[Sample], name: str, mask: torch.Tensor) -> torch.Tensor:
    """[B, T] a per-token field of all samples, 0 on padding."""
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
    """The same for a field that all samples have, or none."""
    n_with_field = sum(getattr(sample, name) is not None for sample in samples)
    if n_with_field not in (0, len(samples)):
        raise ConfigError(
            f"{n_with_field} of {len(samples)} samples have {name}; expected all or none", code="E_SAMPLES_UNLIKE"
        )
    if not n_with_field:
        return None
    return _pad_field(samples, name, mask)


# -- The plan of one update: its terms, their totals, and the samples of each micro-batch.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTerm:
    """One objective's share of an update."""

    term: LossTerm
    totals: BatchTotals  # totals over all samples of the term, on all ranks, also those without a forward pass
    tokens: float  # sampled tokens of the samples that have a forward pass (``computed_samples``)
    batches: tuple[tuple[int, ...], ...]  # micro-batches: indices into ``term.samples``


def plan_update(terms: Sequence[LossTerm], *, micro_tokens: int, shared: bool) -> tuple[PlannedTerm, ...]:
    """The terms that have samples, in their order, with totals and micro-batches of at most ``micro_tokens``.

    ``shared``: sequences of a forward pass are in the shared layout.
    """
    planned = []
    for term in terms:
        if not term.samples:
            continue
        total_tokens = sum(len(sample.token_ids) for sample in term.samples)
        computed = computed_samples(term)  # indices into ``term.samples``
        samples = [term.samples[i] for i in computed]
        batches = batches_of(full_sequences(samples), micro_tokens=micro_tokens, shared=shared)
        batches_of_term = []
        for batch in batches:  # indices into ``samples``
            batches_of_term.append(tuple(computed[i] for i in batch))
        planned.append(
            PlannedTerm(
                term=term,
                totals=BatchTotals(tokens=float(total_tokens), sequences=float(len(term.samples))),
                tokens=float(sum(len(sample.token_ids) for sample in samples)),
                batches=tuple(batches_of_term),
            )
        )
    return tuple(planned)


def full_sequences(samples: Sequence[Sample]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The prompt of each sample, and its sampled tokens with the context between them."""
    sequences = []
    for sample in samples:
        ids, _ = with_context(sample.token_ids, sample.context_tokens)
        sequences.append((sample.prompt_ids, ids))
    return sequences


def computed_samples(term: LossTerm) -> list[int]:
    """Indices of the samples of a term that need a forward and a backward pass.

    If an algorithm learns from advantages alone, a sample whose advantages are all 0 has no gradient and is left out.
    If all are 0, the shortest sample is kept, so that parameters have a gradient (of zeros)."""
    indices = list(range(len(term.samples)))
    if term.algorithm.needs().zero_advantage_has_gradient:
        return indices

    with_advantage = [i for i in indices if bool(term.samples[i].advantages.any())]
    if with_advantage:
        return with_advantage
    lengths = [len(sample.prompt_ids) + len(sample.token_ids) for sample in term.samples]
    return [min(indices, key=lambda i: lengths[i])]


def batches_of(sequences: Sequences, *, micro_tokens: int, shared: bool) -> list[tuple[int, ...]]:
    """Indices of the sequences of each forward pass, each index exactly once."""
    if shared:
        return plan_shared(sequences, micro_tokens)
    widths = [input_length(prompt_ids, token_ids) for prompt_ids, token_ids in sequences]
    return plan_padded(widths, micro_tokens)
