"""Checkpoints: what goes in comes out, retention, fallback, and that no altered byte goes unnoticed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cotrain.storage.checkpoints import (
    Checkpoint,
    Damage,
    discard_after,
    latest_checkpoint,
    save_checkpoint,
    step_name,
    verify_checkpoint,
)
from cotrain.storage.file_ops import DiskError, Files
from tests.sentences import refuses

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def small(step: int) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    made = torch.Generator().manual_seed(step)
    tensors = {
        "generator": {"w": torch.randn(3, 4, generator=made), "b": torch.randn(4, generator=made)},
        "verifier.optimiser": {"w/exp_avg": torch.randn(3, 4, generator=made), "step": torch.tensor(float(step))},
    }
    return tensors, {"loop": {"step": step, "ema": [0.1, None, True], "name": "a\ud800é"}}


def same(found: Checkpoint | None, step: int) -> bool:
    if found is None or found.step != step:
        return False
    tensors, documents = found.load()
    expected, expected_documents = small(step)
    return documents == expected_documents and all(
        torch.equal(tensors[file][name], tensor) for file in expected for name, tensor in expected[file].items()
    )


def test_some_of_the_tensors_can_be_read_alone(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 3, *small(3))
    found = latest_checkpoint(tmp_path)
    assert found is not None
    tensors, documents = found.load(only=["generator"])
    assert list(tensors) == ["generator"] and documents == small(3)[1]
    assert torch.equal(tensors["generator"]["w"], small(3)[0]["generator"]["w"])
    (path / "verifier.optimiser.safetensors").write_bytes(b"changed since")
    assert found.load(only=["generator"])[0].keys() == {"generator"}  # what is not wanted is not read
    assert found.load(only=[])[0] == {}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_every_type_and_layout_of_tensor_comes_back_bit_for_bit(tmp_path: Path) -> None:
    base = torch.arange(24).reshape(4, 6)
    group = {str(dtype): (base - 7).to(dtype) for dtype in DTYPES}
    group |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "transposed": base.t(),
        "tied": base,
        "row": base[1],
    }
    group["grad"] = torch.nn.Parameter(torch.tensor([float("nan"), -0.0, float("inf")]))
    path = save_checkpoint(tmp_path, 7, {"all": group, "none": {}}, {})
    assert path == tmp_path / "step-000007"
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.path == path and found.newer_damaged == ()
    tensors, documents = found.load()
    assert documents == {} and tensors["none"] == {} and tensors["all"].keys() == group.keys()
    for name, tensor in group.items():
        back = tensors["all"][name]
        assert back.dtype == tensor.dtype and back.shape == tensor.shape, name
        assert (
            back.numpy(force=True).tobytes() == tensor.contiguous().numpy(force=True).tobytes()
            if (tensor.dtype != torch.bfloat16)
            else torch.equal(back, tensor)
        ), name


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    for run in "ab":
        save_checkpoint(tmp_path / run, 3, *small(3))
    for file in (tmp_path / "a/step-000003").iterdir():
        assert file.read_bytes() == (tmp_path / "b/step-000003" / file.name).read_bytes()


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-12").mkdir()  # not a name that we give
    assert latest_checkpoint(tmp_path) is None


def test_retention_keeps_verified_ones_and_lists_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for junk in (".staging-step-000001", ".trash-step-000009"):
        (tmp_path / junk / "deep").mkdir(parents=True)
    for step in (1, 5, 9):
        save_checkpoint(tmp_path, step, *small(step), keep=2)
    assert names(tmp_path) == ["notes.txt", "step-000005", "step-000009"]
    save_checkpoint(tmp_path, 10, *small(10), keep=1)
    assert names(tmp_path) == ["notes.txt", "step-000010"]


def test_a_damaged_one_does_not_count_towards_keep(tmp_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(tmp_path, step, *small(step), keep=2)
    (tmp_path / "step-000002/loop.json").write_text("{}")
    save_checkpoint(tmp_path, 3, *small(3), keep=2)
    assert names(tmp_path) == ["step-000001", "step-000002", "step-000003"]
    save_checkpoint(tmp_path, 4, *small(4), keep=2)
    assert names(tmp_path) == ["step-000003", "step-000004"]


def test_falls_back_and_says_so(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, *small(step), keep=3)
    (tmp_path / "step-000003/manifest.json").unlink()
    (tmp_path / "step-000002/generator.safetensors").unlink()
    found = latest_checkpoint(tmp_path)
    assert found is not None and same(found, 1)
    assert [(d.path.name, d.reason) for d in found.newer_damaged] == [
        ("step-000003", "no manifest.json"),
        ("step-000002", "generator.safetensors is missing"),
    ]
    save_checkpoint(
        tmp_path, 2, *small(2), keep=2
    )  # the run goes on from 1: 2 is made anew, 3 is a future that was given up
    assert names(tmp_path) == ["step-000001", "step-000002"] and same(latest_checkpoint(tmp_path), 2)


def test_none_intact_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, *small(1))
    (tmp_path / "step-000001/loop.json").write_bytes(b"")
    with refuses("E_NO_INTACT_CHECKPOINT", names="000001"):
        latest_checkpoint(tmp_path)
    save_checkpoint(tmp_path, 1, *small(1))
    assert same(latest_checkpoint(tmp_path), 1) and names(tmp_path) == ["step-000001"]


def test_going_back_on_purpose(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, *small(step), keep=3)
    (tmp_path / ".trash-step-000003" / "left").mkdir(parents=True)  # by a deletion that was killed, then saved again
    assert discard_after(tmp_path, 1) == 2 and names(tmp_path) == ["step-000001"]
    assert discard_after(tmp_path, 1) == 0 and discard_after(tmp_path / "absent", 1) == 0


def test_load_refuses_what_changed_since_it_was_found(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, *small(1))
    found = latest_checkpoint(tmp_path)
    assert found is not None
    file = found.path / "generator.safetensors"
    payload = bytearray(file.read_bytes())
    payload[-1] ^= 1
    file.write_bytes(payload)
    with refuses("E_CHECKPOINT_CHANGED", names="generator.safetensors"):
        found.load()
    file.unlink()
    with refuses("E_CHECKPOINT_UNREADABLE"):
        found.load()


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "manifest", "a b", "a\n"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with refuses("E_CHECKPOINT_NAME"):
        save_checkpoint(tmp_path, 1, {}, {name: {}})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"a": [0.0, float("nan")]}, "E_STATE_NOT_JSON: document 'loop'.a[1] | nan"),
        ({"a": {3: 1}}, "E_STATE_NOT_JSON: document 'loop'.a | key 3"),
        ({"a": {1, 2}}, "E_STATE_NOT_JSON: document 'loop'.a | set"),
        ([torch.tensor(1)], "E_STATE_NOT_JSON: document 'loop'[0] | Tensor"),
    ],
)
def test_documents_are_json(tmp_path: Path, document: Any, code: str) -> None:
    with refuses(code):
        save_checkpoint(tmp_path, 1, {}, {"loop": document})


def test_a_full_disk_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    class Little(Files):
        def free(self, path: Path) -> int:
            return 10_000

    save_checkpoint(tmp_path, 1, *small(1), files=Little())
    before = {path: path.read_bytes() for path in (tmp_path / "step-000001").iterdir()}
    big = {"model": {"w": torch.zeros(1251, dtype=torch.float32)}}  # 5004 bytes, twice of which is too much
    with refuses("E_DISK_FULL", names=("step-000002 needs 0.0 MB", "step-000001 is intact")) as e:
        save_checkpoint(tmp_path, 2, big, {}, files=Little())
    assert isinstance(e.value, DiskError) and e.value.full and len(str(e.value).splitlines()) == 1
    assert names(tmp_path) == ["step-000001"] and all(path.read_bytes() == b for path, b in before.items())


def alterations(draw: random.Random, other: Path) -> dict[str, Callable[[Path], None]]:
    """Ways to damage a checkpoint folder, each certain to change something that counts."""

    def flip(file: Path) -> None:
        payload = bytearray(file.read_bytes())
        payload[draw.randrange(len(payload))] ^= 1 << draw.randrange(8)
        file.write_bytes(payload)

    def cut(file: Path) -> None:
        file.write_bytes(file.read_bytes()[: draw.randrange(file.stat().st_size)])

    def drop(file: Path) -> None:
        payload, at = file.read_bytes(), draw.randrange(file.stat().st_size)
        file.write_bytes(payload[:at] + payload[at + 1 :])

    def grow(file: Path) -> None:
        file.write_bytes(file.read_bytes() + draw.choice([b"\0", b"\n", b" ", b"{}"]))

    def zero(file: Path) -> None:
        file.write_bytes(bytes(file.stat().st_size))

    def swap(file: Path) -> None:
        shutil.copyfile(other / file.name, file)  # the same file of another checkpoint

    def foreign(file: Path) -> None:
        (file.parent / f"extra-{file.name}").write_bytes(file.read_bytes())

    return {f.__name__: f for f in (flip, cut, drop, grow, zero, swap, foreign)} | {"delete": Path.unlink}


@pytest.mark.whole
def test_every_alteration_is_detected(memory_path: Path) -> None:
    for step in (1, 2):
        save_checkpoint(memory_path, step, *small(step))
    good, other = memory_path / "step-000002", memory_path / "step-000001"
    kept = {path.name: path.read_bytes() for path in good.iterdir()}
    draw = random.Random(0)
    ways = alterations(draw, other)
    missed = []
    for case in range(2000):
        way = draw.choice(["flip"] * 6 + [name for name in ways if name != "flip"])
        file = good / draw.choice(sorted(kept))
        ways[way](file)
        if isinstance(verify_checkpoint(good), Checkpoint):
            missed.append((case, way, file.name))
        for path in good.iterdir():
            if path.name not in kept:
                path.unlink()
        file.write_bytes(kept[file.name])
    assert missed == []
    assert isinstance(verify_checkpoint(good), Checkpoint)


@pytest.mark.parametrize(
    "manifest", [b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"format": 2, "files": {}}']
)
def test_a_strange_manifest_is_damage_not_a_crash(tmp_path: Path, manifest: bytes) -> None:
    path = save_checkpoint(tmp_path, 1, *small(1))
    (path / "manifest.json").write_bytes(manifest)
    found = verify_checkpoint(path)
    assert isinstance(found, Damage) and found.reason.startswith("manifest.json: ")


def test_a_checkpoint_moved_to_another_step_is_not_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, *small(1)).rename(tmp_path / step_name(2))
    with refuses("E_NO_INTACT_CHECKPOINT", names=("step 1", "step 2")):
        latest_checkpoint(tmp_path)


def test_a_checkpoint_that_cannot_be_saved_says_what_a_resumed_run_does(tmp_path: Path) -> None:
    class Full(Files):
        def free(self, path: Path) -> int:
            return 0

    run = tmp_path / "run"
    with refuses("E_DISK_FULL", names=("step-000001", "there is no checkpoint yet")):
        save_checkpoint(run / "checkpoints", 1, {}, {"state": 1}, files=Full())
    run.mkdir(exist_ok=True)
    (run / "recipe.json").write_text("{}")
    with refuses("E_DISK_FULL", names=("no checkpoint yet", f"cotrain resume {run}")):
        save_checkpoint(run / "checkpoints", 1, {}, {"state": 1}, files=Full())
    save_checkpoint(run / "checkpoints", 1, {}, {"state": 1})
    with refuses("E_DISK_FULL", names=("step-000001 is intact", f"cotrain resume {run}")):
        save_checkpoint(run / "checkpoints", 2, {}, {"state": 2}, files=Full())
