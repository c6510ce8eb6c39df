"""A model directory keeps how its roles were taught to be asked and read, and whoever uses it takes that as default."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.models.names import hub_folder_with
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import is_terse, keep_taught_roles, mark_terse_prompts, taught_roles
from cotrain.runs import opening
from cotrain.runs.choose_formats import DEFAULT_FORMAT, AnswerFormat, as_taught, choose_formats
from cotrain.serving.export import export_policy
from tests.helpers import EASY
from tests.sentences import refuses

ASK = "Work it out, line by line.\n{problem}"
SOLVER = {"answer": "hash", "steps_as": "lines", "prompt": ASK}
VERIFIER = {"form": "steps", "verdict": "words", "prompt": "Is it right?\n{problem}\n{solution}"}


@pytest.fixture
def model(other, tmp_path):
    """A model that is asked in words, in a directory of its own."""
    shutil.copytree(other, tmp_path / "model")
    return tmp_path / "model"


def settings_of(recipe, answer_format=DEFAULT_FORMAT):
    said = []
    return choose_formats(recipe, answer_format, device="cpu", say=said.append, look=False).roles, said


def test_a_run_asks_and_reads_as_its_models_were_taught(model):
    keep_taught_roles(model, {"solver": SOLVER, "verifier": VERIFIER})
    roles, said = settings_of(tango(model=str(model), tasks=EASY))
    assert (roles["solver"].answer_format, roles["solver"].step_format, roles["solver"].prompt) == (
        "hash",
        "lines",
        ASK,
    )
    assert (roles["verifier"].verdict_format, roles["verifier"].prompt) == ("words", VERIFIER["prompt"])
    assert said == [
        f"note: {model} was taught to answer as 'hash', its steps as lines, and is asked and read so; --answer-format, "
        "--steps-as and --prompt choose otherwise",
        f"note: {model} was taught verdicts as 'words', and is asked and read so; --verdict and --verifier-prompt "
        "choose otherwise",
    ]


def test_each_role_is_asked_as_its_own_model_was_taught(model, other):
    keep_taught_roles(model, {"verifier": VERIFIER})
    roles, said = settings_of(tango(model=other, verifier_model=str(model), tasks=EASY))
    assert roles["verifier"].verdict_format == "words" and roles["solver"].answer_format == "tags" and len(said) == 1


def test_flags_and_settings_win(model):
    keep_taught_roles(model, {"solver": SOLVER, "verifier": VERIFIER})
    recipe = tango(model=str(model), tasks=EASY)
    roles, said = settings_of(recipe, AnswerFormat(answer="boxed", verdict="tags"))
    assert (roles["solver"].answer_format, roles["verifier"].verdict_format, said) == ("boxed", "tags", [])
    assert roles["solver"].prompt != ASK
    roles, _ = settings_of(recipe, AnswerFormat(prompt="{problem}"))
    assert (roles["solver"].answer_format, roles["solver"].prompt) == ("hash", "{problem}")
    own = override(recipe, ['roles.solver.answer_format="phrase"', 'roles.verifier.verdict_format="tags"'])
    assert settings_of(own)[1] == []


def test_what_a_recipe_cannot_use_is_told(model):
    keep_taught_roles(model, {"verifier": {**VERIFIER, "form": "genrm"}})
    _, said = settings_of(tango(model=str(model), tasks=EASY))
    assert said == [f"note: {model} was taught verdicts of the form 'genrm', which this recipe does not ask for"]


@pytest.mark.parametrize("mark", ["{}", '{"roles": {}}', '{"roles": {"solver": {}}}'])
def test_a_mark_that_says_nothing_changes_nothing(model, mark):
    (model / "cotrain.json").write_text(mark)
    assert as_taught(grpo(model=str(model), tasks=EASY), DEFAULT_FORMAT, print) == DEFAULT_FORMAT
    assert not is_terse(str(model))


@pytest.mark.parametrize(
    "mark", ["", "{", "[]", '{"roles": 3}', '{"roles": {"solver": 3}}'], ids=["empty", "torn", "list", "roles", "role"]
)
def test_a_damaged_mark_is_refused(model, mark):
    """Such as one whose writing was interrupted: without it the model would be asked otherwise than it was taught."""
    (model / "cotrain.json").write_text(mark)
    with refuses("E_MODEL_MARK_DAMAGED", names="cotrain.json"):
        taught_roles(model)
    with refuses("E_MODEL_MARK_DAMAGED", names="cotrain.json"):
        is_terse(str(model))


def test_chat_and_serve_open_a_model_as_it_was_taught(model, capsys):
    keep_taught_roles(model, {"solver": SOLVER})
    role = opening.open_trainer(model, device="cpu").recipe.roles["solver"]
    assert (role.answer_format, role.step_format, role.prompt) == ("hash", "lines", ASK)
    assert "was taught to answer as 'hash'" in capsys.readouterr().out
    assert (
        opening.open_trainer(model, AnswerFormat(answer="boxed"), device="cpu").recipe.roles["solver"].answer_format
        == "boxed"
    )


@pytest.mark.parametrize("name", ["someone/pushed", "someone/pushed@v1"], ids=["newest", "revision"])
def test_a_model_of_the_hub_is_asked_as_it_was_taught(name, model, tmp_path, monkeypatch):
    """A cache as the Hub's library writes it, and no network."""
    keep_taught_roles(model, {"solver": SOLVER})
    commit = "89abcdef0123456789abcdef0123456789abcdef"
    cache = tmp_path / "cache" / "models--someone--pushed"
    shutil.copytree(model, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    for reference in ("main", "v1"):
        (cache / "refs" / reference).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub_folder_with.cache_clear()
    assert taught_roles(name) == {"solver": SOLVER} and not is_terse(name)
    assert taught_roles("someone/unknown") == {} == taught_roles("someone/pushed/deeper")
    roles, said = settings_of(grpo(model=name, tasks=EASY))
    assert (roles["solver"].answer_format, roles["solver"].prompt, len(said)) == ("hash", ASK, 1)
    mark_terse_prompts(cache / "snapshots" / commit)
    assert is_terse(name)


@pytest.mark.parametrize("knows_terse_prompts", [True, False])
def test_a_model_taught_on_keeps_the_prompts_that_it_knows(knows_terse_prompts, model, tmp_path):
    """Asked in words, one of the package's models would be at a loss, and its context too short."""
    if knows_terse_prompts:
        mark_terse_prompts(model)
    data, out = tmp_path / "chat.jsonl", tmp_path / "out"
    chat = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    data.write_text((json.dumps({"messages": chat}) + "\n") * 20, encoding="utf-8")
    asked = ["sft", "--model", str(model), "--data", str(data), "--out", str(out)]
    assert main([*asked, "--tokens", "64", "--batch-tokens", "64", "--length", "32"]) == 0
    assert is_terse(str(out)) is knows_terse_prompts


def test_a_home_directory_is_a_directory(model, monkeypatch):
    keep_taught_roles(model, {"solver": SOLVER})
    monkeypatch.setenv("HOME", str(model.parent))
    assert taught_roles("~/model") == {"solver": SOLVER}


@pytest.mark.whole
def test_from_teaching_to_a_run_to_its_export(model, tmp_path, capsys):
    rows = [{"question": f"{n}+1?", "answer": f"One more.\n#### {n + 1}"} for n in range(40)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "ask.txt").write_text(ASK)
    words = ["teach", "solver", "--model", str(model), "--data", str(tmp_path / "data.jsonl")]
    words += ["--answer-format", "hash", "--steps-as", "lines", "--prompt", str(tmp_path / "ask.txt")]
    words += ["--tokens", "1024", "--batch-tokens", "512", "--length", "256", "--threads", "1"]
    taught = tmp_path / "taught"
    assert main([*words, "--out", str(taught)]) == 0
    assert taught_roles(taught) == {"solver": SOLVER}
    assert main(["run", "grpo", "--model", str(taught), "--data", str(tmp_path / "data.jsonl"), "--dry-run"]) == 0
    assert "was taught to answer as 'hash'" in capsys.readouterr().out
    run = tmp_path / "run"
    chosen = ["--answer-format", "boxed", "--smoke", "--threads", "1", "--max-tokens", "8", "--device", "cpu"]
    assert main(["run", "grpo", "--model", str(taught), "--out", str(run), *chosen]) == 0
    export_policy(run, "solver", tmp_path / "exported")
    found = taught_roles(tmp_path / "exported")["solver"]
    assert (
        found["answer"] == "boxed"
        and "{problem}" in found["prompt"]
        and Path(tmp_path / "exported/README.md").is_file()
    )


@pytest.mark.whole
def test_roles_that_are_taught_one_after_the_other_are_all_kept(model, tmp_path):
    keep_taught_roles(model, {"solver": SOLVER})
    row = {"problem": "2+2?", "steps": ["2+2=5"], "label": 0, "final_answer_correct": False}
    (tmp_path / "reviews.jsonl").write_text((json.dumps(row) + "\n") * 8)
    words = ["teach", "verifier", "--model", str(model), "--data", str(tmp_path / "reviews.jsonl")]
    words += ["--verdict", "words", "--tokens", "2048", "--batch-tokens", "1024", "--length", "1024", "--threads", "1"]
    assert main([*words, "--out", str(tmp_path / "both")]) == 0
    found = taught_roles(tmp_path / "both")
    assert (
        found["solver"] == SOLVER and found["verifier"]["verdict"] == "words" and found["verifier"]["form"] == "steps"
    )
