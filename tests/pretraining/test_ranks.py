"""Pretraining and fine-tuning on several ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotrain.pretraining.ranks import ALONE, Ranks
from tests.helpers import TINY
from tests.sentences import command_refuses

ROOT = Path(__file__).resolve().parents[2]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@pytest.mark.parametrize(("rows", "world"), [(4, 1), (4, 2), (5, 3), (7, 4)])
def test_every_row_is_computed_by_one_rank(rows, world):
    shares = [Ranks(rank=rank, world=world).own_rows(rows) for rank in range(world)]
    assert [row for first, end in shares for row in range(first, end)] == list(range(rows))
    assert all(end > first for first, end in shares)


def test_one_rank_alone_asks_nobody():
    assert ALONE.sum_of([1.5, 2], None) == [1.5, 2] and ALONE.as_first(3, None) == 3 and ALONE.any_of(True, None)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--world", "2"], "--backend ray | --world N"),
        (["--backend", "ray"], "--backend ray | --world N"),
        (["--backend", "ray", "--world", "1"], "--backend ray | --world N"),
        (["--backend", "ray", "--world", "32"], "16 rows on 32 ranks"),
    ],
    ids=["world", "ray", "one", "many"],
)
def test_what_does_not_go_together_is_one_line(words, named, tmp_path, capsys):
    for command in (["pretrain"], ["sft", "--model", TINY]):
        command_refuses([*command, "--out", tmp_path / "x", *words], f"E_COMMAND_LINE: {named}", capsys)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Conversations of several lengths."""
    file = tmp_path_factory.mktemp("data") / "chats.jsonl"
    turns = [[{"role": "user", "content": f"{n}+{n}?" * (1 + n % 5)}, {"role": "assistant", "content": f"{2 * n}"}]
             for n in range(40)]  # fmt: skip
    file.write_text("".join(json.dumps({"messages": two}) + "\n" for two in turns))
    return file


def command(data, out, *more):
    sizes = ["--tokens", "12288", "--batch-tokens", "512", "--length", "128", "--threads", "1", "--device", "cpu"]
    return [
        sys.executable,
        "-m",
        "cotrain",
        "sft",
        "--model",
        TINY,
        "--data",
        str(data),
        "--out",
        str(out),
        *sizes,
        *more,
    ]


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


TWO = ("--backend", "ray", "--world", "2")


def run(*words):
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]


def result_of(out):
    return json.loads((out / "result.json").read_text())


@needs_ray
@pytest.mark.whole
def test_two_ranks_learn_what_one_learns_and_go_on_as_if_never_stopped(data, tmp_path):
    one, two, parts = (tmp_path / name for name in ("one", "two", "parts"))
    run(*command(data, one))
    run(*command(data, two, *TWO))
    assert result_of(two)["loss"] == pytest.approx(result_of(one)["loss"], rel=1e-4)
    assert result_of(two)["validation"] == pytest.approx(result_of(one)["validation"], rel=1e-4)
    process = subprocess.Popen(command(data, parts, *TWO), env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 10 of 24"):
            process.send_signal(signal.SIGINT)
    assert process.wait(600) == 130 and not (parts / "model.safetensors").exists()
    run(*command(data, parts, *TWO, "--resume"))
    assert (parts / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
