"""The share of a model's weights that training has not changed.

::

    sparsity(θ₀, θ₁) = 1 − ‖θ₁ − θ₀‖₀ / n           with both sides rounded to bfloat16, as checkpoints are stored

(Mukherjee et al. 2025, arXiv 2505.11711.) An update of less than about 1/256 of a weight is lost in that rounding, so
the figure hangs on the learning rate and the length of a run before it says something of a method. The tolerant one
also takes numbers for the same that differ by at most ``TOLERANCE``; that only happens to weights below about 0.002.

The adapter of a policy is added to its base first: what is compared are the merged weights, and all weights of the base
count, also those that no adapter reaches.

Left out: which weights changed, and the rank of the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

TOLERANCE = 1e-5  # largest distance of two numbers that count as equal


@dataclass(frozen=True, slots=True, kw_only=True)
class UnchangedCount:
    """Of ``weights`` numbers, how many are the same as before."""

    weights: int
    same: int  # in bfloat16
    near: int  # in bfloat16, within ``TOLERANCE``

    def __add__(self, other: UnchangedCount) -> UnchangedCount:
        return UnchangedCount(
            weights=self.weights + other.weights, same=self.same + other.same, near=self.near + other.near
        )


NOTHING = UnchangedCount(weights=0, same=0, near=0)


@torch.no_grad()
def compare_tensors(before: torch.Tensor, after: torch.Tensor) -> UnchangedCount:
    """Compare two tensors of one shape, any device and dtype; on the CPU. Raises ValueError for another shape."""
    if before.shape != after.shape:
        raise ValueError(f"unchanged needs one shape, found {tuple(before.shape)} and {tuple(after.shape)}")
    one, other = (tensor.detach().cpu().to(torch.bfloat16).float() for tensor in (before, after))
    distance = (one - other).abs()
    return UnchangedCount(
        weights=distance.numel(), same=int((distance == 0).sum()), near=int((distance <= TOLERANCE).sum())
    )


def compare_pairs(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> UnchangedCount:
    """Over (before, after) of several tensors, one after the other."""
    return sum((compare_tensors(before, after) for before, after in pairs), NOTHING)


def compare_models(
    before: Iterator[tuple[str, torch.Tensor]], after: Mapping[str, torch.Tensor]
) -> UnchangedCount | None:
    """Over all weights of a model, by name; None where the two do not have the same names and shapes."""
    known = dict(before)
    if known.keys() != after.keys() or any(known[name].shape != tensor.shape for name, tensor in after.items()):
        return None
    return compare_pairs((known[name], tensor) for name, tensor in after.items())
