"""All of it together: a toy run that is killed at random, again and again, ends with the files of one left in peace."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from fault_files import in_child
from test_ledger import episodes_of

from cotrain.storage.checkpoints import latest_checkpoint, save_checkpoint
from cotrain.storage.jsonl import JsonlWriter, truncate_after
from cotrain.storage.ledger import Ledger
from cotrain.storage.lock import RunLock

STEPS, EVERY = 18, 3


def run(directory: Path, pause: float) -> None:
    """Each step's weights depend on all steps before; resumes from whatever is there."""
    with RunLock(directory):
        found = latest_checkpoint(directory / "checkpoints")
        weights, start = torch.zeros(64), 0
        if found is not None:
            tensors, documents = found.load()
            weights, start = tensors["policy"]["w"], documents["loop"]["done"]
        truncate_after(directory / "metrics.jsonl", start)
        with JsonlWriter(directory / "metrics.jsonl") as metrics, Ledger(directory) as ledger:
            ledger.truncate_after(start)
            for step in range(start + 1, STEPS + 1):
                made = torch.Generator().manual_seed(step)
                weights = weights * 0.9 + torch.randn(64, generator=made)
                ledger.append(step, episodes_of(step))
                metrics.append({"step": step, "norm": weights.norm().item()})
                time.sleep(pause)
                if step % EVERY == 0:
                    metrics.sync()
                    ledger.sync()
                    save_checkpoint(
                        directory / "checkpoints", step, {"policy": {"w": weights}}, {"loop": {"done": step}}
                    )


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.whole
def test_killed_twenty_times_and_resumed_bit_for_bit(memory_path: Path) -> None:
    run(memory_path / "peace", 0.0)
    expected = contents(memory_path / "peace")
    assert len(expected) == 2 + 2 * 3  # metrics, ledger, two checkpoints of three files
    draw, kills = random.Random(0), 0
    while kills < 20:
        directory, patience = memory_path / f"run-{kills}", 0.03
        while in_child(partial(run, directory, 0.0005), kill_after=draw.uniform(0.002, patience)) != 0:
            kills += 1
            patience *= 1.2  # so that a slow machine gets there too
        last = latest_checkpoint(directory / "checkpoints")
        save_checkpoint(directory / "checkpoints", last.step, *last.load())  # older ones stay where a kill came first
        found = contents(directory)
        assert sorted(found) == sorted(expected)
        assert [name for name in found if found[name] != expected[name]] == []
