"""Runs and flags of before the names changed are answered with one line."""

import json

import pytest

from cotrain.cli.main import main
from cotrain.recipes.grpo import grpo
from cotrain.runs.directory import RunDirectory, recipe_json
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
