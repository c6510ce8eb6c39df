"""Tells which rollout's program has sent a request, so that a key in the hands of another rollout's program is refused.

Programs of one user can read each other's environment, and with it the key of another rollout. The tokens of such a
request would be learned as that rollout's. So the server checks once, for each connection and key, whether a process
that another rollout has started holds the connection. A connection that no process holds any more is refused: its
program has left after sending, and nobody would read the answer. Requests from elsewhere (a container, a program that
no rollout has started) are let through.

Left out: systems without ``/proc``, and agents that are functions, which share the process of the run.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from cotrain.grading.sandbox.watch import process_list

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def can_look() -> bool:
    """Whether this system tells whose a connection is."""
    return any(table.exists() for table in TABLES)


def sockets_between(client_port: int, server_port: int) -> frozenset[str]:
    """The client's sockets of a connection, by the number that the system gives each; none where nobody holds it."""
    return frozenset(_inodes_between(client_port, server_port))


def is_held_by(sockets: Collection[str], roots: Collection[int]) -> bool:
    """Whether one of these processes, or a descendant of theirs, holds one of these sockets."""
    return bool(sockets and roots) and any(_holds(pid, sockets) for pid in _with_descendants(roots))


def _inodes_between(client_port: int, server_port: int) -> Iterator[str]:
    client_end = f":{client_port:04X}"
    server_end = f":{server_port:04X}"
    for table in TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, *_, inode = line.split()[:10]
                is_held = inode != "0"
                if is_held and local.endswith(client_end) and remote.endswith(server_end):
                    yield inode


def _with_descendants(roots: Collection[int]) -> set[int]:
    parents = {process.pid: process.parent_pid for process in process_list()}
    family = set(roots)
    generation = set(roots)
    while generation:
        generation = {pid for pid, parent in parents.items() if parent in generation} - family
        family |= generation
    return family


def _holds(pid: int, inodes: Collection[str]) -> bool:
    sockets = {f"socket:[{inode}]" for inode in inodes}
    with suppress(OSError):  # it has ended, or is somebody else's
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") in sockets:
                    return True
    return False
