"""A file layer that fails at the n-th operation, and what the tests of this folder share."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from cotrain.storage.file_ops import FileDigest, Files
from cotrain.storage.tensor_files import write_part

KILLED = 137
CHANGES = ("open w", "write", "truncate", "rename", "mkdir", "remove")  # a kill before any other is one before these


class FaultyFiles(Files):
    """Does the real thing, except at operation ``at`` (counted from 0; never, if None). ``fault`` is

    "kill"          the process ends before the operation, or half way through a write or the removal of a folder
    "short write"   a write takes half of what it is given and says so; other operations are spared
    "lying write"   a write takes half and claims all; other operations are spared
    "disk full"     this and every later operation that needs room fails with ENOSPC, after half of a write
    a name of errno the operation fails with it, after half of a write, and the next one works
    """

    def __init__(self, fault: str = "", at: int | None = None) -> None:
        self.fault, self.at = fault, at
        self.count = 0
        self.log: list[str] = []

    def _due(self, operation: str) -> bool:
        self.log.append(operation)
        self.count += 1
        if self.at is None:
            return False
        if self.fault == "disk full":
            return self.count > self.at and operation in ("open w", "write", "mkdir")
        return self.count == self.at + 1

    def _before(self, operation: str) -> None:
        if self._due(operation) and "write" not in self.fault:
            self._fail()

    def _fail(self) -> None:
        if self.fault == "kill":
            os._exit(KILLED)
        code = errno.ENOSPC if self.fault == "disk full" else getattr(errno, self.fault)
        raise OSError(code, os.strerror(code))

    def open(self, path: Path, mode: str) -> FileIO:
        self._before("open r" if mode == "rb" else "open w")
        return super().open(path, mode)

    def close(self, file: FileIO) -> None:
        file.close()
        self._before("close")

    def write(self, file: FileIO, block: bytes | memoryview) -> int:
        if not self._due("write"):
            return super().write(file, block)
        taken = super().write(file, block[: len(block) // 2])
        if self.fault == "short write":
            return taken
        if self.fault == "lying write":
            return len(block)
        self._fail()
        return taken

    def read(self, file: FileIO, size: int) -> bytes:
        self._before("read")
        return super().read(file, size)

    def truncate(self, file: FileIO, size: int) -> None:
        self._before("truncate")
        super().truncate(file, size)

    def fsync(self, file: FileIO) -> None:
        self._before("fsync")  # a kill needs no real one, and the tests are many

    def sync_directory(self, path: Path) -> None:
        self._before("sync directory")

    def rename(self, old: Path, new: Path) -> None:
        self._before("rename")
        super().rename(old, new)

    def mkdir(self, path: Path) -> None:
        self._before("mkdir")
        super().mkdir(path)

    def listdir(self, path: Path) -> list[str]:
        self._before("listdir")
        return super().listdir(path)

    def remove(self, path: Path) -> None:
        if self.fault == "kill" and self.count == self.at and path.is_dir():
            for file in sorted(path.iterdir())[::2]:
                file.unlink()
        self._before("remove")
        super().remove(path)


class InParts:
    """Tensors in parts, as several processes write them; here one after the other. Implements ``TensorParts``."""

    finite = True

    def __init__(self, tensors: dict[str, torch.Tensor], parts: int, files: Files, *, but: int = 0) -> None:
        """``but``: a part that is not written."""
        self.shares = [self.share(tensors, part, parts) for part in range(parts)]
        self.bytes, self.files, self.but = sum(t.nbytes for t in tensors.values()), files, but

    @staticmethod
    def share(tensors: dict[str, torch.Tensor], part: int, parts: int) -> dict[str, torch.Tensor]:
        found = {}
        for name, tensor in tensors.items():
            rows = tensor.chunk(parts) if tensor.dim() else (tensor,)  # fewer than ``parts`` where it has fewer rows
            if part < len(rows) and (part == 0 or len(rows[part])):
                found[name] = rows[part]
        return found

    def write(self, folder: Path, stem: str) -> dict[str, FileDigest]:
        listed: dict[str, FileDigest] = {}
        for n, share in enumerate(self.shares, 1):
            if n != self.but:
                listed |= write_part(folder, stem, share, part=n, parts=len(self.shares), files=self.files)
        return listed


def in_child(work: Callable[[], Any], kill_after: float | None = None) -> int:
    """Run ``work`` in a forked process, kill -9 it after some seconds if asked, and return its exit code (0: done)."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
