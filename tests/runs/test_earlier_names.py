"""Runs and flags of before the names changed are answered with one line."""

import json

import pytest

from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.config.registry import make_recipe
from cotrain.recipes.grpo import grpo
from cotrain.runs.changes import rebuild_recipe
from cotrain.runs.directory import RunDirectory, recipe_json, setting_differences
from tests.sentences import command_refuses, refuses


def earlier_origin(saved):
    saved["origin"]["settings"] = saved["origin"].pop("overrides")


def earlier_objective(saved):
    saved["origin"] = None
    objective = saved["settings"]["objectives"]["generator"]
    objective["on"] = objective.pop("role")


def earlier_argument(saved):
    saved["origin"]["arguments"]["judge"] = "steps"


def earlier_evaluation(saved):
    saved["settings"]["evaluation"]["implied"] = saved["settings"]["evaluation"].pop("implicit_rewards")


@pytest.mark.parametrize(
    "change",
    [earlier_origin, earlier_objective, earlier_argument, earlier_evaluation],
    ids=["origin", "objective", "argument", "evaluation"],
)
def test_a_run_of_an_earlier_version_is_refused_in_one_line(tmp_path, change, capsys):
    saved = recipe_json(grpo(), checkpoint_every=1)
    change(saved)
    (tmp_path / "recipe.json").write_text(json.dumps(saved))
    with refuses("E_RUN_OF_EARLIER_VERSION"):
        RunDirectory.open(tmp_path)
    assert main(["resume", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def with_names(value, names):
    """A JSON value with other keys. ``names``: key → the other one."""
    if isinstance(value, dict):
        return {names.get(key, key): with_names(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [with_names(part, names) for part in value]
    return value


@pytest.mark.parametrize(
    ("target", "arguments", "before"),
    [
        ("distill", {"teacher_kl": 0.5}, {"teacher_kl": "pull"}),
        ("debate", {"overlong_penalty": 0.5}, {"algorithm": "by", "overlong_penalty": "over"}),
        ("marti", {"history": "all", "frozen_agent": 1}, {"history": "over", "frozen_agent": "still"}),
        ("cooper", {"false_negative_rate": 0.25}, {"false_negative_rate": "overlooked"}),
        ("constitutional", {"sft_on": "drafts"}, {"sft_on": "learned"}),
        ("alphaproof", {"target": 3, "target_split": "test"}, {"target_split": "among"}),
    ],
    ids=["distill", "debate", "marti", "cooper", "constitutional", "alphaproof"],
)
def test_a_run_whose_arguments_and_options_had_other_names_is_built_again(tmp_path, target, arguments, before):
    recipe = make_recipe(target, arguments)
    saved = recipe_json(recipe, checkpoint_every=1)
    saved["origin"]["arguments"] = with_names(saved["origin"]["arguments"], before)
    for part in ("schedule", "evaluation"):  # where the options of protocols stand
        saved["settings"][part] = with_names(saved["settings"][part], before)
    RunDirectory(tmp_path).write_with_hashes({"recipe.json": saved})

    notes = []
    assert not setting_differences(saved, rebuild_recipe(tmp_path, say=notes.append))
    assert not notes


@pytest.mark.parametrize(
    ("target", "before"),
    [
        ("mae", {"example_rate": "shown_share"}),
        ("proposer_solver", {"example": "shown"}),
        ("mars", {"sampling": "by"}),
    ],
    ids=["mae", "proposer_solver", "mars"],
)
def test_a_run_whose_parts_had_fields_of_other_names_is_built_again(tmp_path, target, before):
    saved = recipe_json(make_recipe(target, {}), checkpoint_every=1)
    for part in ("schedule", "evaluation"):
        saved["settings"][part] = with_names(saved["settings"][part], before)
    for objective in saved["settings"]["objectives"].values():
        edits = with_names(objective["algorithm"].get("edit_after", []), before)
        objective["algorithm"]["edit_after"] = edits
    RunDirectory(tmp_path).write_with_hashes({"recipe.json": saved})

    assert not setting_differences(saved, rebuild_recipe(tmp_path))


def test_what_was_set_under_another_name_is_set_again(tmp_path):
    recipe = override(make_recipe("debate", {}), ["schedule.phases.0.options.overlong_penalty=0.25"])
    saved = recipe_json(recipe, checkpoint_every=1)
    saved["origin"]["overrides"] = ["schedule.phases.0.options.over=0.25"]
    saved["settings"]["schedule"] = with_names(saved["settings"]["schedule"], {"overlong_penalty": "over"})
    RunDirectory(tmp_path).write_with_hashes({"recipe.json": saved})

    again = rebuild_recipe(tmp_path)
    assert again.schedule.phases[0].options["overlong_penalty"] == 0.25
    assert again.origin.overrides == ("schedule.phases.0.options.overlong_penalty=0.25",)


def test_a_run_that_cannot_be_built_again_is_not_lengthened(tmp_path, capsys):
    saved = recipe_json(grpo(steps=2), checkpoint_every=1)
    saved["origin"]["arguments"]["no_such_parameter"] = 1
    directory = RunDirectory(tmp_path)
    directory.write_with_hashes({"recipe.json": saved, "summary.json": {}})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix == ".json"}

    command_refuses(["resume", str(tmp_path), "--steps", "4", "--changed-code"], "E_UNKNOWN_PARAMETER", capsys)
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (["grpo", "--lag", "1"], "async-steps"),
        (["tango", "--blend", "add"], "advantage-mix"),
        (["grpo", "--answer", "hash"], "answer-format"),
        (["proposer_solver", "--fixed", "5"], "uniform-operations"),
        (["proposer_solver", "--band", "0.3", "0.7"], "solver-band"),
        (["proposer_solver", "--target", "0.5"], "target-rate"),
        (["proposer_solver", "--proposals", "4"], "proposer-group-size"),
    ],
    ids=["lag", "blend", "answer", "fixed", "band", "target", "proposals"],
)
def test_a_flag_of_before_is_unknown_and_names_the_present_one(words, now, capsys):
    command_refuses(["run", *words, "--dry-run"], "E_COMMAND_LINE", capsys, names=f"--{now}")
