"""Documents packed into rows of one length: best-fit decreasing, no document cut unless it is longer than a row.

Batches are addressed by a cursor: ``pack_documents`` takes a prefix of the documents that it is offered and says how
many it took, so the only state of a data loader is the integer index of the next document. Each row holds whole
documents; positions restart with every document and, with ``isolate``, no token sees another document, so that packing
is only an arrangement: every token has the loss that it would have alone in its row (the tests hold us to it).

Ding et al. 2024 ("Fewer truncations improve language modeling", arXiv 2404.10830) is the case for best-fit packing
over cutting a stream. Left out: reordering further than one batch, which would need more state than an integer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

PADDING = -1  # segment of the tokens that fill up a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A sequence of token ids and which of them the model must learn to produce."""

    ids: tuple[int, ...]  # [T]
    learn: tuple[bool, ...]  # [T] learn[t]: predicting ids[t] counts; learn[0] never does, nothing comes before it


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """One batch of rows."""

    ids: torch.Tensor  # [B, L] int64
    learn: torch.Tensor  # [B, L] bool, True where the token at this place is a target
    positions: torch.Tensor  # [B, L] int64, restarting at 0 with every document
    segments: torch.Tensor  # [B, L] int64, number of the document within its row, PADDING where there is none

    def select_rows(self, start: int, end: int) -> PackedBatch:
        """Rows ``start`` to ``end``, which may lie past the last."""
        return PackedBatch(**{field.name: getattr(self, field.name)[start:end] for field in fields(self)})

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch on a device."""
        return PackedBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def cut_document(document: Document, length: int) -> list[Document]:
    """Pieces of at most ``length`` tokens: one for a document that is no longer, none for an empty one."""
    return [
        Document(ids=document.ids[start : start + length], learn=document.learn[start : start + length])
        for start in range(0, len(document.ids), length)
    ]


def best_fit(sizes: Sequence[int], rows: int, length: int) -> list[list[int]] | None:
    """Best-fit decreasing: which of the items go into which row, or None when they do not all fit.

    Items are placed longest first (ties by position), each into the fullest row that still takes it (ties by row).
    """
    free = [length] * rows
    placed: list[list[int]] = [[] for _ in range(rows)]
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        best = min((row for row in range(rows) if free[row] >= sizes[item]), key=free.__getitem__, default=None)
        if best is None:
            return None
        free[best] -= sizes[item]
        placed[best].append(item)
    return placed


def longest_prefix(sizes: Sequence[int], rows: int, length: int) -> tuple[int, list[list[int]]]:
    """The longest prefix of the items that fits into ``rows`` rows of ``length``, and its arrangement.

    Best-fit is not monotone in principle; the search goes down from the largest prefix that fits by its sum, so the
    result is the longest that best-fit itself can place. Items longer than ``length`` must have been cut before.
    """
    count, total = 0, 0
    while count < len(sizes) and total + sizes[count] <= rows * length:
        total += sizes[count]
        count += 1
    while count:
        placed = best_fit(sizes[:count], rows, length)
        if placed is not None:
            return count, placed
        count -= 1
    return 0, [[] for _ in range(rows)]


def arrange_rows(
    documents: Sequence[Document], placed: Sequence[Sequence[int]], length: int, pad_id: int
) -> PackedBatch:
    """Write documents into rows as ``placed`` says (``placed[row]`` lists documents in order)."""
    ids = torch.full((len(placed), length), pad_id, dtype=torch.int64)
    learn = torch.zeros((len(placed), length), dtype=torch.bool)
    positions = torch.zeros((len(placed), length), dtype=torch.int64)
    segments = torch.full((len(placed), length), PADDING, dtype=torch.int64)
    for row, items in enumerate(placed):
        start = 0
        for segment, item in enumerate(items):
            document = documents[item]
            end = start + len(document.ids)
            ids[row, start:end] = torch.tensor(document.ids)
            learn[row, start:end] = torch.tensor(document.learn)
            learn[row, start] = False
            positions[row, start:end] = torch.arange(end - start)
            segments[row, start:end] = segment
            start = end
    return PackedBatch(ids=ids, learn=learn, positions=positions, segments=segments)


def pack_documents(documents: Sequence[Document], rows: int, length: int, pad_id: int) -> tuple[int, PackedBatch]:
    """Fill ``rows`` rows with as many documents from the front as fit; returns how many were taken, and the rows.

    Documents longer than ``length`` are cut into pieces; a document is taken with all of its pieces or not at all,
    except that the first one, should it alone be longer than the batch, loses what does not fit.
    """
    pieces: list[Document] = []
    ends: list[int] = []  # number of pieces after each document
    for document in documents:
        pieces.extend(cut_document(document, length))
        ends.append(len(pieces))
    if ends and ends[0] > rows:
        return 1, arrange_rows(pieces[:rows], [[row] for row in range(rows)], length, pad_id)
    sizes = [len(piece.ids) for piece in pieces]
    limit = len(pieces)
    while True:
        count, placed = longest_prefix(sizes[:limit], rows, length)
        n_documents = sum(end <= count for end in ends)
        whole = ends[n_documents - 1] if n_documents else 0
        if whole == count:
            return n_documents, arrange_rows(pieces, placed, length, pad_id)
        limit = whole


def block_mask(segments: torch.Tensor) -> torch.Tensor:
    """``[B, 1, L, L]`` bool: True where query i may see key j: same document and j ≤ i. Padding sees its own kind."""
    length = segments.shape[1]
    causal = torch.ones((length, length), dtype=torch.bool, device=segments.device).tril()
    return (segments[:, None, :, None] == segments[:, None, None, :]) & causal


def segment_lengths(segments: torch.Tensor) -> list[int]:
    """Lengths of all documents and paddings of all rows ``[B, L]``, in order; they sum to B·L."""
    first = torch.ones_like(segments, dtype=torch.bool)
    first[:, 1:] = segments[:, 1:] != segments[:, :-1]
    starts = first.flatten().nonzero().squeeze(1)
    return torch.diff(starts, append=starts.new_tensor([segments.numel()])).tolist()
