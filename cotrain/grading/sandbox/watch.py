"""Watching a program from outside: CPU time and memory of all its processes, and the size of its folder.

A limit holds for one process, a program may have several. So its server looks every ``TICK_S``. Reads /proc; elsewhere
than on Linux there is one process, whose own limits hold.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from cotrain.grading.sandbox.limits import FOLDER_BYTES, FOLDER_FILES

TICK_S = 0.05
_CLOCK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    spent_s: float  # CPU time, with that of the children that it has waited for
    memory: int  # bytes that are present


def process_list(at: int | str = "/proc") -> list[Process]:
    """All processes; ``at``: the directory /proc, or its descriptor. Empty where there is none."""
    processes = []
    try:
        names = os.listdir(at)
    except OSError:
        return []

    for name in names:
        if not name.isdecimal():
            continue
        try:
            path = f"{name}/stat" if isinstance(at, int) else f"{at}/{name}/stat"
            file = os.open(path, os.O_RDONLY, dir_fd=at if isinstance(at, int) else None)
            line = os.read(file, 1 << 12)
            os.close(file)
        except OSError:
            continue  # it has ended
        fields = line.rpartition(b")")[2].split()
        spent = sum(map(int, fields[11:15])) / _CLOCK
        processes.append(Process(pid=int(name), parent=int(fields[1]), spent_s=spent, memory=int(fields[21]) * _PAGE))
    return processes


def descendants_of(pid: int, at: int | str = "/proc") -> list[Process]:
    """All that a process has started, and what that has started."""
    processes = process_list(at)
    descendants: list[Process] = []
    parents = {pid}
    while new := [p for p in processes if p.parent in parents]:
        descendants += new
        parents = {p.pid for p in new}
    return descendants


def is_too_full(folder: Path) -> bool:
    """Whether a folder holds more than it may."""
    files = 0
    size = 0
    folders_left = [str(folder)]
    while folders_left:
        try:
            with os.scandir(folders_left.pop()) as entries:
                for entry in entries:
                    files += 1
                    with contextlib.suppress(FileNotFoundError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        folders_left += [entry.path] if entry.is_dir(follow_symlinks=False) else []
                    if files > FOLDER_FILES or size > FOLDER_BYTES:
                        return True
        except FileNotFoundError:
            continue  # gone meanwhile
        except OSError:
            return True  # deeper than a path can say
    return False
