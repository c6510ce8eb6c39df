"""A run finds its model again: from another directory, after it was moved, and at the commit that the Hub had."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM

from cotrain import api
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.models.names import hub_name_of, lasting_name
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.runs.model_paths import pin_model_names
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses

SMALL = ["--steps=1", "--tasks-per-step=2", "--group-size=2", "--evaluation-tasks=2", "--threads=1"]
BRIEF = ["--operations", "2", "2", "--set=roles.solver.sampling.max_tokens=8", "--set=evaluation.splits=[]"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def place(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    shutil.copytree(TINY, "inst")
    config = json.loads(Path("inst/config.json").read_text())
    Path("inst/config.json").write_text(json.dumps(config | {"_name_or_path": "someone/inst"}))
    return tmp_path


def begin(*words):
    assert main(["run", "grpo", "--model", "./inst", "--out", "run", *SMALL, *BRIEF, *words]) == 0


@pytest.mark.whole
def test_a_run_of_a_relative_model_is_read_from_anywhere(place, monkeypatch, capsys):
    begin("--lora=2")
    monkeypatch.chdir(place)
    assert main(["resume", "there/run", "--steps=2"]) == 0, capsys.readouterr()
    assert main(["export", "there/run", "--role=solver", "--out=adapter"]) == 0, capsys.readouterr()
    said = json.loads(Path("adapter/adapter_config.json").read_text())["base_model_name_or_path"]
    assert said == str(place / "there" / "inst")
    AutoPeftModelForCausalLM.from_pretrained("adapter")
    card = Path("adapter/README.md").read_text()
    assert "base_model: someone/inst" in card and "calls it `someone/inst`" in card


@pytest.mark.whole
def test_a_moved_model_is_told_with_the_flag_that_helps(place, capsys):
    begin("--lora=2")
    shutil.move("inst", "elsewhere")
    capsys.readouterr()
    for words in (["export", "run", "--role=solver", "--out=adapter"], ["resume", "run", "--steps=2"]):
        command_refuses(words, "E_MODEL_MOVED: there/inst' | --model NEW", capsys)
    shutil.copytree(TINY, "other")
    (Path("other") / "model.safetensors").write_bytes(b"x")
    for wrong, code in (
        ("nowhere", "E_MODEL_FLAG_NOT_DIRECTORY: nowhere"),
        ("other", "E_MODEL_FLAG_OTHER_WEIGHTS: other"),
        ("a=elsewhere", "E_MODEL_FLAG_NOT_NEEDED: 'a'"),
    ):
        command_refuses(["export", "run", "--role=solver", "--out=adapter", f"--model={wrong}"], code, capsys)
    assert main(["export", "run", "--role=solver", "--out=adapter", "--model=elsewhere"]) == 0
    assert json.loads(Path("adapter/adapter_config.json").read_text())["base_model_name_or_path"].endswith("/elsewhere")
    command_refuses(["resume", "run", "--model=elsewhere"], "E_MODEL_FLAG_NOT_NEEDED: --model elsewhere", capsys)
    assert main(["resume", "run"]) == 0


@pytest.mark.whole
def test_a_bare_recipe_goes_on_from_elsewhere(place, monkeypatch):
    recipe = grpo(model="./inst", steps=1, tasks_per_step=2, group_size=2, evaluation_tasks=2, tasks=EASY)
    recipe = override(recipe, ["roles.solver.sampling.max_tokens=8", "evaluation.splits=[]"])
    recipe = replace(recipe, origin=None)
    api.run(recipe, place / "bare")
    assert api.resume(place / "bare", recipe=recipe).summary["steps"] == 1
    saved = json.loads((place / "bare" / "recipe.json").read_text())
    assert saved["settings"]["policies"]["generator"]["model"] == str(place / "there" / "inst")


def test_arguments_settings_and_adapters_are_absolute_too(place):
    recipe = tango(model="./inst", verifier_model="inst", lora=2, tasks=EASY)
    recipe = override(recipe, ["policies.reference.model=./inst", "policies.generator.lora.path=../there/inst"])
    found, inst = pin_model_names(recipe), str(place / "there" / "inst")
    assert found.origin.arguments["model"] == found.origin.arguments["verifier_model"] == inst
    assert (
        found.origin.overrides[0] == f'policies.reference.model="{inst}"' and found.policies["reference"].model == inst
    )
    assert found.policies["generator"].lora.path == str(place / "there" / ".." / "there" / "inst")
    assert pin_model_names(found) == found


def test_a_model_that_is_called_as_a_setting_renames_the_model_alone(place):
    shutil.move("inst", "trained")
    found, there = pin_model_names(tango(model="trained", tasks=EASY)), str(place / "there" / "trained")
    assert found.origin.arguments["model"] == there == found.policies["verifier"].model
    assert found.origin.arguments["verifier"] == "trained"


def test_an_argument_of_any_name_may_hold_the_model(place):
    recipe = grpo(model="inst", tasks=EASY)
    recipe = replace(recipe, origin=replace(recipe.origin, arguments={"student": "inst", "teachers": ["inst", "no"]}))
    there = str(place / "there" / "inst")
    assert pin_model_names(recipe).origin.arguments == {"student": there, "teachers": [there, "no"]}


def test_a_revision_that_is_named_is_not_the_one_of_the_run():
    begun = {"settings": {"policies": {"generator": {"model": "owner/name@aaaa", "micro_tokens": 1}}}}
    assert pin_model_names(grpo(model="owner/name@v2"), begun).policies["generator"].model == "owner/name@v2"
    assert pin_model_names(grpo(model="owner/name"), begun).policies["generator"].model == "owner/name@aaaa"


@pytest.mark.whole
def test_a_model_of_the_hub_is_kept_at_its_commit(place, monkeypatch):
    """A cache as the Hub's library writes it, and no network."""
    cache = place / "cache" / "models--someone--inst"
    shutil.copytree(TINY, cache / "snapshots" / COMMIT)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(place / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name = f"someone/inst@{COMMIT}"
    assert lasting_name("someone/inst") == name == lasting_name(name) and hub_name_of(name) == "someone/inst"
    assert lasting_name("someone/other") == "someone/other"  # whoever loads it says what is wrong
    begun = {"settings": {"policies": {"generator": {"model": name, "micro_tokens": 1}}}}
    (cache / "refs" / "main").write_text("f" * 40)  # the Hub has moved on
    assert pin_model_names(grpo(model="someone/inst"), begun).policies["generator"].model == name
    monkeypatch.chdir(place)
    assert (
        main(["run", "grpo", f"--model={name}", "--lora=2", "--out=run", "--answer-format=tags", *SMALL, *BRIEF]) == 0
    )
    assert main(["export", "run", "--role=solver", "--out=adapter"]) == 0
    said = json.loads(Path("adapter/adapter_config.json").read_text())
    assert (said["base_model_name_or_path"], said["revision"]) == ("someone/inst", COMMIT)
