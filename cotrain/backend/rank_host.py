"""One of N learner processes (ranks), each of which holds a shard of every model (``learn/sharded.py``).

All ranks are asked the same and work together; the first one answers, the others answer None. Knows no Ray.

    Meeting: the first rank opens a port, the others come to it. A rank that is lost, or fails alone, ends the group
    (``learner_group.py``): what the others wait for never comes.

Policies that follow another one are whole on every rank. Left out: groups of ranks for some of the policies.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from cotrain.backend.handles import LearnerHandle, ModelHandle, PolicySpec
from cotrain.backend.learner_host import Arrays, LearnerHost
from cotrain.backend.local import PolicyFactory
from cotrain.core.errors import RankShort
from cotrain.disk.files import FileDigest
from cotrain.disk.parts import is_finite, tensor_bytes, write_part
from cotrain.learn.sharded import Sharded, ShardedScorer
from cotrain.learn.sharded_learner import ShardedLearner
from cotrain.text.render import Rendering

HERE = "127.0.0.1"
HostPort = tuple[str, int]  # host and port of the first rank


class RankHost:
    """Rank ``rank`` of ``world``. Nothing is loaded before ``join``."""

    def __init__(self, rank: int, world: int, here: bool, patience: float) -> None:
        """``here``: all ranks are on this machine; ``patience``: seconds that a rank waits for the others."""
        self._rank, self._world, self._here = rank, world, here
        self._patience = timedelta(seconds=patience)
        self._store: dist.TCPStore | None = None
        self._weights: Arrays = {}

    def pid(self) -> int:
        return os.getpid()

    def address(self) -> HostPort:
        """Where the others find the first rank."""
        host = HERE if self._here else socket.gethostbyname(socket.gethostname())
        self._store = dist.TCPStore(
            host, 0, self._world, is_master=True, wait_for_workers=False, timeout=self._patience
        )
        return host, self._store.port

    def join(
        self,
        address: HostPort,
        limits: Mapping[str, int],
        policies: Mapping[str, PolicySpec],
        seed: int,
        device: str,
        threads: int,
    ) -> None:
        """Meet the others, then build what ``LearnerHost`` builds, and keep this rank's shards of it. ``limits``: of
        the tokens of a pass, by policy, where memory ran out before."""
        if self._here:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        host, port = address
        store = self._store or dist.TCPStore(host, port, self._world, is_master=False, timeout=self._patience)
        on_gpu = device.startswith("cuda")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", store=store, rank=self._rank, world_size=self._world, timeout=self._patience
        )
        self._host = LearnerHost(policies, seed, device, threads, ShardedPolicyFactory)
        for name, tokens in limits.items():
            handle = self._host.handles[name]
            if isinstance(handle, LearnerHandle) and isinstance(handle.learner, ShardedLearner):
                handle.learner.limit(tokens)
            elif isinstance(handle, ModelHandle):
                handle.micro_tokens = handle.most = min(handle.most, tokens)

    def call(self, method: str, *arguments: Any) -> Any:
        """What ``LearnerHost`` answers, on the first rank. Raises RankShort."""
        try:
            answer = getattr(self._host, method)(*arguments)
        except RankShort as short:
            raise RankShort(short.rank, short.world, short.micro_tokens, str(arguments[0])) from None
        return answer if self._rank == 0 else None

    def gather(self, policy: str) -> None:
        """Bring a policy's weights to the first rank, where ``weights`` fetches them."""
        self._weights = {}
        for name, tensor in self._host.handles[policy].weights():
            if self._rank == 0:
                self._weights[name] = tensor.detach().cpu().numpy()

    def weights(self) -> Arrays:
        """Those of the last ``gather``; they are let go."""
        arrays, self._weights = self._weights, {}
        return arrays

    def sees(self, folder: str) -> str | None:
        """None where this rank can see a folder; else its machine's name."""
        return None if Path(folder).is_dir() else socket.gethostname()

    def measure(self, policy: str) -> ShareSize:
        """What this rank would write of a policy."""
        tensors, _ = self._own_share(policy)
        return ShareSize(bytes=tensor_bytes(tensors), finite=is_finite(tensors))

    def write(self, policy: str, folder: str, stem: str) -> dict[str, FileDigest] | WriteFailure:
        """Write this rank's part of a policy, where it has one."""
        tensors, parts = self._own_share(policy)
        if self._rank >= parts:
            return {}
        try:
            return write_part(Path(folder), stem, tensors, part=self._rank + 1, parts=parts)
        except OSError as error:  # told, not raised: the group goes on
            return WriteFailure(errno=error.errno or 0, why=error.strerror or str(error))

    def _own_share(self, policy: str) -> tuple[Mapping[str, torch.Tensor], int]:
        """This rank's share of what is saved, and in how many parts it is."""
        handle = self._host.handles[policy]
        if isinstance(handle, LearnerHandle) and isinstance(handle.learner, ShardedLearner):
            return handle.learner.share(), self._world
        return (handle.tensors() if self._rank == 0 else {}), 1  # it is whole on every rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSize:
    """What a rank would write."""

    bytes: int
    finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailure:
    """What the disk said to a rank."""

    errno: int
    why: str


class ShardedPolicyFactory(PolicyFactory):
    """Where models are put into shards as they are built."""

    def __init__(self, policies: Mapping[str, Any], seed: int, device: str) -> None:
        super().__init__(policies, seed, device)
        self._mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
        self._sharded: dict[nn.Module, Sharded] = {}
        for base in self._bases.values():
            self._shards_of(base.module)
            base.reread_weights()

    def build_trainable(self, name: str, spec: Any, model: nn.Module, renderer: Rendering | None) -> LearnerHandle:
        sharded = self._shards_of(model.to(self.device).requires_grad_(True))
        return LearnerHandle(name, spec, renderer, model, ShardedLearner(sharded, **spec.learner_options))

    def build_adapter(self, name: str, spec: Any) -> LearnerHandle:
        model, renderer, activate, base = self.adapter_module(name, spec)
        learner = ShardedLearner(self._shards_of(model), **spec.learner_options, activate=activate)
        return LearnerHandle(name, spec, renderer, model, learner, activate=activate, base=base)

    def build_frozen(self, name: str, spec: Any) -> ModelHandle:
        handle = super().build_frozen(name, spec)
        handle.make_scorer = partial(ShardedScorer, sharded=self._shards_of(handle.model))
        return handle

    def _shards_of(self, model: nn.Module) -> Sharded:
        if model not in self._sharded:
            self._sharded[model] = Sharded(model, self._mesh)
        return self._sharded[model]
