"""A model in shards: each rank of a group of processes holds a share of every weight (torch's FSDP2, ``fully_shard``).

The weights of a layer are whole only while it computes, forward or backward: they are gathered before and freed after.
Embeddings, norms and output layer are gathered once for a pass. Layers that a pass does not use stay in shards.

    run_sharded(work)     call ``work()`` with the whole model; all ranks must call it equally often, or they deadlock
    deal_batches(count)   the micro-batches, out of ``count``, that run on this rank

Micro-batches are dealt to ranks in turn, and each is computed as it would be on one process: log-probabilities have the
same bits on any number of ranks. Gradients are summed over ranks and not averaged, since the loss is divided by totals
of the whole update already.

If one rank runs out of memory in a pass, the others wait for it in theirs. So it raises RankShort with the smaller
micro-batch size, which is the one that a single process would choose, and the caller starts the work of all ranks again
with this size (``distributed/ranks.py``).

::

    plan of micro-batches ──deal──▶ passes of this rank ──sum──▶ this rank's shard of the whole gradient
                                                                 norm, clip, finite check of the whole gradient
                                                                 optimiser step on shards

Every decision is made from sums over all ranks, so that all ranks decide alike. On one rank the bits are those of
``TorchLearner``; on several, micro-batches are summed in another order, so results differ by rounding. Each rank saves
its rows (``share``). Tensors are loaded whole, so any number of ranks, or one process, can continue from them.

Left out: loading a model in shards (each rank loads all of it, then keeps its share), and tensor parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from cotrain.algorithms.contract import Sequences
from cotrain.core.errors import ModelError, RankShort
from cotrain.core.types import State
from cotrain.learner.batching import ForwardInput
from cotrain.learner.learner import MODEL, OPTIMIZER, Gradients, TorchLearner, inner_products
from cotrain.learner.logprobs import Scorer

Result = TypeVar("Result")


class Sharded(nn.Module):
    """Puts a model into shards, in place: its parameters become DTensors under their old names."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        """``model``: whole, on the mesh's kind of device, and the same on every rank. Raises ModelError for a model
        without layers that can be gathered one by one."""
        super().__init__()
        self.model = model
        self.mesh = mesh
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise ModelError(
                f"{type(model).__name__} has no layers of transformers to be sharded; use --world 1",
                code="E_MODEL_NOT_SHARDABLE",
            )
        for module in [*reversed(layers), self]:
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
                module.set_gradient_divide_factor(1.0)

    @property
    def rank(self) -> int:
        return self.mesh.get_rank()

    @property
    def world(self) -> int:
        return self.mesh.size()

    def forward(self, work: Callable[[], Result]) -> Result:
        return work()

    def run_sharded(self, work: Callable[[], Result]) -> Result:
        """Call ``work()``, which returns tensors, with the whole model: FSDP gathers weights around ``forward``."""
        result: Result = self(work)
        return result

    def forget_passes(self) -> None:
        """Free what FSDP keeps of each pass for a backward pass, after passes that have none."""
        assert isinstance(self, FSDPModule)  # ``fully_shard`` changed the class of this module
        self.reset_iter_state()

    def deal_batches(self, count: int) -> list[tuple[int, bool]]:
        """Indices of the micro-batches that this rank computes, out of ``count``, and whether each result is counted.
        All ranks must run equally many passes, so a rank with one less repeats the first one without counting it."""
        batches = []
        for turn in range(math.ceil(count / self.world)):
            index = turn * self.world + self.rank
            if index < count:
                batches.append((index, True))
            else:
                batches.append((0, False))
        return batches

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks; the same bits on each."""
        total = values.to(self.mesh.device_type)
        dist.all_reduce(total, group=self.mesh.get_group())
        return total

    def gather_whole(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor whole, one after the other, on every rank."""
        for name in sorted(tensors):
            yield name, whole_tensor(tensors[name])

    def shard_like(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """This rank's shard of a whole tensor, cut as ``like`` is; nothing is sent."""
        if not isinstance(like, DTensor) or like.shape != tensor.shape:
            return tensor
        on_device = tensor.to(like.device)
        return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that may be in shards; every rank must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor, in the same memory; the tensor itself if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_row_sharded(tensor: torch.Tensor) -> bool:
    """Whether each rank holds rows of the tensor, in the order of ranks. Otherwise each holds all of it."""
    if not isinstance(tensor, DTensor) or all(placement.is_replicate() for placement in tensor.placements):
        return False
    assert tensor.placements == (Shard(0),), tensor.placements  # ``fully_shard`` cuts in no other way
    return True


class ShardedScorer(Scorer):
    """A scorer over a sharded model. All ranks get the same calls and return the same results."""

    def __init__(
        self,
        model: nn.Module,
        *,
        sharded: Sharded,
        head: str = "lm",
        micro_tokens: int = 16384,
        autocast: bool = False,
        logits_at_once: int = 2**26,
        recompute: bool = False,
    ) -> None:
        """``sharded``: the model in shards. All other arguments are those of ``Scorer``."""
        self.sharded = sharded
        super().__init__(
            model,
            head=head,
            micro_tokens=micro_tokens,
            autocast=autocast,
            logits_at_once=logits_at_once,
            recompute=recompute,
        )

    def predict(self, inputs: ForwardInput, *, entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.sharded.run_sharded(partial(super().predict, inputs, entropy=entropy))

    def halve_batches(self, passes: Sequence[Sequences], error: BaseException) -> None:
        """Raises RankShort as well."""
        super().halve_batches(passes, error)
        raise RankShort(self.sharded.rank, self.sharded.world, self.micro_tokens) from error

    def _find_layers(self) -> None:
        with self.without_gradient():
            self.sharded.run_sharded(super()._find_layers)

    @contextmanager
    def without_gradient(self) -> Iterator[None]:
        """No gradients; afterwards FSDP frees what it kept for a backward pass."""
        with torch.no_grad():
            yield
        self.sharded.forget_passes()

    def local_batches(self, plan: Sequence[tuple[int, ...]]) -> Iterable[tuple[tuple[int, ...], bool]]:
        return ((plan[index], is_counted) for index, is_counted in self.sharded.deal_batches(len(plan)))

    def complete_logprobs(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Each result was computed on one rank and is 0 on the others. Their bits are added as integers: as
        floating-point numbers −0 + 0 would be +0."""
        bits = torch.cat([torch.zeros(0), *results]).view(torch.int32)
        joined = self.sharded.sum_over_ranks(bits).cpu().view(torch.float32)
        lengths = [len(result) for result in results]
        return [part.clone() for part in joined.split(lengths)]


class ShardedLearner(TorchLearner):
    """One policy and its optimiser, in shards."""

    def __init__(self, sharded: Sharded, **settings: Any) -> None:
        """``sharded``: the model in shards. ``settings`` are the arguments of ``TorchLearner``."""
        self.sharded = sharded
        self._most_tokens: int | None = None  # limit of a pass, once a rank had too little memory for more
        super().__init__(sharded.model, scorer=partial(ShardedScorer, sharded=sharded), **settings)

    def total_sums(self, sums: dict[str, float]) -> dict[str, float]:
        names = sorted(sums)
        values = self.sharded.sum_over_ranks(torch.tensor([sums[name] for name in names], dtype=torch.float64)).tolist()
        totals = dict(zip(names, values, strict=True))
        return {name: totals[name] for name in sums}

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
        running_sums = [*sums, [p.grad for p in self._trained.values()]]
        own_shards = [_local_shards(gradients) for gradients in running_sums]
        return self.sharded.sum_over_ranks(inner_products(own_shards, self.scorer.device))

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trained weights, each whole, one after the other; every rank must iterate over all of them."""
        return self.sharded.gather_whole(dict(super().weights()))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Whole tensors on the CPU of the first rank; the others have none."""
        whole = self.sharded.gather_whole(self.held_tensors())  # every rank iterates over all of them
        return {name: tensor.to("cpu", copy=True) for name, tensor in whole if self.sharded.rank == 0}

    def share(self) -> dict[str, torch.Tensor]:
        """This rank's rows of all tensors, on the CPU. The rows of all ranks in their order are the whole tensor; a
        tensor that is not sharded is in the first rank's share."""
        is_first = self.sharded.rank == 0
        share = {}
        for name, tensor in self.held_tensors().items():
            rows = local_shard(tensor)
            has_rows = is_row_sharded(tensor) and rows.numel() > 0
            if is_first or has_rows:
                share[name] = rows.to("cpu", copy=True)
        return share

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        super().load(state, {name: self._rank_part(name, tensor) for name, tensor in tensors.items()})
        if self._most_tokens is not None:
            self.limit(self._most_tokens)

    def limit(self, micro_tokens: int) -> None:
        """From now on no pass has more tokens, also after loading a state with a larger limit."""
        self._most_tokens = micro_tokens
        self.scorer.micro_tokens = min(self.scorer.micro_tokens, micro_tokens)

    def _rank_part(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of a saved tensor."""
        parameter = name.removeprefix(MODEL)
        if name.startswith(OPTIMIZER):
            parameter = name.removeprefix(OPTIMIZER).rpartition(":")[0]
        like = self._trained.get(parameter)
        if like is None:
            return tensor
        return self.sharded.shard_like(tensor, like)


def _local_shards(gradients: Gradients) -> Gradients:
    """This rank's share of each gradient."""
    shards: list[torch.Tensor | None] = []
    for gradient in gradients:
        shards.append(None if gradient is None else local_shard(gradient))
    return shards
