"""A name that nobody has is answered with the one that was meant, or with none: words that are far from it do not
help."""

import pytest

from cotrain.core.errors import SHOWN, UnknownName, nearest_file, nearest_name, unknown_message
from cotrain.data.columns import lines_of
from tests.sentences import command_refuses, refuses

FLAGS = ("group-size", "lr", "max-tokens", "no-offload", "no-balance", "out", "seed", "steps", "temperature")


@pytest.mark.parametrize(
    "given, meant",
    [
        ("nosuchflag", None),
        ("no-such-flag", None),
        ("frobnicate", None),
        ("x", None),
        ("stesp", "steps"),
        ("rl", "lr"),
        ("STEPS", "steps"),
        ("max_token", "max-tokens"),
        ("temp", "temperature"),
        ("size", "group-size"),
        ("no-ofload", "no-offload"),
    ],
)
def test_name_that_was_meant(given, meant):
    assert nearest_name(given, FLAGS) == meant


def test_ending_that_all_files_share_makes_none_near():
    files = ["sums.jsonl", "train.jsonl", "notes.md"]
    assert nearest_file("nosuch.jsonl", files) is None
    assert nearest_file("trian.jsonl", files) == nearest_file("train.json", files) == "train.jsonl"


def test_only_a_long_list_of_names_is_cut_and_says_by_how_many():
    names = [f"name-{n:03}" for n in range(SHOWN + 2)]
    whole, cut = unknown_message("task", "x", names[:SHOWN]), unknown_message("task", "x", names)
    assert names[SHOWN - 1] in whole and "more" not in whole
    assert names[SHOWN] not in cut and "2 more" in cut


def test_missing_file_names_no_other_one(tmp_path):
    (tmp_path / "sums.jsonl").write_text("{}\n")
    with refuses("E_DATA_FILE_MISSING"):
        next(lines_of(tmp_path / "nosuch.jsonl"))
    with refuses("E_DATA_FILE_MISSING", names="'sums.jsonl'"):
        next(lines_of(tmp_path / "sum.jsonl"))


def test_unknown_recipe_lists_all_of_them():
    from cotrain.config.registry import recipe_names

    said = str(UnknownName("recipe", "nosuch", recipe_names()))
    assert "did you mean" not in said and "more)" not in said and all(name in said for name in recipe_names())


@pytest.mark.parametrize("command", [["run", "tango"], ["run", "grpo"], ["sft"], ["eval", "x"], ["compare", "grpo"]])
def test_unknown_flag_is_answered_without_a_guess(command, capsys):
    required = {"sft": ["--model", "m"]}.get(command[0], [])
    words = [*command, *required, "--out", "o", "--nosuchflag", "3"]
    assert "did you mean" not in command_refuses(words, "E_COMMAND_LINE: '--nosuchflag'", capsys)
