"""A learner of several ranks: ``TorchLearner`` over a sharded model (``sharded.py``). Every rank makes the same calls.

    plan of micro-batches ──deal──▶ passes of this rank ──sum──▶ this rank's share of the whole gradient
                                                                 norm, clip, finite check: of the whole, on every rank
                                                                 optimiser step on shards

Whatever is decided is decided from sums over all ranks, so that all decide alike. On one rank the bits are those of
``TorchLearner``; on several, sums over micro-batches are taken in another order, and differ by rounding.

A rank that has too little memory for a pass raises RankShort (``sharded.py``); ``limit`` is how the next group is told.

Each rank gives its rows of what is saved (``share``); what is loaded is whole, so that any number of ranks, one process
too, goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from cotrain.core.state import State
from cotrain.learn.collate import PlannedTerm
from cotrain.learn.sharded import Sharded, ShardedScorer, is_row_sharded, local_shard
from cotrain.learn.torch_learner import MODEL, OPTIMIZER, Gradients, TorchLearner, inner_products


class ShardedLearner(TorchLearner):
    """One policy and its optimiser, in shards."""

    def __init__(self, sharded: Sharded, **settings: Any) -> None:
        """``settings``: of ``TorchLearner``."""
        self.sharded = sharded
        self._most: int | None = None  # tokens of a pass, where a rank has had too little memory for more
        super().__init__(sharded.model, scorer=partial(ShardedScorer, sharded=sharded), **settings)

    def local_batches(self, planned: PlannedTerm) -> Iterator[tuple[tuple[int, ...], bool]]:
        return ((planned.batches[place], counts) for place, counts in self.sharded.deal_batches(len(planned.batches)))

    def total_sums(self, sums: dict[str, float]) -> dict[str, float]:
        names = sorted(sums)
        values = self.sharded.sum_over_ranks(torch.tensor([sums[name] for name in names], dtype=torch.float64)).tolist()
        whole = dict(zip(names, values, strict=True))
        return {name: whole[name] for name in sums}

    def clip_gradients(self, most: float) -> float:
        gradients = [local_shard(p.grad) for p in self._trained.values() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.sharded.world > 1:
            norm = self.sharded.sum_over_ranks(norm.square()).sqrt()
        scale = (most / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)
        return float(norm)

    def gradient_products(self, sums: Sequence[Gradients]) -> torch.Tensor:
        stages = [*sums, [p.grad for p in self._trained.values()]]
        mine = [[None if gradient is None else local_shard(gradient) for gradient in stage] for stage in stages]
        return self.sharded.sum_over_ranks(inner_products(mine, self.scorer.device))

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole, one after the other; every rank must take them all."""
        return self.sharded.gather_whole(dict(super().weights()))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Whole on the first rank, in its memory beside the CPU; the others have none."""
        found = self.sharded.gather_whole(super().tensors())
        return {name: tensor.cpu() for name, tensor in found if self.sharded.rank == 0}

    def share(self) -> dict[str, torch.Tensor]:
        """This rank's rows of ``tensors``, beside the CPU; what is not cut is the first rank's. In the order of ranks
        the rows are the whole tensor."""
        first = self.sharded.rank == 0
        found = {name: (local_shard(tensor), is_row_sharded(tensor)) for name, tensor in super().tensors().items()}
        return {name: own.cpu() for name, (own, rows) in found.items() if first or (rows and own.numel())}

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load(state, {name: self._rank_part(name, tensor) for name, tensor in tensors.items()})
        if self._most is not None:
            self.limit(self._most)

    def limit(self, micro_tokens: int) -> None:
        """No pass has more tokens from here on, whatever is loaded."""
        self._most = micro_tokens
        self.scorer.micro_tokens = min(self.scorer.micro_tokens, micro_tokens)

    def _rank_part(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of a saved tensor."""
        parameter = name.removeprefix(MODEL)
        if name.startswith(OPTIMIZER):
            parameter = name.removeprefix(OPTIMIZER).rpartition(":")[0]
        like = self._trained.get(parameter)
        return tensor if like is None else self.sharded.shard_like(tensor, like)
