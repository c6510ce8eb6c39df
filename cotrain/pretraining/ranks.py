"""One training on several ranks: each holds the whole model and computes its share of a batch's rows, and all make the
same step by the sum of their gradients.

All read the same documents and pack the same batches. The first rank alone writes: metrics, checkpoints, the result.
The sums have another order than one process has, so the figures agree up to rounding; the same number of ranks gives
the same bits, resumed or not. Left out: shards of one model (``learner/fsdp.py`` has them for runs), and several
machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """One rank of a training."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether it is the one that writes."""
        return self.rank == 0

    def own_rows(self, count: int) -> tuple[int, int]:
        """First row of its share of ``count``, and the one behind its last."""
        return count * self.rank // self.world, count * (self.rank + 1) // self.world

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Every gradient becomes the sum over all ranks; one that has none counts as zeros."""
        if self.world == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def sum_of(self, values: Sequence[float], device: torch.device) -> list[float]:
        """The sums over all ranks."""
        if self.world == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return total.tolist()

    def any_of(self, flag: bool, device: torch.device) -> bool:
        """Whether a flag is set on one of them."""
        return self.sum_of([float(flag)], device)[0] > 0.0

    def as_first(self, value: int, device: torch.device) -> int:
        """The value that the first rank has."""
        if self.world == 1:
            return value
        shared = torch.tensor([value], dtype=torch.int64, device=device)
        dist.broadcast(shared, 0)
        return int(shared)

    def wait(self, device: torch.device) -> None:
        """Until all are here."""
        self.sum_of([0.0], device)


ALONE = Ranks()
