"""What can be known without weights is refused before any are loaded: the models of these commands have none any more,
so that a command that opened one would say so instead."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cotrain.analysis.comparison.arms import make_arm
from cotrain.analysis.comparison.compare import ComparisonPlan, claim_directory, compare
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.recipes.cooper import cooper
from cotrain.recipes.distill import distill
from cotrain.recipes.grpo import grpo
from cotrain.recipes.marti.recipe import marti
from cotrain.recipes.tango import tango
from cotrain.runs.check_models import check_tokenizers
from cotrain.runs.run import start_run
from tests.analysis.test_study import FILE
from tests.distributed.processes import Here
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

BRIEF = {"tasks": EASY, "steps": 1, "tasks_per_step": 1, "group_size": 2, "evaluation_tasks": 1}


def without_weights(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture
def model(tmp_path):
    return without_weights(Path(shutil.copytree(TINY, tmp_path / "model")))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs whose model has lost its weights: one with a verifier, and one without a role called solver."""
    folder = tmp_path_factory.mktemp("runs")
    model = shutil.copytree(TINY, folder / "model")
    start_run(tango(model=str(model), warmup=0, simultaneous=True, **BRIEF), folder / "tango")
    start_run(marti(model=str(model), workflow="vote", agents=1, rounds=1, **BRIEF), folder / "marti")
    without_weights(Path(model))
    return folder


def test_a_chat_with_a_model_that_cannot_call_its_tool(model, capsys):
    command_refuses(["chat", model, "--tool", "calculator", "--once", "1+1"], "E_TOOL_WITHOUT_TOKENS", capsys)
    command_refuses(["chat", model, "--tool", "abacus", "--once", "1+1"], "E_TOOL_NAME", capsys)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("chat marti --once 1+1", "E_NO_SOLVER: marti | 'solver'"),
        ("chat tango --once 1+1 --tool calculator", "E_TOOL_WITHOUT_TOKENS"),
        ("eval tango --split train", "E_TRAINING_SPLIT_EVALUATED"),
        ("eval tango --split nowhere", "E_UNKNOWN_SPLIT: 'nowhere'"),
        ("eval tango --samples 2 --solver nobody", "E_UNKNOWN_ROLE: 'nobody'"),
        ("eval tango --suite jsonl --data DATA --tool calculator", "E_TOOL_WITHOUT_TOKENS"),
        ("eval marti --suite jsonl --data DATA", "E_UNKNOWN_ROLE: 'solver'"),
        ("attack tango --split nowhere", "E_UNKNOWN_SPLIT: 'nowhere'"),
    ],
)
def test_a_run(words, code, runs, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "How many are 1 and 1?", "answer": "2"}\n')
    command, name, *more = words.replace("DATA", str(data)).split()
    command_refuses([command, runs / name, *more], code, capsys)


def test_a_run_that_is_changed_by_nothing_that_is_refused(runs, tmp_path, capsys):
    run = Path(shutil.copytree(runs / "tango", tmp_path / "run"))
    before = (run / "recipe.json").read_bytes()
    command_refuses(["resume", run, "--steps", "9", "--world", "2"], "E_FLAGS_GO_TOGETHER: --world", capsys)
    command_refuses(["resume", run, "--steps", "9", "--device", "cuda:99"], "E_NO_GPU: cuda:99", capsys)
    assert (run / "recipe.json").read_bytes() == before


@pytest.mark.parametrize("backend", ["local", "ray"])
def test_a_run_whose_model_cannot_call_its_tool(backend, model, tmp_path, capsys):
    words = ["run", "grpo", "--model", model, "--tool", "calculator", "--backend", backend, "--out", tmp_path / "run"]
    command_refuses(words, "E_TOOL_WITHOUT_TOKENS", capsys)
    assert not (tmp_path / "run").exists()


def test_a_run_in_other_processes_begins_none_for_a_tool_that_cannot_be_called(tmp_path):
    launcher = Here()
    recipe = grpo(model=TINY, tool="calculator", **BRIEF)
    with refuses("E_TOOL_WITHOUT_TOKENS"):
        start_run(recipe, tmp_path / "run", backend=MultiProcessBackend(launcher))
    assert not launcher.begun and not (tmp_path / "run").exists()


def test_a_run_without_test_problems(model, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "How many are 1 and 1?", "answer": "2"}\n')
    command_refuses(
        ["run", "grpo", "--model", model, "--data", data, "--out", tmp_path / "run"], "E_SPLIT_EMPTY", capsys
    )


def test_policies_with_two_tokenizers(model, tmp_path, capsys):
    words = ["run", "distill", "--model", model, "--teacher", "shipped", "--out", tmp_path / "run"]
    command_refuses(words, "E_TOKENIZERS_DIFFER: 'teacher' | 'generator'", capsys)
    check_tokenizers(distill(model=str(model), teacher=str(model)))
    check_tokenizers(cooper(model=str(model), rm_model="shipped"))  # which scores texts, and nobody's tokens


@pytest.mark.parametrize("command", ["sft", "teach solver --from-samples", "teach verifier", "pretrain"])
def test_rows_longer_than_the_context(command, tmp_path, capsys):
    words = [*command.split(), "--model", TINY, "--data", tmp_path / "nothing.jsonl", "--out", tmp_path / "out"]
    sizes = ["--length", "100000", "--batch-tokens", "100000"]
    command_refuses([*words, *sizes], "E_LENGTH_ABOVE_CONTEXT: length 100000", capsys)


def test_a_model_that_nanochat_does_not_have(tmp_path, capsys):
    model = Path(shutil.copytree(TINY, tmp_path / "model"))
    weights = load_file(model / "model.safetensors")
    weights["foreign"] = torch.zeros(1)  # with which it does not load
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    words = ["export", model, "--role", "solver", "--out", tmp_path / "out"]
    command_refuses(words, "E_WEIGHTS_MISFIT", capsys)
    command_refuses([*words, "--to", "nanochat"], "E_NOT_NANOCHAT_MODEL: 'generator' | LlamaForCausalLM", capsys)


def test_a_comparison_in_the_directory_of_another_one(model, tmp_path):
    arms = (make_arm("plain", "grpo", {"model": str(model)}),)
    plan = ComparisonPlan(arms=arms, seeds=1, out=tmp_path / "out", batches=2, equal="batches")
    claim_directory(plan, arms)
    other = ComparisonPlan(arms=arms, seeds=1, out=tmp_path / "out", batches=3, equal="batches")
    with refuses("E_COMPARISON_DIFFERS", names="batches 2"):
        compare(other, say=lambda text: None)


def test_a_part_of_a_study_that_cannot_be_run(tmp_path, capsys):
    """It is refused before the gate is run, which may take an hour."""
    file = tmp_path / "mine.toml"
    text = FILE.format(out=tmp_path / "out", tiny=TINY).replace("operations = [2, 2]", 'data = "nothing.jsonl"')
    file.write_text(text)
    command_refuses(["study", file], "E_DATA_FILE_MISSING: nothing.jsonl", capsys)
    assert not (tmp_path / "out").exists()


def test_weights_are_what_these_models_lack(runs, model, capsys):
    """So each of the commands above would have said so."""
    for words in (["chat", model, "--once", "1"], ["eval", runs / "tango"], ["attack", runs / "tango"]):
        command_refuses(words, "E_NO_WEIGHTS", capsys)
    assert json.loads((runs / "tango" / "recipe.json").read_text())["settings"]["steps"] == 1
