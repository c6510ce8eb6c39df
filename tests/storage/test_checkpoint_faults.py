"""A save that fails at its n-th file operation, for every n, in every way: a valid checkpoint is there afterwards."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_files import CHANGES, KILLED, FaultyFiles, InParts, in_child

from cotrain.core.errors import StateError
from cotrain.storage.checkpoints import latest_checkpoint, save_checkpoint
from cotrain.storage.file_ops import DiskError
from tests.sentences import refuses

RAISED = ["ENOSPC", "EIO", "EACCES", "EROFS", "disk full"]
WRITES = ["short write", "lying write"]


def content(step: int, edition: int = 0) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, dict[str, int]]]:
    value = torch.full((5,), float(10 * step + edition))
    return {"a": {"w": value}, "b": {"w": -value}}, {"loop": {"step": step, "edition": edition}}


def state(directory: Path) -> tuple[int, int] | None:
    """(step, edition) of the newest checkpoint, after checking that its parts belong together."""
    found = latest_checkpoint(directory)
    if found is None:
        return None
    tensors, documents = found.load()
    step, edition = documents["loop"]["step"], documents["loop"]["edition"]
    expected, _ = content(step, edition)
    assert step == found.step and all(torch.equal(tensors[f]["w"], expected[f]["w"]) for f in "ab")
    return step, edition


class Scene:
    """A directory with checkpoints of some steps, in which one more save is made under a fault. ``parts``: how many
    processes would write it."""

    def __init__(
        self, root: Path, before: list[int], step: int, edition: int = 0, keep: int = 2, parts: int = 1
    ) -> None:
        self.template, self.directory = root / "template", root / "now"
        self.step, self.edition, self.keep, self.parts = step, edition, keep, parts
        self.template.mkdir()
        for old in before:
            save_checkpoint(self.template, old, *content(old), files=FaultyFiles(), keep=keep)
        (self.template / ".staging-step-000001").mkdir()
        (self.template / ".staging-step-000001/a.safetensors").write_bytes(b"half")
        self.old = state(self.template)
        self.new = (step, edition)

    def reset(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.template, self.directory)

    def attempt(self, files: FaultyFiles) -> None:
        tensors, documents = content(self.step, self.edition)
        split = tensors if self.parts == 1 else {n: InParts(t, self.parts, files) for n, t in tensors.items()}
        save_checkpoint(self.directory, self.step, split, documents, keep=self.keep, files=files)

    def operations(self) -> list[str]:
        self.reset()
        files = FaultyFiles()
        self.attempt(files)
        return files.log

    def goes_on(self) -> None:
        """The next save works, and nothing but the right number of checkpoints is left."""
        after = state(self.directory)
        save_checkpoint(self.directory, 9, *content(9), keep=self.keep, files=FaultyFiles())
        assert state(self.directory) == (9, 0)
        left = sorted(path.name for path in self.directory.iterdir())
        older = [f"step-{after[0]:06d}"] if after and self.keep > 1 else []
        assert left == [*older, "step-000009"]


SCENES: dict[str, dict[str, Any]] = {
    "first": {"before": [], "step": 1},
    "usual": {"before": [1, 2], "step": 3},
    "again": {"before": [1, 2], "step": 2, "edition": 1, "keep": 1},  # the only one is replaced by one of its step
    "rewound": {"before": [5, 7], "step": 6},
    "in parts": {"before": [1, 2], "step": 3, "parts": 3},
    "in parts again": {"before": [1, 2], "step": 2, "edition": 1, "keep": 1, "parts": 2},
}


USUAL = ("usual", "in parts")


@pytest.fixture(params=[*USUAL, *(pytest.param(name, marks=pytest.mark.whole) for name in SCENES if name not in USUAL)])
def scene(request: pytest.FixtureRequest, memory_path: Path) -> Scene:
    return Scene(memory_path, **SCENES[request.param])


@pytest.mark.whole
def test_killed_at_every_operation(scene: Scene) -> None:
    for at, operation in enumerate(scene.operations()):
        if operation not in CHANGES:
            continue
        scene.reset()
        code = in_child(partial(scene.attempt, FaultyFiles("kill", at)))
        assert code == KILLED, at
        assert state(scene.directory) in (scene.old, scene.new), at
        scene.goes_on()


@pytest.mark.whole
@pytest.mark.parametrize("fault", RAISED)
def test_an_error_at_every_operation(scene: Scene, fault: str) -> None:
    for at, operation in enumerate(scene.operations()):
        scene.reset()
        try:
            scene.attempt(FaultyFiles(fault, at))
        except DiskError as error:
            assert error.full is (fault in ("ENOSPC", "disk full")) or error.code == "E_CHECKPOINT_NOT_READ_BACK", (
                at,
                operation,
            )
            assert len(str(error).splitlines()) == 1 and "again" in str(error)
            assert state(scene.directory) in (scene.old, scene.new), (at, operation)
        else:  # it struck where nothing depends on it: retention, or looking at old ones
            assert state(scene.directory) == scene.new, (at, operation)
        scene.goes_on()


@pytest.mark.whole
@pytest.mark.parametrize("fault", WRITES)
def test_a_write_cut_short_at_every_write(scene: Scene, fault: str) -> None:
    for at, operation in enumerate(scene.operations()):
        if operation != "write":
            continue
        scene.reset()
        if fault == "short write":
            scene.attempt(FaultyFiles(fault, at))
            assert state(scene.directory) == scene.new
        else:
            with refuses("E_CHECKPOINT_NOT_READ_BACK"):
                scene.attempt(FaultyFiles(fault, at))
            assert state(scene.directory) == scene.old
        scene.goes_on()


@pytest.mark.whole
def test_every_size_of_a_filling_disk(memory_path: Path) -> None:
    scene = Scene(memory_path, before=[1, 2], step=3)

    class Small(FaultyFiles):
        room = 0

        def write(self, file, block):
            taken = super().write(file, block[: min(len(block), self.room)]) if self.room else 0
            self.room -= taken
            return taken

    outcomes = set()
    for percent in range(101):
        scene.reset()
        files = Small()
        files.room = 12 * percent
        try:
            scene.attempt(files)
        except DiskError as error:
            assert error.full and error.code == "E_DISK_REFUSED" and "step-000002 is intact" in str(error)
        outcomes.add(state(scene.directory))
        assert not list(scene.directory.glob(".staging*"))  # what was written of the new one was given back
    assert outcomes == {(2, 0), (3, 0)}


def test_a_passing_read_error_is_not_taken_for_an_empty_directory(tmp_path: Path) -> None:
    scene = Scene(tmp_path, before=[1, 2], step=3)
    counted = FaultyFiles()
    latest_checkpoint(scene.template, files=counted)
    for at, operation in enumerate(counted.log):
        try:
            found = latest_checkpoint(scene.template, files=FaultyFiles("EIO", at))
        except (DiskError, StateError):
            assert operation == "listdir"
        else:
            assert found is not None
            assert found.step == 2 or [damage.path.name for damage in found.newer_damaged] == ["step-000002"]
