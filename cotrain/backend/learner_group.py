"""Several ranks as one process of learners: whatever is asked goes to all of them, and the first one answers.

::

    run ──ask──▶ Group ──▶ rank 0   answers
                      ├──▶ rank 1   None       the ranks speak among themselves (gloo; NCCL on GPUs)
                      └──▶ …

The group lives and dies as one. A rank that is killed, silent or fails alone leaves the others waiting for it, so all
are killed, and the run goes back to its newest checkpoint with a new group, as it does where one process held them all
(``several.py``). So it is where a rank has too little memory for a pass; the passes of the next group are smaller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from cotrain.backend.hosted import HostedPolicy, Process
from cotrain.backend.rank_host import RankHost, Refused, Share
from cotrain.backend.work import Worked
from cotrain.core.errors import ConfigError, ProcessLost, RankShort
from cotrain.disk.files import Written
from cotrain.disk.parts import Parts

GLANCE = 0.2  # seconds between looks at the other ranks while one is waited for
LOSS = 10.0  # seconds in which a lost rank shows after another one has lost its connection
CUT = ("gloo", "nccl", "connection", "tcpstore")  # words of torch's errors when a rank is gone


class Rank(Process, Protocol):
    """A process that can be looked at without waiting."""

    def done(self, reference: Any, seconds: float) -> bool:
        """Is the answer of ``send`` there, or its error, within these seconds?"""
        ...


class Ranks(Protocol):
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


def rank_of(what: str, rank: int, world: int) -> str:
    """How messages name a rank."""
    return f"{what} (rank {rank} of {world})"


class Group:
    """Implements ``hosted.Process``."""

    def __init__(
        self,
        what: str,
        launcher: Ranks,
        settings: tuple[Any, ...],
        limits: dict[str, int],
        worked: Sequence[Worked],
    ) -> None:
        """``settings``: of ``LearnerHost``; ``limits``: tokens of a pass by policy, of those for whose passes a rank
        has had too little memory, which is added to; ``worked``: of each rank, likewise. The ranks need not stand
        yet."""
        world = len(worked)
        self.what, self._deadline, self._limits, self._worked = what, launcher.deadline, limits, worked
        self._ranks: list[Rank] = [
            launcher.begin(rank_of(what, rank, world), RankHost, (rank, world, launcher.here, self._deadline))
            for rank in range(world)
        ]
        address = self._ranks[0].send("address")
        self._joining: list[Any] | None = [rank.send("join", address, dict(limits), *settings) for rank in self._ranks]

    def ask(self, method: str, *arguments: Any) -> Any:
        return self._together("call", method, *arguments)

    def send(self, method: str, *arguments: Any) -> Any:
        """Of ``weights`` alone, which another process is to fetch. Raises ProcessLost."""
        assert method == "weights"
        self._together("gather", *arguments)
        return self._ranks[0].send(method)

    def wait(self, reference: Any, method: str) -> Any:
        return self._ranks[0].wait(reference, method)

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def _together(self, method: str, *arguments: Any) -> Any:
        """The first rank's answer, when all have one."""
        return self.all(method, *arguments)[0]

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks, in their order. Errors: as ``ask``."""
        if self._joining is not None:
            references, self._joining = self._joining, None
            self._answers(references, "join")
        asked = [rank.send(method, *arguments) for rank in self._ranks]
        return self._answers(asked, str(arguments[0]) if method == "call" else method)

    def _answers(self, references: Sequence[Any], method: str) -> list[Any]:
        """Of all ranks. Where one has none, none of them is left: raises its error, or ProcessLost."""
        found: list[Any] = [None] * len(references)
        left = list(range(len(references)))
        began = time.perf_counter()
        until = time.monotonic() + self._deadline
        try:
            while left:
                for place in list(left):
                    if self._ranks[place].done(references[place], GLANCE):
                        found[place] = self._answer(place, references, left, method)
                        left.remove(place)
                        if method != "gather":  # a part of publishing
                            self._worked[place].busy += time.perf_counter() - began
                if left and time.monotonic() > until:
                    raise ProcessLost(
                        f"{self.what}: rank {left[0]} did not answer {method} within {self._deadline:g} seconds; all "
                        "were killed"
                    )
        except BaseException as error:
            if isinstance(error, RankShort):
                self._limits[error.policy] = error.micro_tokens
            self.kill()
            raise
        return found

    def _answer(self, place: int, references: Sequence[Any], left: Sequence[int], method: str) -> Any:
        """Of one rank, which is there. Raises ProcessLost also where it has only lost the others."""
        try:
            return self._ranks[place].wait(references[place], method)
        except RuntimeError as error:
            if not any(word in str(error).lower() for word in CUT):
                raise
            until = time.monotonic() + LOSS
            for other in (o for o in left if o != place):
                if self._ranks[other].done(references[other], max(0.0, until - time.monotonic())):
                    with suppress(RuntimeError):  # it has lost the others too
                        self._ranks[other].wait(references[other], method)
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ProcessLost(f"{self.what}: rank {place} has lost the others during {method}: {said}") from error


class GroupPolicy(HostedPolicy):
    """A policy of a group: each rank writes its own part of it into a checkpoint."""

    sharded = True

    def sees(self, folder: Path) -> None:
        for rank, machine in enumerate(self._ranks("sees", str(folder.absolute()))):
            if machine is not None:
                raise ConfigError(
                    f"rank {rank} on {machine} has no {folder.absolute()}, where each rank writes its part of a "
                    "checkpoint; give --out a directory that all machines see, or --world 1"
                )

    def saved(self) -> Parts:
        return _RanksParts(self._ranks, self.name, self._ranks("measure", self.name))

    def _ranks(self, method: str, *arguments: Any) -> list[Any]:
        group = self._learner()
        assert isinstance(group, Group)
        return group.all(method, *arguments)


class _RanksParts:
    """Implements ``disk.parts.Parts``."""

    def __init__(self, ranks: Callable[..., list[Any]], policy: str, shares: Sequence[Share]) -> None:
        self._ranks, self._policy = ranks, policy
        self.bytes, self.finite = sum(share.bytes for share in shares), all(share.finite for share in shares)

    def write(self, folder: Path, stem: str) -> dict[str, Written]:
        found: dict[str, Written] = {}
        for rank, told in enumerate(self._ranks("write", self._policy, str(folder.absolute()), stem)):
            if isinstance(told, Refused):
                raise OSError(told.errno, f"rank {rank}: {told.why}")
            found |= told
        return found
