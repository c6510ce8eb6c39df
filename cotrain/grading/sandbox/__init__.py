"""Sandboxes: where a program that a model wrote runs, so that it can neither harm the machine nor decide its own grade.

Four kinds, the strongest first; ``isolation.py`` finds the first that works here, by trying it.

::

    namespaces    a user of its own, or a user namespace; nothing to see but Python, no network, no way to other
                  processes
    bubblewrap    the same by the program ``bwrap``, for a user who may not make namespaces himself
    own user      root without namespaces: a user that nothing else runs as
    one process   any other user: no second process or thread, no signals, and on Linux no files (Landlock)

A sandbox is made by its server (``program_server.py``), which forks for each program an examiner and, inside of the
sandbox, the answer. Every kind has the same methods:

::

    enter()            in the server, once
    prepare_forks()    in the server, before the two forks
    confine_examiner(keep)   in the examiner: gives up what it needs no more; these descriptors stay
    shut_in(channel)   in the answer's process: gives up all but its channel
    kill_processes(examiner, answer)   in the server: kills both and all that they started, however fast that forks
    folder             where the program works, if that has to be watched; else None
    process_table      /proc, or its descriptor
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["namespaces", "bubblewrap", "own user", "one process"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Sandbox(Protocol):
    """One way to shut programs in."""

    folder: Path | None
    process_table: int | str

    def enter(self) -> None: ...
    def prepare_forks(self) -> None: ...
    def confine_examiner(self, keep: tuple[int, ...]) -> None: ...
    def shut_in(self, channel: int) -> None: ...
    def kill_processes(self, examiner: int, answer: int) -> None: ...


def sandbox_of(kind: str, memory: int, inside: str) -> Sandbox:
    """The sandbox of a kind. ``memory``: bytes of address space; ``inside``: what runs in it, ``module:function``."""
    if kind == "namespaces":
        from cotrain.grading.sandbox.namespaces import Namespaces

        return Namespaces(memory)
    if kind == "bubblewrap":
        from cotrain.grading.sandbox.bubblewrap import Bubblewrap

        return Bubblewrap(memory, inside)
    if kind == "own user":
        from cotrain.grading.sandbox.own_user import OwnUser

        return OwnUser(memory)
    from cotrain.grading.sandbox.one_process import OneProcess

    return OneProcess(memory)
