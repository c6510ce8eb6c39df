"""Several ranks as one process of learners: whatever is asked goes to all of them, and the first one answers.

::

    run ──ask──▶ RankGroup ──▶ rank 0   answers
                          ├──▶ rank 1   None       the ranks speak among themselves (gloo; NCCL on GPUs)
                          └──▶ …

Each holds its shard of all models (``learner/fsdp.py``), all do the same work together. To meet, the first rank opens
a port, and the others come to it. Policies that follow another one are whole on every rank.

The group lives and dies as one. A rank that is killed, silent or fails alone leaves the others waiting for it, so all
are killed, and the run goes back to its newest checkpoint with a new group, as it does where one process held them all
(``multi_process.py``). So it is where a rank has too little memory for a pass; the passes of the next group are
smaller.

A policy may have a group of its own, next to that of the others (``placement.py: place_learners``). Knows no Ray.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from cotrain.core.errors import ConfigError, ProcessLost, RankShort, first_line
from cotrain.distributed.contract import ProcessStats
from cotrain.distributed.local import PolicyFactory
from cotrain.distributed.placement import rank_label
from cotrain.distributed.policy_handles import LearnerHandle, LearningSpec, ModelHandle, ModelSpec, PolicySpec
from cotrain.distributed.remote_policies import Arrays, HostedPolicy, Launcher, LearnerHost, WatchedProcess
from cotrain.learner.fsdp import Sharded, ShardedLearner, ShardedScorer
from cotrain.learner.learner import TorchLearner
from cotrain.storage.file_ops import FileDigest
from cotrain.storage.tensor_files import TensorParts, is_finite, tensor_bytes, write_part

GLANCE = 0.2  # seconds between looks at the other ranks while one is waited for
LOSS = 10.0  # seconds in which a lost rank shows after another one has lost its connection
CUT = ("gloo", "nccl", "connection", "tcpstore")  # words of torch's errors when a rank is gone
HERE = "127.0.0.1"
HostPort = tuple[str, int]  # host and port of the first rank


class RankGroup:
    """Implements ``contract.Process``."""

    def __init__(
        self,
        what: str,
        launcher: Launcher,
        settings: tuple[Any, ...],
        limits: dict[str, int],
        worked: Sequence[ProcessStats],
    ) -> None:
        """``settings``: of ``LearnerHost``; ``limits``: tokens of a pass by policy, of those for whose passes a rank
        has had too little memory, which is added to; ``worked``: of each rank, likewise. The ranks need not stand
        yet."""
        world = len(worked)
        self.what = what
        self._deadline = launcher.deadline
        self._limits = limits
        self._worked = worked
        self._ranks: list[WatchedProcess] = [
            launcher.begin(rank_label(what, rank, world), RankHost, (rank, world, launcher.here, self._deadline))
            for rank in range(world)
        ]
        address = self._ranks[0].send("address")
        self._joining: list[Any] | None = [rank.send("join", address, dict(limits), *settings) for rank in self._ranks]

    def ask(self, method: str, *arguments: Any) -> Any:
        """The first rank's answer, when all have one."""
        return self.ask_all("call", method, *arguments)[0]

    def send(self, method: str, *arguments: Any) -> Any:
        """A reference to the weights alone, for another process to fetch. Raises ProcessLost."""
        assert method == "weights_to_publish"
        self.ask_all("gather", *arguments)
        return self._ranks[0].send(method)

    def wait(self, reference: Any, method: str) -> Any:
        return self._ranks[0].wait(reference, method)

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks, in their order. Errors: as ``ask``."""
        if self._joining is not None:
            references = self._joining
            self._joining = None
            self._collect_answers(references, "join")
        pending = [rank.send(method, *arguments) for rank in self._ranks]
        return self._collect_answers(pending, str(arguments[0]) if method == "call" else method)

    def _collect_answers(self, references: Sequence[Any], method: str) -> list[Any]:
        """The answers of all ranks. Where one has none, none of them is left: raises its error, or ProcessLost."""
        answers: list[Any] = [None] * len(references)
        left = list(range(len(references)))
        began = time.perf_counter()
        deadline = time.monotonic() + self._deadline
        try:
            while left:
                for place in list(left):
                    if self._ranks[place].is_done(references[place], GLANCE):
                        answers[place] = self._rank_answer(place, references, left, method)
                        left.remove(place)
                        if method != "gather":  # a part of publishing
                            self._worked[place].busy += time.perf_counter() - began
                if left and time.monotonic() > deadline:
                    raise ProcessLost(
                        f"{self.what}: rank {left[0]} did not answer {method} within {self._deadline:g} seconds; all "
                        "were killed",
                        code="E_RANK_SILENT",
                    )
        except BaseException as error:
            if isinstance(error, RankShort):
                self._limits[error.policy] = error.micro_tokens
            self.kill()
            raise
        return answers

    def _rank_answer(self, place: int, references: Sequence[Any], left: Sequence[int], method: str) -> Any:
        """The answer of one rank that is there. Raises ProcessLost also where it has only lost the others."""
        try:
            return self._ranks[place].wait(references[place], method)
        except RuntimeError as error:
            if not any(word in str(error).lower() for word in CUT):
                raise
            until = time.monotonic() + LOSS
            others = [other for other in left if other != place]
            for other in others:
                if self._ranks[other].is_done(references[other], max(0.0, until - time.monotonic())):
                    with suppress(RuntimeError):  # it has lost the others too
                        self._ranks[other].wait(references[other], method)
            why = first_line(error)
            raise ProcessLost(
                f"{self.what}: rank {place} has lost the others during {method}: {why}", code="E_RANK_LOST"
            ) from error


class RankGroupPolicy(HostedPolicy):
    """A policy of a group: each rank writes its own part of it into a checkpoint."""

    sharded = True

    def check_folder(self, folder: Path) -> None:
        for rank, machine in enumerate(self._ask_ranks("sees", str(folder.absolute()))):
            if machine is not None:
                raise ConfigError(
                    f"rank {rank} on {machine} has no {folder.absolute()}, where each rank writes its part of a "
                    "checkpoint; give --out a directory that all machines see, or --world 1",
                    code="E_CHECKPOINT_FOLDER_UNSEEN",
                )

    def checkpoint_tensors(self) -> TensorParts:
        return _RankParts(self._ask_ranks, self.name, self._ask_ranks("measure", self.name))

    def _ask_ranks(self, method: str, *arguments: Any) -> list[Any]:
        group = self._learners()
        assert isinstance(group, RankGroup)
        return group.ask_all(method, *arguments)


class _RankParts:
    """Implements ``disk.parts.Parts``."""

    def __init__(self, ranks: Callable[..., list[Any]], policy: str, shares: Sequence[ShareSize]) -> None:
        self._ranks = ranks
        self._policy = policy
        self.bytes = sum(share.bytes for share in shares)
        self.finite = all(share.finite for share in shares)

    def write(self, folder: Path, stem: str) -> dict[str, FileDigest]:
        written: dict[str, FileDigest] = {}
        for rank, answer in enumerate(self._ranks("write", self._policy, str(folder.absolute()), stem)):
            if isinstance(answer, WriteFailure):
                raise OSError(answer.errno, f"rank {rank}: {answer.why}")
            written |= answer
        return written


# -- the ranks' side


def open_store(world: int, patience: timedelta, *, here: bool) -> tuple[dist.TCPStore, HostPort]:
    """Open the store in which ``world`` ranks meet; the first rank does so. Returns the store and its address.
    ``here``: all of them are on this machine."""
    host = HERE if here else socket.gethostbyname(socket.gethostname())
    store = dist.TCPStore(host, 0, world, is_master=True, wait_for_workers=False, timeout=patience)
    return store, (host, store.port)


def meet_ranks(
    at: dist.TCPStore | HostPort, rank: int, world: int, patience: timedelta, *, here: bool, on_gpu: bool
) -> None:
    """Join the group of all ranks, by gloo, or NCCL on GPUs. ``at``: the store of the first rank, or where it is."""
    if here:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore(*at, world, is_master=False, timeout=patience) if isinstance(at, tuple) else at
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=world, timeout=patience)


class RankHost:
    """Rank ``rank`` of ``world``. Nothing is loaded before ``join``."""

    def __init__(self, rank: int, world: int, here: bool, patience: float) -> None:
        """``here``: all ranks are on this machine; ``patience``: seconds that a rank waits for the others."""
        self._rank = rank
        self._world = world
        self._here = here
        self._patience = timedelta(seconds=patience)
        self._store: dist.TCPStore | None = None
        self._weights: Arrays = {}

    def address(self) -> HostPort:
        """The address at which the others find the first rank."""
        self._store, address = open_store(self._world, self._patience, here=self._here)
        return address

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
        on_gpu = device.startswith("cuda")
        meet_ranks(self._store or address, self._rank, self._world, self._patience, here=self._here, on_gpu=on_gpu)
        device = "cuda" if on_gpu else device  # each rank has GPUs of its own, counted from 0
        self._host = LearnerHost(policies, seed, device, threads, ShardedPolicyFactory)
        for name, tokens in limits.items():
            if name not in policies:
                continue  # another group holds it
            handle = self._host.handles[name]
            if isinstance(handle, LearnerHandle) and isinstance(handle.learner, ShardedLearner):
                handle.learner.limit(tokens)
            elif isinstance(handle, ModelHandle):
                handle.micro_tokens = handle.most = min(handle.most, tokens)

    def call(self, method: str, *arguments: Any) -> Any:
        """The answer of ``LearnerHost``, on the first rank. Raises RankShort."""
        try:
            answer = getattr(self._host, method)(*arguments)
        except RankShort as short:
            raise RankShort(short.rank, short.world, short.micro_tokens, str(arguments[0])) from None
        return answer if self._rank == 0 else None

    def gather(self, policy: str) -> None:
        """Bring a policy's weights to the first rank, where ``weights_to_publish`` fetches them."""
        self._weights = {}
        for name, tensor in self._host.handles[policy].weights():
            if self._rank == 0:
                self._weights[name] = tensor.detach().cpu().numpy()

    def weights_to_publish(self) -> Arrays:
        """The tensors of the last ``gather``, which are forgotten."""
        arrays = self._weights
        self._weights = {}
        return arrays

    def sees(self, folder: str) -> str | None:
        """None where this rank can see a folder; else its machine's name."""
        return None if Path(folder).is_dir() else socket.gethostname()

    def measure(self, policy: str) -> ShareSize:
        """The size of this rank's share of a policy."""
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
    """The size of a rank's share, and whether all of it is finite."""

    bytes: int
    finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailure:
    """The error of the disk when a rank wrote its share."""

    errno: int
    why: str


class ShardedPolicyFactory(PolicyFactory):
    """A factory that puts models into shards as they are built."""

    def __init__(self, policies: Mapping[str, PolicySpec], seed: int, device: str) -> None:
        for field, why in (("offload", "shards stay on their devices"), ("load_in_4bit", "4 bits have no shards")):
            if any(getattr(spec, field, False) for spec in policies.values()):
                raise ConfigError(
                    f"{field}=true goes with --world 1: {why} of ranks; leave it out", code="E_ONE_RANK_ALONE"
                )
        super().__init__(policies, seed, device)
        self._mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
        self._sharded: dict[nn.Module, Sharded] = {}
        for base in self._bases.values():
            self._shards_of(base.module)
            base.reread_weights()

    def make_learner(
        self, model: nn.Module, spec: LearningSpec, activate: Callable[[], object] | None = None
    ) -> TorchLearner:
        return ShardedLearner(self._shards_of(model), **spec.learner_options, activate=activate)

    def build_frozen(self, name: str, spec: ModelSpec) -> ModelHandle:
        handle = super().build_frozen(name, spec)
        handle.make_scorer = partial(ShardedScorer, sharded=self._shards_of(handle.model))
        return handle

    def _shards_of(self, model: nn.Module) -> Sharded:
        if model not in self._sharded:
            self._sharded[model] = Sharded(model, self._mesh)
        return self._sharded[model]
