"""``--config FILE`` equals the flags, and ``--dry-run`` writes it."""

import json

import pytest

from cotrain.cli.config_file import ConfigFile
from cotrain.cli.main import main
from cotrain.cli.run import parser_of
from cotrain.config.registry import find_recipe
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

FLAGS = [
    "--model",
    TINY,
    "--steps",
    "7",
    "--lr",
    "3e-05",
    "--no-simultaneous",
    "--ratio",
    "2",
    "1",
    "--operations",
    "2",
    "2",
]
BRIEF = ["--warmup", "2"]  # of tango, whose generator learns after it
SET = ["--set", "roles.solver.sampling.max_tokens=40", "--set", 'roles.solver.prompt="{problem} = \\"?\\""']


def dry(capsys, *words):
    assert main(["run", *words, "--dry-run"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def fails(capsys, code, *words):
    command_refuses(["run", *words, "--dry-run"], code, capsys)


@pytest.mark.whole
def test_what_a_dry_run_prints_is_the_same_run(tmp_path, capsys):
    first = json.loads(dry(capsys, "tango", *FLAGS, *BRIEF, *SET, "--out", "x", "--json"))
    file = tmp_path / "mine.toml"
    file.write_text(dry(capsys, "tango", *FLAGS, *BRIEF, *SET, "--out", "x"))
    again = json.loads(dry(capsys, "--config", str(file), "--json"))  # the recipe and --out stand in it too
    assert again.pop("estimate")["memory"].keys() == first.pop("estimate")["memory"].keys()
    assert again == first and first["settings"]["roles"]["solver"]["prompt"] == '{problem} = "?"'


def test_flags_of_the_command_line_count_more(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(f'model = "{TINY}"\nsteps = 7\nseed = 3\nset = ["roles.solver.sampling.max_tokens=40"]\n')
    made = json.loads(dry(capsys, "grpo", "--config", str(file), "--steps", "9", "--out", "x", "--json"))
    sampling = made["settings"]["roles"]["solver"]["sampling"]
    assert (made["steps"], made["settings"]["seed"], sampling["max_tokens"]) == (9, 3, 40)


def test_a_file_that_is_none_is_told_in_one_line(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text("stepz = 3\n")
    fails(capsys, "E_CONFIG_FILE_FLAG: mine.toml | 'stepz' | 'steps'?", "grpo", "--config", file, "--out", "x")
    file.write_text("steps = \n")
    fails(capsys, "E_NOT_TOML: mine.toml | line 1", "grpo", "--config", file, "--out", "x")
    fails(capsys, "E_FILE_UNREADABLE: none.toml", "grpo", "--config", tmp_path / "none.toml", "--out", "x")
    file.write_text("[roles]\n")
    fails(capsys, "E_CONFIG_FILE_FLAG: mine.toml | 'roles'", "grpo", "--config", file, "--out", "x")
    file.write_text("steps = 3\n")
    fails(capsys, "E_RECIPE_NOT_NAMED", "--config", file, "--out", "x")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"operations": [3, 5]}, ["--operations", "3", "5"]),
        ({"simultaneous": True, "lenient": False}, ["--simultaneous"]),
        ({"simultaneous": False}, ["--no-simultaneous"]),
        ({"tracker": ["wandb"], "group-size": 4}, ["--tracker=wandb", "--group-size=4"]),
    ],
)
def test_keys_become_words(keys, words):
    parser, _ = parser_of("tango", find_recipe("tango"))
    assert ConfigFile("f", keys).words(parser) == words


@pytest.mark.parametrize("keys", [{"simultaneous": "yes"}, {"steps": True}, {"steps": [1, 2]}, {"steps": {"a": 1}}])
def test_values_of_another_kind_are_refused(keys):
    parser, _ = parser_of("tango", find_recipe("tango"))
    with refuses("E_CONFIG_FILE_VALUE"):
        ConfigFile("f", keys).words(parser)


def test_a_switch_that_may_name_a_function_is_given_in_all_three_ways():
    parser, _ = parser_of("proposer_solver", find_recipe("proposer_solver"))
    for given, words in ((True, ["--gate"]), (False, ["--no-gate"]), ("mine.py:check", ["--gate", "mine.py:check"])):
        assert ConfigFile("f", {"gate": given}).words(parser) == words
        assert parser.parse_strictly(words).gate == given
    with refuses("E_COMMAND_LINE", names="--no-gate"):
        parser.parse_strictly(["--no-gate", "mine.py:check"])


@pytest.mark.parametrize("where", ["file", "flag"])
def test_a_trial_takes_what_only_the_file_gives(tmp_path, capsys, where):
    """A parameter without a default may stand in the file, and a trial builds the recipe with it too."""
    recipe = tmp_path / "mine.py"
    recipe.write_text(NEEDS_A_LOSS)
    file = tmp_path / "mine.toml"
    file.write_text('loss_name = "plain"\ngroup_size = 8\n' if where == "file" else "group_size = 8\n")
    flags = ["--loss-name", "plain"] if where == "flag" else []
    words = [f"{recipe}:mine", "--config", str(file), *flags, "--smoke", "--model", TINY, "--out", "x", "--json"]
    made = json.loads(dry(capsys, *words))
    assert (made["origin"]["arguments"]["loss_name"], made["settings"]["group_size"], made["steps"]) == ("plain", 4, 2)


NEEDS_A_LOSS = """
from cotrain import Recipe, RunConfig, recipe
from cotrain.recipes.grpo import grpo


@recipe()
def mine(run: RunConfig, *, loss_name: str) -> Recipe:
    return grpo(**run.values())
"""
