"""Every command that computes takes ``--device``, and says in one line that a device is not there."""

import inspect
import json

import pytest
import torch

import cotrain
from cotrain.cli.main import main
from cotrain.distributed.local import LocalBackend
from cotrain.serving.chat import run_chat
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

COMMANDS = (
    ["chat", TINY, "--once=What is 2 + 3?"],
    ["teach", "solver", f"--model={TINY}", "--out=out", "--data=rows.jsonl", "--from-samples"],
    ["sft", f"--model={TINY}", "--out=out"],
    ["pretrain", "--out=out"],
    ["paraphrase", f"--model={TINY}", "--out=out.jsonl", "--data=rows.jsonl"],
    ["run", "grpo", f"--model={TINY}", "--out=out"],
    ["run", "grpo", f"--model={TINY}", "--out=out", "--dry-run"],
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:1] + words[-1:]))
def test_a_device_that_is_not_there_is_told(words, place, capsys):
    for device, code in (("tpu", "E_DEVICE_NAME"), ("cuda:99", "E_NO_GPU")):
        if device.startswith("cuda") and torch.cuda.is_available():
            continue
        command_refuses([*words, f"--device={device}", "--threads=1"], f"{code}: --device '{device}'", capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["tpu", "cuda", "cuda:-1", "mps", "meta", ""])
def test_a_comparison_says_so_before_it_begins(place, capsys, device):
    code = "E_NO_GPU" if device in ("cuda", "mps") else "E_DEVICE_NAME"
    words = ["compare", "grpo", "tango", "--out=out", "--batches=1", f"--device={device}"]
    command_refuses(words, f"{code}: --device {device!r}", capsys)


@pytest.mark.whole
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_auto_is_the_cpu_where_there_is_no_gpu(place, capsys):
    assert main([*COMMANDS[0], "--device=auto", "--threads=1"]) == 0
    assert main(["pretrain", "--out=out", "--tokens=512", "--batch-tokens=512", "--length=64", "--depth=1"]) == 0
    with refuses("E_NO_GPU", names="'cuda'"):
        run_chat(TINY, once="What is 2 + 3?", device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_python_chooses_a_device_as_the_command_does():
    assert LocalBackend("auto").describe() == {"kind": "local", "device": "cpu"}
    for verb in (cotrain.run, cotrain.resume, cotrain.evaluate):
        assert inspect.signature(verb).parameters["device"].default == "auto"
    with refuses("E_DEVICE_NAME"):
        LocalBackend("gpu")
