"""Several learner processes (ranks) as one: each call goes to all of them, and rank 0 answers.

::

    run ──ask──▶ Group ──▶ rank 0   answers
                      ├──▶ rank 1   None       the ranks speak among themselves (gloo; NCCL on GPUs)
                      └──▶ …

The group lives and dies as one. A rank that is killed, silent or fails alone leaves the others waiting for it, so all
are killed, and the run goes back to its newest checkpoint with a new group, as it does where one process held them all
(``multi_process.py``). So it is where a rank has too little memory for a pass; the passes of the next group are
smaller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from cotrain.backend.hosted import HostedPolicy, Process
from cotrain.backend.process_stats import ProcessStats
from cotrain.backend.rank_host import RankHost, ShareSize, WriteFailure
from cotrain.core.errors import ConfigError, ProcessLost, RankShort
from cotrain.disk.files import FileDigest
from cotrain.disk.parts import TensorParts

GLANCE = 0.2  # seconds between looks at the other ranks while one is waited for
LOSS = 10.0  # seconds in which a lost rank shows after another one has lost its connection
CUT = ("gloo", "nccl", "connection", "tcpstore")  # words of torch's errors when a rank is gone


class Rank(Process, Protocol):
    """A process that can be looked at without waiting."""

    def is_done(self, reference: Any, seconds: float) -> bool:
        """Is the answer of ``send`` there, or its error, within these seconds?"""
        ...


class RankLauncher(Protocol):
    """Who begins processes (``several.Launcher``)."""

    @property
    def here(self) -> bool:
        """Are all processes on this machine?"""
        ...

    @property
    def deadline(self) -> float:
        """Seconds for each answer."""
        ...

    def begin(self, what: str, host: type, settings: tuple[Any, ...]) -> Any: ...


def rank_label(what: str, rank: int, world: int) -> str:
    """How messages name a rank."""
    return f"{what} (rank {rank} of {world})"


class RankGroup:
    """Implements ``hosted.Process``."""

    def __init__(
        self,
        what: str,
        launcher: RankLauncher,
        settings: tuple[Any, ...],
        limits: dict[str, int],
        worked: Sequence[ProcessStats],
    ) -> None:
        """``settings``: of ``LearnerHost``; ``limits``: tokens of a pass by policy, of those for whose passes a rank
        has had too little memory, which is added to; ``worked``: of each rank, likewise. The ranks need not stand
        yet."""
        world = len(worked)
        self.what, self._deadline, self._limits, self._worked = what, launcher.deadline, limits, worked
        self._ranks: list[Rank] = [
            launcher.begin(rank_label(what, rank, world), RankHost, (rank, world, launcher.here, self._deadline))
            for rank in range(world)
        ]
        address = self._ranks[0].send("address")
        self._joining: list[Any] | None = [rank.send("join", address, dict(limits), *settings) for rank in self._ranks]

    def ask(self, method: str, *arguments: Any) -> Any:
        return self._ask_ranks("call", method, *arguments)

    def send(self, method: str, *arguments: Any) -> Any:
        """Of ``weights`` alone, which another process is to fetch. Raises ProcessLost."""
        assert method == "weights"
        self._ask_ranks("gather", *arguments)
        return self._ranks[0].send(method)

    def wait(self, reference: Any, method: str) -> Any:
        return self._ranks[0].wait(reference, method)

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def _ask_ranks(self, method: str, *arguments: Any) -> Any:
        """The first rank's answer, when all have one."""
        return self.ask_all(method, *arguments)[0]

    def ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks, in their order. Errors: as ``ask``."""
        if self._joining is not None:
            references, self._joining = self._joining, None
            self._collect_answers(references, "join")
        pending = [rank.send(method, *arguments) for rank in self._ranks]
        return self._collect_answers(pending, str(arguments[0]) if method == "call" else method)

    def _collect_answers(self, references: Sequence[Any], method: str) -> list[Any]:
        """Of all ranks. Where one has none, none of them is left: raises its error, or ProcessLost."""
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
                        "were killed"
                    )
        except BaseException as error:
            if isinstance(error, RankShort):
                self._limits[error.policy] = error.micro_tokens
            self.kill()
            raise
        return answers

    def _rank_answer(self, place: int, references: Sequence[Any], left: Sequence[int], method: str) -> Any:
        """Of one rank, which is there. Raises ProcessLost also where it has only lost the others."""
        try:
            return self._ranks[place].wait(references[place], method)
        except RuntimeError as error:
            if not any(word in str(error).lower() for word in CUT):
                raise
            until = time.monotonic() + LOSS
            for other in (o for o in left if o != place):
                if self._ranks[other].is_done(references[other], max(0.0, until - time.monotonic())):
                    with suppress(RuntimeError):  # it has lost the others too
                        self._ranks[other].wait(references[other], method)
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ProcessLost(f"{self.what}: rank {place} has lost the others during {method}: {first_line}") from error


class RankGroupPolicy(HostedPolicy):
    """A policy of a group: each rank writes its own part of it into a checkpoint."""

    sharded = True

    def check_folder(self, folder: Path) -> None:
        for rank, machine in enumerate(self._ask_ranks("sees", str(folder.absolute()))):
            if machine is not None:
                raise ConfigError(
                    f"rank {rank} on {machine} has no {folder.absolute()}, where each rank writes its part of a "
                    "checkpoint; give --out a directory that all machines see, or --world 1"
                )

    def checkpoint_tensors(self) -> TensorParts:
        return _RankParts(self._ask_ranks, self.name, self._ask_ranks("measure", self.name))

    def _ask_ranks(self, method: str, *arguments: Any) -> list[Any]:
        group = self._learner()
        assert isinstance(group, RankGroup)
        return group.ask_all(method, *arguments)


class _RankParts:
    """Implements ``disk.parts.TensorParts``."""

    def __init__(self, ranks: Callable[..., list[Any]], policy: str, shares: Sequence[ShareSize]) -> None:
        self._ranks, self._policy = ranks, policy
        self.bytes, self.finite = sum(share.bytes for share in shares), all(share.finite for share in shares)

    def write(self, folder: Path, stem: str) -> dict[str, FileDigest]:
        written: dict[str, FileDigest] = {}
        for rank, answer in enumerate(self._ranks("write", self._policy, str(folder.absolute()), stem)):
            if isinstance(answer, WriteFailure):
                raise OSError(answer.errno, f"rank {rank}: {answer.why}")
            written |= answer
        return written
