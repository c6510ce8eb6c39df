"""A model in shards: each rank of a group of processes holds a share of every weight (torch's FSDP2, ``fully_shard``).

A layer's weights are whole only while it computes, forward or backward: they are gathered before it and dropped behind
it. Embeddings, norms and output layer are gathered once for a pass. What a pass does not go through stays in shards.

    call(work)            ``work()`` with the whole model; every rank calls it equally often, or the others wait
    deal(count)           which of so many micro-batches run here

Micro-batches are dealt by turns, and each is computed as it would be on one process: log-probabilities have the same
bits on any number of ranks. Gradients are summed over ranks, never averaged, as the loss is divided by totals of the
whole update already.

Where one rank has too little memory for a pass, the others wait for it within theirs. So it raises RankShort, with the
smaller micro-batches that all are to have, which are those of one process; whoever asked the ranks begins all of them
again with these (``learner_group.py``).

Left out: loading a model in shards (each rank loads all of it, then keeps its share), and tensor parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from cotrain.core.errors import ModelError, RankShort
from cotrain.learn.collate import ForwardInput, Sequences, forward_input_of, move_to
from cotrain.learn.contract import Given, with_context
from cotrain.learn.scorer import Scorer
from cotrain.models.memory import MEMORY_ERRORS

Made = TypeVar("Made")


class Sharded(nn.Module):
    """Puts a model into shards, in place: its parameters become DTensors under their old names."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        """``model``: whole, on the mesh's kind of device, and the same on every rank. Raises ModelError where there are
        no layers to be gathered one by one."""
        super().__init__()
        self.model, self.mesh = model, mesh
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise ModelError(f"{type(model).__name__} has no layers of transformers to be sharded; use --world 1")
        for module in [*reversed(layers), self]:
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
                module.set_gradient_divide_factor(1.0)

    @property
    def rank(self) -> int:
        return self.mesh.get_rank()

    @property
    def world(self) -> int:
        return self.mesh.size()

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()

    def run_sharded(self, work: Callable[[], Made]) -> Made:
        """``work()``, which returns tensors, with the whole model."""
        made: Made = self(work)
        return made

    @contextmanager
    def without_backward(self) -> Iterator[None]:
        """Around calls without a backward pass, in which FSDP would forget what it keeps of each."""
        yield
        self._fsdp_module.reset_iter_state()

    @property
    def _fsdp_module(self) -> FSDPModule:
        assert isinstance(self, FSDPModule)  # ``fully_shard`` has made it one
        return self

    def deal_batches(self, count: int) -> list[tuple[int, bool]]:
        """Of ``count`` micro-batches those of this rank, and whether they count here: ranks that have one less make
        the first once more, for nothing, as every rank must make equally many passes."""
        mine = [turn * self.world + self.rank for turn in range(math.ceil(count / self.world))]
        return [(place, True) if place < count else (0, False) for place in mine]

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks; the same bits on each."""
        moved = values.to(self.mesh.device_type)
        dist.all_reduce(moved, group=self.mesh.get_group())
        return moved

    def gather_whole(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor whole, one after the other, on every rank."""
        for name in sorted(tensors):
            yield name, whole_tensor(tensors[name])

    def shard_like(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """This rank's shard of a whole tensor, cut as ``like`` is; nothing is sent."""
        if not isinstance(like, DTensor) or like.shape != tensor.shape:
            return tensor
        moved = tensor.to(like.device)
        return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may lie in shards; every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's share of it, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_row_sharded(tensor: torch.Tensor) -> bool:
    """Does each rank hold rows of it, one behind the other? Otherwise each holds all of it."""
    if not isinstance(tensor, DTensor) or all(placement.is_replicate() for placement in tensor.placements):
        return False
    assert tensor.placements == (Shard(0),), tensor.placements  # ``fully_shard`` cuts in no other way
    return True


class ShardedScorer(Scorer):
    """A scorer over a sharded model. All ranks are asked the same, and answer the same."""

    def __init__(self, model: nn.Module, *, sharded: Sharded, **settings: Any) -> None:
        """``settings``: of ``Scorer``."""
        self.sharded = sharded
        super().__init__(model, **settings)

    def predict(self, rows: ForwardInput, *, entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.sharded.run_sharded(partial(super().predict, rows, entropy=entropy))

    def halve_batches(self, sequences: Sequence[Sequences], error: BaseException) -> None:
        """Raises RankShort as well."""
        super().halve_batches(sequences, error)
        raise RankShort(self.sharded.rank, self.sharded.world, self.micro_tokens) from error

    def _find_layers(self) -> None:
        with torch.no_grad(), self.sharded.without_backward():
            self.sharded.run_sharded(super()._find_layers)

    def _logprobs_of(self, sequences: Sequences, temperature: float, given: Sequence[Given]) -> list[torch.Tensor]:
        between = given or [()] * len(sequences)
        plan = self.plan_batches([(p, with_context(t, g)[0]) for (p, t), g in zip(sequences, between, strict=True)])
        ends = torch.tensor([0, *(len(t) for _, t in sequences)]).cumsum(0).tolist()
        flat_logprobs = torch.zeros(ends[-1])
        self.model.eval()
        with torch.no_grad(), self.sharded.without_backward():
            try:
                for batch_index, counts in self.sharded.deal_batches(len(plan)):
                    indices = plan[batch_index]
                    batch_given = [between[i] for i in indices]
                    rows = forward_input_of(
                        [sequences[i] for i in indices],
                        [temperature] * len(indices),
                        given=batch_given,
                        shared=self.shared,
                    )
                    predictions = self.predict(move_to(rows, self.device))[0].float().cpu()
                    for b, i in enumerate(indices if counts else ()):
                        flat_logprobs[ends[i] : ends[i + 1]] = predictions[b, : ends[i + 1] - ends[i]]
            except MEMORY_ERRORS as error:
                self.halve_batches([[sequences[i] for i in indices] for indices in plan], error)
        bits = self.sharded.sum_over_ranks(
            flat_logprobs.view(torch.int32)
        ).cpu()  # each place is set on one rank: as numbers −0 would be 0
        return [part.clone() for part in bits.view(torch.float32).split(torch.tensor(ends).diff().tolist())]
