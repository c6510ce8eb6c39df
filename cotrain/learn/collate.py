"""Sequences → micro-batches: rows of prompt and sampled tokens, right-padded, under a budget of padded tokens.

Rows are sorted by length, longest first, so that neighbours waste little padding and the most expensive micro-batch
comes first (a batch that does not fit in memory fails at once). The plan depends on lengths alone and is the same
every time; since totals come from the whole update, the plan changes the result by rounding only.

The last sampled token is never an input, as nothing is predicted after it: a row has P + T − 1 tokens. Padding is on
the right, where causal attention cannot see it from any token that counts, so no attention mask is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch

from cotrain.core.errors import ConfigError
from cotrain.learn.contract import MicroBatch, Sample

Sequences = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]  # (prompt_ids [P], token_ids [T])
Carrier = TypeVar("Carrier", "Rows", MicroBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Input of one forward pass. ``[N]`` runs over the sampled tokens of all rows, row by row."""

    input_ids: torch.Tensor  # [B, L] int64, L = max(P + T − 1); 0 on padding
    row: torch.Tensor  # [N] int64, row of each sampled token
    column: torch.Tensor  # [N] int64, input position from which it is predicted
    targets: torch.Tensor  # [N] int64, the sampled token
    mask: torch.Tensor  # [B, T] bool, True on sampled tokens
    temperatures: torch.Tensor | None  # [N] float32, None when all are 1


def width(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> int:
    """Input tokens of one row."""
    return len(prompt_ids) + len(token_ids) - 1


def plan(widths: Sequence[int], budget: int) -> list[tuple[int, ...]]:
    """Which rows share a micro-batch: indices into ``widths``, each exactly once.

    Rows are taken longest first (ties by index) and each micro-batch holds as many as ``rows · longest ≤ budget``
    allows, but at least one: a row longer than the budget goes alone.
    """
    if budget < 1:
        raise ConfigError(f"micro_tokens is {budget}, expected at least 1")
    batches: list[list[int]] = []
    for index in sorted(range(len(widths)), key=lambda i: -widths[i]):
        if batches and (len(batches[-1]) + 1) * widths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [tuple(batch) for batch in batches]


def rows_of(sequences: Sequences, temperatures: Sequence[float]) -> Rows:
    """Pad some sequences to one rectangle.

    Raises ConfigError for a sequence without a prompt or without a sampled token, or a temperature that is not
    positive: a token drawn greedily has no log-probability to learn from.
    """
    for (prompt_ids, token_ids), temperature in zip(sequences, temperatures, strict=True):
        if not prompt_ids or not token_ids:
            found = f"{len(prompt_ids)} prompt and {len(token_ids)} sampled tokens"
            raise ConfigError(f"a sequence of {found}; expected at least one of each")
        if not temperature > 0.0:
            raise ConfigError(f"cannot learn from tokens sampled at temperature {temperature}; it must be positive")
    lengths = [len(token_ids) for _, token_ids in sequences]
    longest = max(width(p, t) for p, t in sequences)
    input_ids = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for b, (prompt_ids, token_ids) in enumerate(sequences):
        inputs = (*prompt_ids, *token_ids[:-1])
        input_ids[b, : len(inputs)] = torch.tensor(inputs)
    plain = all(temperature == 1.0 for temperature in temperatures)
    counts = torch.tensor(lengths)
    return Rows(
        input_ids=input_ids,
        row=torch.arange(len(sequences)).repeat_interleave(counts),
        column=torch.cat([torch.arange(len(p) - 1, width(p, t)) for p, t in sequences]),
        targets=torch.cat([torch.tensor(t) for _, t in sequences]),
        mask=torch.arange(max(lengths))[None, :] < counts[:, None],
        temperatures=None if plain else torch.tensor(temperatures, dtype=torch.float32).repeat_interleave(counts),
    )


def collate(samples: Sequence[Sample]) -> tuple[Rows, MicroBatch]:
    """The input of the forward pass and what the loss needs, in the same row order.

    Raises ConfigError when a per-token field is not as long as the sampled tokens, or only some samples have it.
    """
    rows = rows_of([(s.prompt_ids, s.token_ids) for s in samples], [s.temperature for s in samples])
    batch = MicroBatch(
        token_ids=torch.zeros(rows.mask.shape, dtype=torch.int64).masked_scatter(rows.mask, rows.targets),
        mask=rows.mask.float(),
        behaviour=_pad(samples, "behaviour", rows.mask),
        advantages=_pad(samples, "advantages", rows.mask),
        weights=torch.tensor([s.weight for s in samples], dtype=torch.float32),
        reference=_pad_optional(samples, "reference", rows.mask),
        targets=_pad_optional(samples, "targets", rows.mask),
        old_values=_pad_optional(samples, "old_values", rows.mask),
    )
    return rows, batch


def move(carrier: Carrier, device: torch.device) -> Carrier:
    """The same carrier with its tensors on ``device``."""
    present = {f.name: getattr(carrier, f.name) for f in fields(carrier) if getattr(carrier, f.name) is not None}
    return replace(carrier, **{name: tensor.to(device, non_blocking=True) for name, tensor in present.items()})


def _pad(samples: Sequence[Sample], name: str, mask: torch.Tensor) -> torch.Tensor:
    parts = [getattr(sample, name) for sample in samples]
    for sample, part in zip(samples, parts, strict=True):
        if part.shape != (len(sample.token_ids),):
            raise ConfigError(
                f"sample {sample.key}: {name} has shape {tuple(part.shape)}, expected ({len(sample.token_ids)},)"
            )
    dtype = parts[0].dtype
    return torch.zeros(mask.shape, dtype=dtype).masked_scatter(mask, torch.cat(parts).to(dtype))


def _pad_optional(samples: Sequence[Sample], name: str, mask: torch.Tensor) -> torch.Tensor | None:
    given = sum(getattr(sample, name) is not None for sample in samples)
    if given not in (0, len(samples)):
        raise ConfigError(f"{given} of {len(samples)} samples have {name}; expected all or none")
    return _pad(samples, name, mask) if given else None
