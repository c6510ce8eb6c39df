"""docs/nanochat.md: its commands, run in their order with two tiny nanochat checkpoints and problems of our own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from cotrain.cli.main import main
from cotrain.core.types import ParseFailure
from cotrain.formats.free_verdicts import WORDS, free_review
from cotrain.models.load import load_tokenizer, save_model
from cotrain.models.nanochat import convert, write_base_directory
from cotrain.models.nanochat_gpt import NanoChatGPTConfig, NanoChatGPTForCausalLM
from cotrain.rollout.common_roles import taught_roles

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "tests" / "assets" / "nanochat"
PAGE = (ROOT / "docs" / "nanochat.md").read_text(encoding="utf-8")
SMALLER = {  # what the test adds to a command of the page, so that it takes seconds
    "sft": "--tokens 8192 --batch-tokens 4096 --length 2048 --threads 1 --device cpu",
    "compare": "--seeds 1 --batches 2 --workers 1 --equal batches --evaluate-every 0 --device cpu "
    "--set roles.solver.sampling.max_tokens=16 --set tasks_per_step=2 "
    "--set group_size=2 --set evaluation.tasks=2 --set evaluation.group_size=2 --set evaluation.greedy=false",
}


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("cotrain ", "python "))]


def write_checkpoint(base: Path, tag: str, *, layers: int, width: int, source: Path) -> None:
    """A nanochat checkpoint of random weights, as its own code lays files out, and its tokenizer."""
    tokenizer = load_tokenizer(source)
    tokens = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(layers)
    model = NanoChatGPTForCausalLM(
        NanoChatGPTConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            max_position_embeddings=4096,
            pad_token_id=tokenizer.bos_token_id,
            **tokens,
        )
    )
    save_model(model, tokenizer, base / f"plain-{tag}")
    written = write_base_directory(base / f"plain-{tag}", base / f"written-{tag}", stage="chatsft", step=7)
    (base / "chatsft_checkpoints").mkdir(exist_ok=True)
    written.rename(base / "chatsft_checkpoints" / tag)
    if not (base / "tokenizer").exists():
        (base / f"written-{tag}" / "tokenizer").rename(base / "tokenizer")


def write_problems(folder: Path) -> None:
    """Problems in the layout of GSM8K."""
    folder.mkdir()
    for name, numbers in (("train", range(24)), ("test", range(30, 38))):
        rows = [
            {
                "question": f"Ann has {n} pears and buys {n + 2} more. She eats 1. How many has she?",
                "answer": f"She buys {n}+{n + 2} = <<{n}+{n + 2}={2 * n + 2}>>{2 * n + 2} pears.\n"
                f"Then {2 * n + 2}-1 = <<{2 * n + 2}-1={2 * n + 1}>>{2 * n + 1} are left.\n#### {2 * n + 1}",
            }
            for n in numbers
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def place(tmp_path, monkeypatch):
    source = convert(ASSETS / "base_checkpoints" / "d3", tmp_path / "source")
    (tmp_path / "nanochat").mkdir()
    write_checkpoint(tmp_path / "nanochat", "d20", layers=3, width=32, source=source)
    write_checkpoint(tmp_path / "nanochat", "d12", layers=2, width=24, source=source)
    write_problems(tmp_path / "gsm8k")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_has_at_most_eight_commands():
    assert [words[1] for words in commands()] == [
        "convert",
        "convert",
        "benchmarks/gsm8k_faults.py",
        "sft",
        "sft",
        "run",
        "compare",
        "export",
    ]


@pytest.mark.whole
def test_the_commands_of_the_page_run_in_order(place, capsys):
    for words in commands():
        if words[0] == "python":
            subprocess.run([sys.executable, str(ROOT / words[1]), *words[2:]], check=True, timeout=60)
            continue
        asked = [word.replace("warmup=10", "warmup=1,reviews=2") for word in words[1:]]
        if words[1] == "export":
            asked[1] = str(next((place / "runs/compare").rglob("tango*/**/recipe.json")).parent)
        code = main([*asked, *shlex.split(SMALLER.get(words[1], ""))])
        said = capsys.readouterr()
        assert code == 0, (words, said.out[-2000:], said.err)
        if words[1] == "run":
            assert (
                "# cuda:0, 80.00 GiB: generator, verifier, reference: " in said.out and said.out.count(": fits\n") == 1
            )

    assert taught_roles(place / "runs/solver")["solver"]["answer"] == "hash"
    assert taught_roles(place / "runs/verifier")["verifier"]["verdict"] == "words"
    table = (place / "runs/compare/table.md").read_text()
    assert "grpo" in table and "tango" in table
    back = convert(next((place / "runs/nanochat").glob("chatrl_checkpoints/*")), place / "again")
    trained = AutoModelForCausalLM.from_pretrained(back).state_dict()
    began = AutoModelForCausalLM.from_pretrained(place / "runs/solver").state_dict()
    assert trained.keys() == began.keys() and all(tensor.shape == began[name].shape for name, tensor in trained.items())


@pytest.mark.parametrize("words", re.findall(r"^Step 1: .*?^Overall: \w+$", PAGE, re.MULTILINE | re.DOTALL))
def test_reviews_that_the_page_shows_are_read(words):
    review = free_review(words, WORDS, len(words.splitlines()) - 1)
    assert not isinstance(review, ParseFailure)
