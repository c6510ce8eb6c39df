"""Checkpoints whose tensors several processes have written, each its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fault_files import FaultyFiles, InParts
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.storage.checkpoints import latest_checkpoint, save_checkpoint
from cotrain.storage.tensor_files import join_parts, part_name, split_part_name
from tests.sentences import refuses

GROUP = {
    "even": torch.arange(12.0).reshape(6, 2),
    "uneven": torch.arange(5),
    "one row": torch.tensor([[1.0, -0.0, float("inf")]]),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 4),
    "narrow": torch.arange(7).to(torch.bfloat16),
}


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in wanted.items()
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_any_number_of_parts_is_read_as_the_whole(parts: int, tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, {"p": InParts(GROUP, parts, FaultyFiles()), "q": GROUP}, {"state": {"x": 1}})
    listed = {file.name for file in path.iterdir()} - {"manifest.json", "state.json", "q.safetensors"}
    assert listed == {part_name("p", part, parts) for part in range(1, parts + 1)}
    tensors, documents = latest_checkpoint(tmp_path).load()
    assert same(tensors["p"], GROUP) and same(tensors["q"], GROUP) and documents == {"state": {"x": 1}}
    assert list(latest_checkpoint(tmp_path).load(only=["p"])[0]) == ["p"]


def test_one_part_has_the_bytes_of_tensors_that_were_never_apart(tmp_path: Path) -> None:
    one = save_checkpoint(tmp_path / "one", 1, {"p": GROUP}, {})
    part = save_checkpoint(tmp_path / "part", 1, {"p": InParts(GROUP, 1, FaultyFiles())}, {})
    for file in one.iterdir():
        assert file.read_bytes() == (part / file.name).read_bytes()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_rows_come_back_in_order(lengths: list[int], parts: int) -> None:
    whole = {str(n): torch.arange(10 * n, 10 * n + length) for n, length in enumerate(lengths)}
    assert same(join_parts({part: InParts.share(whole, part, parts) for part in range(parts)}), whole)


@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True), st.integers(1, 40), st.integers(2, 40))
def test_names_are_read_back(stem: str, part: int, parts: int) -> None:
    assert split_part_name(part_name(stem, part, parts)) == (stem, part, parts)


def test_a_damaged_or_missing_part_is_named_and_passed_over(tmp_path: Path) -> None:
    def made(step: int) -> Path:
        return save_checkpoint(
            tmp_path, step, {"p": InParts(GROUP, 3, FaultyFiles())}, {"state": {"step": step}}, keep=9
        )

    paths = [made(step) for step in range(4)]
    flipped = bytearray((paths[3] / "p.2-of-3.safetensors").read_bytes())
    flipped[-1] ^= 1
    (paths[3] / "p.2-of-3.safetensors").write_bytes(flipped)
    (paths[2] / "p.3-of-3.safetensors").unlink()
    (paths[1] / "p.4-of-4.safetensors").write_bytes(b"")
    found = latest_checkpoint(tmp_path)
    assert found.step == 0 and same(found.load()[0]["p"], GROUP)
    assert [damage.reason for damage in found.newer_damaged] == [
        "p.2-of-3.safetensors: its hash differs",
        "p.3-of-3.safetensors is missing",
        "p.4-of-4.safetensors does not belong to it",
    ]
    (paths[0] / "p.1-of-3.safetensors").write_bytes(b"changed since")
    with refuses("E_CHECKPOINT_CHANGED", names="p.1-of-3.safetensors"):
        found.load()


def test_a_part_that_no_process_wrote_is_no_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"p": InParts(GROUP, 2, FaultyFiles())}, {})
    for part, reason in ((1, "no p.1-of-2.safetensors"), (2, "no p.2-of-2.safetensors")):
        with refuses("E_CHECKPOINT_NOT_READ_BACK", names=(reason, "step-000001 is intact")):
            save_checkpoint(tmp_path, 2, {"p": InParts(GROUP, 2, FaultyFiles(), but=part)}, {})
    assert latest_checkpoint(tmp_path).step == 1


class Mixed(InParts):
    """Parts of two numbers of processes."""

    def write(self, folder, stem):
        return super().write(folder, stem) | InParts(GROUP, 3, FaultyFiles(), but=3).write(folder, stem)


def test_parts_of_two_numbers_of_processes_are_no_checkpoint(tmp_path: Path) -> None:
    with refuses("E_CHECKPOINT_NOT_READ_BACK"):
        save_checkpoint(tmp_path, 1, {"p": Mixed(GROUP, 2, FaultyFiles())}, {})
    assert latest_checkpoint(tmp_path) is None


def test_a_part_that_is_elsewhere_is_missing(tmp_path: Path) -> None:
    class Elsewhere(InParts):
        def write(self, folder, stem):
            (tmp_path / "elsewhere").mkdir(exist_ok=True)
            return super().write(folder, stem) | self.apart(stem)

        def apart(self, stem):
            other = InParts(GROUP, 2, FaultyFiles(), but=1)
            return other.write(tmp_path / "elsewhere", stem)

    with refuses("E_CHECKPOINT_NOT_READ_BACK"):
        save_checkpoint(tmp_path / "run", 1, {"p": Elsewhere(GROUP, 2, FaultyFiles(), but=2)}, {})


def test_no_group_is_named_as_a_part(tmp_path: Path) -> None:
    with refuses("E_CHECKPOINT_NAME", names="'p.1-of-2'"):
        save_checkpoint(tmp_path, 1, {"p.1-of-2": GROUP}, {})
