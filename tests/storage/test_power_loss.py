"""Power cuts: whatever part of the unsynced writes and renames reached the disk, a checkpoint that verifies is right.

A model of what POSIX promises: the bytes of a file are safe after its fsync, the names in a directory after that of
the directory; before, any subset may be there, and a file may hold a part of its bytes, or zeros.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
import torch

from cotrain.storage.checkpoints import Checkpoint, latest_checkpoint, save_checkpoint, verify_checkpoint
from cotrain.storage.file_ops import Files
from tests.storage.fault_files import InParts


@dataclass
class File:
    safe: bytes = b""
    seen: bytes = b""


@dataclass
class Folder:
    safe: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)  # each happens whole or not at all

    def seen(self) -> dict[str, File | Folder]:
        return applied(self.safe, self.pending)


def applied(safe: dict[str, File | Folder], changes: list[dict[str, File | Folder | None]]) -> dict[str, File | Folder]:
    merged: dict[str, File | Folder | None] = dict(safe)
    for change in changes:
        merged.update(change)
    return {name: node for name, node in merged.items() if node is not None}


class Recorder(Files):
    """Does the real thing and writes down what would have to reach the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: list[tuple[Any, ...]] = []

    def open(self, path: Path, mode: str) -> FileIO:
        if mode == "wb":
            self.log.append(("create", path.relative_to(self.root)))
        return super().open(path, mode)

    def write(self, file: FileIO, block: bytes | memoryview) -> int:
        half = block[: max(1, len(block) // 2)]
        self.log.append(("write", Path(str(file.name)).relative_to(self.root), bytes(half)))
        return super().write(file, half)

    def fsync(self, file: FileIO) -> None:
        self.log.append(("fsync", Path(str(file.name)).relative_to(self.root)))

    def sync_directory(self, path: Path) -> None:
        self.log.append(("sync", path.relative_to(self.root)))

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent
        self.log.append(("rename", old.relative_to(self.root), new.name))
        super().rename(old, new)

    def mkdir(self, path: Path) -> None:
        if not path.exists():
            self.log.append(("mkdir", path.relative_to(self.root)))
        super().mkdir(path)

    def remove(self, path: Path) -> None:
        self.log.append(("remove", path.relative_to(self.root)))
        super().remove(path)


def folder_at(root: Folder, path: Path) -> Folder:
    for part in path.parts:
        node = root.seen()[part]
        assert isinstance(node, Folder)
        root = node
    return root


def happen(root: Folder, event: tuple[Any, ...]) -> None:
    kind, path = event[0], event[1]
    if kind == "sync":
        folder = folder_at(root, path)
        folder.safe, folder.pending = folder.seen(), []
        return
    parent = folder_at(root, path.parent)
    node = parent.seen().get(path.name)
    if kind in ("create", "mkdir"):
        parent.pending.append({path.name: File() if kind == "create" else Folder()})
    elif kind == "rename":
        parent.pending.append({path.name: None, event[2]: node})
    elif kind == "remove":
        if isinstance(node, Folder):
            node.pending.extend({name: None} for name in node.seen())
        parent.pending.append({path.name: None})
    else:
        assert isinstance(node, File)
        if kind == "write":
            node.seen += event[2]
        else:
            node.safe = node.seen


def cut(node: File | Folder, path: Path, draw: random.Random) -> None:
    """Lay down one of the states that a power cut may leave."""
    if isinstance(node, Folder):
        path.mkdir()
        chance = draw.choice([0.0, 0.5, 0.9, 1.0])
        for name, child in applied(node.safe, [c for c in node.pending if draw.random() < chance]).items():
            cut(child, path / name, draw)
        return
    at = draw.randrange(len(node.seen) + 1)
    zeros = bytes(len(node.seen) - at)
    unsynced = [node.safe, node.seen, node.seen[:at], node.seen[:at] + zeros]
    path.write_bytes(node.seen if node.safe == node.seen else draw.choice(unsynced))


@pytest.mark.whole
@pytest.mark.parametrize("parts", [1, 2])
def test_what_verifies_after_a_power_cut_is_what_was_saved(memory_path: Path, parts: int) -> None:
    assert power_cuts(memory_path, each=4 if parts == 1 else 2, parts=parts) > 250 * (3 - parts)


def power_cuts(memory_path: Path, *, each: int, parts: int = 1) -> int:
    """After every file operation of six saves, ``each`` of the states that a power cut may leave; how many there
    were. ``parts``: of the tensors."""
    recorder = Recorder(memory_path)
    saved: list[tuple[int, int]] = []
    plan = [(1, 0), (2, 0), (3, 0), (3, 1), (2, 2), (4, 0)]  # again in place, then back, then on
    for step, edition in plan:
        group = {"w": torch.full((4,), float(10 * step + edition))}
        tensors = {"a": group if parts == 1 else InParts(group, parts, recorder)}
        save_checkpoint(memory_path / "checkpoints", step, tensors, {"loop": {"edition": edition}}, files=recorder)
        saved.append((step, edition))
        recorder.log.append(("done",))
    draw, root, done, states = random.Random(0), Folder(), 0, 0
    for event in recorder.log:
        if event[0] == "done":
            done += 1
        else:
            happen(root, event)
        allowed = {None if done == 0 else plan[done - 1]} | set(plan[done : done + 1])
        for _ in range(each):
            states += 1
            disk = memory_path / f"disk-{states}"
            cut(root, disk, draw)
            found = latest_checkpoint(disk / "checkpoints")
            for path in (disk / "checkpoints").glob("step-*"):  # one being deleted never looks damaged
                assert isinstance(verify_checkpoint(path), Checkpoint), (event, path.name)
            if found is None:
                assert None in allowed, event
                continue
            tensors, documents = found.load()
            edition = documents["loop"]["edition"]
            assert (found.step, edition) in allowed, (event, found.path.name)
            assert torch.equal(tensors["a"]["w"], torch.full((4,), float(10 * found.step + edition)))
            shutil.rmtree(disk)
    return states
