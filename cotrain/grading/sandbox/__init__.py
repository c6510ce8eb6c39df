"""Sandboxes: where a program that a model wrote runs, so that it can neither harm the machine nor decide its own grade.

Four kinds, the strongest first; ``isolation.py`` finds the first that works here, by trying it.

::

    namespaces    a user of its own, or a user namespace; nothing to see but Python, no network, no way to other
                  processes
    bubblewrap    the same by the program ``bwrap``, for a user who may not make namespaces himself
    own user      root without namespaces: a user that nothing else runs as
    one process   any other user: no second process or thread, no signals, and on Linux no files (Landlock)

A sandbox is made by its server (``program_server.py``), which forks for each program an examiner and, inside of the
sandbox, the answer. The methods of ``Sandbox`` run in these three processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["namespaces", "bubblewrap", "own user", "one process"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Sandbox(Protocol):
    """One way to shut programs in. Every method raises OSError where the machine does not allow it."""

    folder: Path | None  # where the program works; None where the kernel limits its size, so that nobody has to watch
    process_table: int | str  # the path of /proc, or a descriptor of it

    def enter(self) -> None:
        """In the server, once."""

    def prepare_forks(self) -> None:
        """In the server, before it forks examiner and answer."""

    def confine_examiner(self, keep: tuple[int, ...]) -> None:
        """In the examiner: give up all that it needs no more, of descriptors all but ``keep``."""

    def shut_in(self, channel_fd: int) -> None:
        """In the answer's process: give up all but the channel."""

    def kill_processes(self, examiner_pid: int, answer_pid: int) -> None:
        """In the server: kill both and all that they started, also what goes on forking."""


def sandbox_of(kind: str, memory_bytes: int, runner: str) -> Sandbox:
    """The sandbox of a kind.

    Args:
        memory_bytes: address space of a program.
        runner: MODULE:FUNCTION that runs in the sandbox; only bubblewrap, which starts a Python of its own, needs it.
    """
    if kind == "namespaces":
        from cotrain.grading.sandbox.namespaces import Namespaces

        return Namespaces(memory_bytes)
    if kind == "bubblewrap":
        from cotrain.grading.sandbox.bubblewrap import Bubblewrap

        return Bubblewrap(memory_bytes, runner)
    if kind == "own user":
        from cotrain.grading.sandbox.own_user import OwnUser

        return OwnUser(memory_bytes)
    from cotrain.grading.sandbox.one_process import OneProcess

    return OneProcess(memory_bytes)
