"""Watching a program from outside: CPU time and memory of all its processes, and the size of its folder.

A resource limit holds for one process, and a program may have several. So the server (``program_server.py``) looks
every ``TICK_S`` seconds or less often. It reads /proc; on a system without it a program has one process, whose own
limits hold.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from cotrain.grading.sandbox.limits import FOLDER_BYTES, FOLDER_FILES

TICK_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the process table."""

    pid: int
    parent_pid: int
    cpu_s: float  # CPU time, with that of the children that it has waited for
    memory_bytes: int  # resident


def process_list(process_table: int | str = "/proc") -> list[Process]:
    """All processes; none on a system without /proc. ``process_table``: the path of /proc, or a descriptor of it."""
    processes = []
    try:
        names = os.listdir(process_table)
    except OSError:
        return []

    for name in names:
        if name.isdecimal():
            process = _read_process(process_table, name)
            if process is not None:
                processes.append(process)
    return processes


def _read_process(process_table: int | str, name: str) -> Process | None:
    """One process from its file ``stat`` (proc_pid_stat(5)); None for one that has ended."""
    try:
        if isinstance(process_table, int):
            file = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=process_table)
        else:
            file = os.open(f"{process_table}/{name}/stat", os.O_RDONLY)
        line = os.read(file, 1 << 12)
        os.close(file)
    except OSError:
        return None
    fields = line.rpartition(b")")[2].split()  # from the third on: the second, in brackets, may hold any sign
    parent_pid = int(fields[1])
    ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    resident_pages = int(fields[21])
    return Process(
        pid=int(name),
        parent_pid=parent_pid,
        cpu_s=ticks / _TICKS_PER_S,
        memory_bytes=resident_pages * _PAGE_BYTES,
    )


def descendants_of(pid: int, process_table: int | str = "/proc") -> list[Process]:
    """The children of a process, their children, and so on."""
    processes = process_list(process_table)
    descendants: list[Process] = []
    parents = {pid}
    while children := [process for process in processes if process.parent_pid in parents]:
        descendants += children
        parents = {child.pid for child in children}
    return descendants


def is_too_full(folder: Path) -> bool:
    """Whether a folder holds more than ``FOLDER_FILES`` or ``FOLDER_BYTES``."""
    files = 0
    size = 0
    unread_folders = [str(folder)]
    while unread_folders:
        try:
            with os.scandir(unread_folders.pop()) as entries:
                for entry in entries:
                    files += 1
                    with contextlib.suppress(FileNotFoundError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            unread_folders.append(entry.path)
                    if files > FOLDER_FILES or size > FOLDER_BYTES:
                        return True
        except FileNotFoundError:
            continue  # the program has removed it meanwhile
        except OSError:
            return True  # it lies deeper than a path can be long
    return False
