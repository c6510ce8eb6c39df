"""Whose process asks: a key that is used by a program of another rollout is refused.

Programs of one user can read each other's environment, and with it the key of another rollout. What is sampled for such
a request would be learned as that rollout's. So the server looks once, for each connection and key, whether the
connection is held by a process that another rollout has started. Who asks from elsewhere (a container, a program on
this machine) is not looked at.

Left out: systems without ``/proc``, and agents that are functions, which share the process of the run.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from cotrain.grading.cells.watch import process_list

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def sockets_from(port: int) -> frozenset[str]:
    """The sockets whose own end has this local port, by the number that the system gives each."""
    return frozenset(_inodes_of(port))


def is_held_by(sockets: Collection[str], roots: Collection[int]) -> bool:
    """Whether one of these processes, or a descendant of theirs, holds one of these sockets."""
    return bool(sockets and roots) and any(_holds(pid, sockets) for pid in _with_descendants(roots))


def _inodes_of(port: int) -> Iterator[str]:
    """The sockets whose own end has this port."""
    end = f":{port:04X}"
    for table in TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(end) and fields[9] != "0":  # 0: nobody holds it any more
                    yield fields[9]


def _with_descendants(roots: Collection[int]) -> set[int]:
    parents = {process.pid: process.parent for process in process_list()}
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _holds(pid: int, inodes: Collection[str]) -> bool:
    sockets = {f"socket:[{inode}]" for inode in inodes}
    with suppress(OSError):  # it has ended, or is somebody else's
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                    return True
    return False
