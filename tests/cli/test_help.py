"""Every flag and every argument of every command says what it is for."""

import argparse
import re
from pathlib import Path

import pytest

from cotrain.cli.flags import Parser, comments_of, with_flag_names
from cotrain.cli.main import main
from cotrain.config.large_model_defaults import defaults_by_size
from cotrain.core import registry
from cotrain.core.user_code import load_file
from cotrain.recipes import NAMES as SHIPPED
from cotrain.recipes import QUESTIONS, RECIPES
from tests.sentences import command_refuses

FURTHER = {
    "check": ["data"],
    "convert": [],
    "run": ["grpo"],
    "train": ["grpo"],
    "teach": ["solver"],
}  # words that stand before the flags


class Made(Exception):
    """The parser of a command is made; nothing more is to be done."""


def known(capsys):
    assert main(["no-such-command"]) == 2
    return re.findall(r"there are: (.*)\)", capsys.readouterr().err)[0].split(", ")


def parser_of(monkeypatch, words):
    def stop(parser, *_, **__):
        raise Made(parser)

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "parse_strictly", stop)
        patch.setattr(Parser, "rename_foreign_flags", stop)
        with pytest.raises(Made) as made:
            main(words)
    return made.value.args[0]


@pytest.mark.whole
def test_every_flag_of_every_command_has_help(monkeypatch, capsys):
    commands = [[name, *FURTHER.get(name, [])] for name in known(capsys)] + [["run", name] for name in SHIPPED]
    assert len(commands) > 35
    for words in commands:
        parser = parser_of(monkeypatch, words)
        for action in parser._actions:
            if action.help is not argparse.SUPPRESS:
                said = re.sub(r"\(default: .*?\)", "", action.help or "").strip()
                assert len(said) > 2, (words, action.option_strings or action.dest)
        assert parser.format_help()


LONG_COMMENTS = """
from cotrain import Recipe, RunConfig, recipe


@recipe
def mine(
    run: RunConfig,
    *,
    weight: float = 0.1,  # weight of a short answer, which
    # grows with the steps, and "falls" again
    # Of the verifier, which comes next:
    votes: int = 3,  # votes of a model
    pattern: str = "# no comment",
    band: tuple[float, float] = (
        0.2,
        0.4,
    ),  # range of shares
        # (both ends count)
    pay: str = "truth",  # who pays, and
                         # What stands in its column goes on
    last: int = 2,  # rounds
    # of each game
) -> Recipe:
    raise AssertionError


class Fields:
    one: int = 1  # first field, whose
    # comment is long

    two: int = 2  # second field
"""


def test_a_comment_over_several_lines_is_the_whole_help(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(LONG_COMMENTS)
    module = load_file(str(file), "a test")
    assert comments_of(module.mine.build) == {
        "weight": 'weight of a short answer, which grows with the steps, and "falls" again',
        "votes": "votes of a model",
        "band": "range of shares (both ends count)",
        "pay": "who pays, and What stands in its column goes on",
        "last": "rounds of each game",
    }
    assert comments_of(module.Fields) == {"one": "first field, whose comment is long", "two": "second field"}
    with pytest.raises(SystemExit):
        main(["run", f"{file}:mine", "--help"])
    assert 'grows with the steps, and "falls" again (default: 0.1)' in " ".join(capsys.readouterr().out.split())


BARE_BEGINNINGS = re.compile(r"(of|in|by|for|after|and|or|which|the same|it|how many|so many)\b|\.\w", re.IGNORECASE)


@pytest.mark.whole
def test_no_help_of_a_flag_begins_without_what_it_is_about(monkeypatch, capsys):
    """As "of the problem" did, or "which one"."""
    commands = [[name, *FURTHER.get(name, [])] for name in known(capsys)] + [["run", name] for name in SHIPPED]
    for words in [*commands, ["teach", "verifier"]]:
        for action in parser_of(monkeypatch, words)._actions:
            text = action.help or ""
            assert not BARE_BEGINNINGS.match(text), (words, action.option_strings or action.dest, text)


def test_a_parameter_with_the_name_of_a_flag_is_refused_in_one_line(tmp_path, capsys):
    for name in ("data", "out", "config", "log_level"):
        file = tmp_path / f"own_{name}.py"
        file.write_text(
            "from cotrain import Recipe, RunConfig, recipe\n\n"
            f"@recipe\ndef mine(run: RunConfig, *, {name}: str = 'x') -> Recipe:\n    raise AssertionError\n"
        )
        code = f"E_PARAMETER_IS_FLAG: {name!r} | --{name.replace('_', '-')} | 'mine_{name}'"
        command_refuses(["run", f"{file}:mine", "--out", tmp_path / "run"], code, capsys)


def test_the_level_of_what_is_said_is_a_flag_of_all(capsys):
    assert main(["list", "--log-level", "wraning"]) == 2
    line = capsys.readouterr().err  # without its code: the level at which codes are shown was not understood
    assert "'wraning'" in line and "'warning'" in line and line.count("\n") == 1
    assert main(["resume", "nowhere", "--log-level", "debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["resume", "nowhere"]) == 2  # the level is of one command alone
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_help_keeps_the_lists_of_a_docstring():
    about = "\n".join(
        [
            "Who pays.",
            "",
            "    none      nothing: whole batches of problems that have a label, the control of all the others here",
            "    learning  a verifier",
            "              that goes on",
            "",
            "- one",
            "- two, which",
            "  goes on",
            "",
            "1. first",
            "2. second",
        ]
    )
    lines = Parser(prog="x", description=about).format_help().splitlines()
    shown = "\n".join(lines)
    assert "\n    none      nothing: whole batches" in shown and "\n              " in shown
    assert "\n    learning  a verifier that goes on\n" in shown
    assert "\n- one\n- two, which goes on\n" in shown and "\n1. first\n2. second\n" in shown


def flags_in(text):
    return re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)


def test_help_of_a_recipe_shows_thirty_flags_and_help_all_the_others(capsys):
    with pytest.raises(SystemExit) as left:
        main(["run", "tango", "--help"])
    short = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["run", "tango", "--help", "all"])
    whole = capsys.readouterr().out
    assert left.value.code == 0 and len(flags_in(short)) == 30
    assert {"--out", "--model", "--data", "--verifier", "--steps-judged-by", "--verifier-lr"} <= set(flags_in(short))
    hidden = len(flags_in(whole)) - 30
    assert hidden > 30 and set(flags_in(short)) < set(flags_in(whole))
    assert short.endswith(f"\n{hidden} more flags: `cotrain run tango --help all`\n")
    assert "more flags" not in whole
    command_refuses(["run", "tango", "--help", "lots"], "E_COMMAND_LINE: --help | 'lots'", capsys)


def test_short_help_leaves_the_parser_as_it_was():
    parser = Parser(prog="x")
    parser.add_argument("--one", help="first")
    parser.add_argument("--two", help="second")
    assert parser.short_help() == parser.format_help()
    parser.show_first(["one"])
    assert "second" not in parser.short_help() and "second" in parser.format_help()


def test_the_list_has_every_recipe_in_one_group_and_says_where_to_begin(capsys):
    grouped = [name for names in QUESTIONS.values() for name in names]
    assert sorted(grouped) == sorted(RECIPES)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "begin here" and lines[1].startswith("  demo  ")
    assert {line for line in lines if line and not line.startswith(" ")} > set(QUESTIONS)
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("place", ["clone", "elsewhere"])
def test_the_list_has_the_zoo_where_it_is_not_installed(place, monkeypatch, capsys):
    """Somebody wrote a method that the zoo had: no list named it."""
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: [])
    if place == "elsewhere":
        monkeypatch.setattr(registry, "__file__", "/usr/lib/cotrain/core/registry.py")
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    _, _, zoo = said.partition("\nin the zoo, a package of its own\n")
    assert [name for name in registry.ZOO_RECIPES if f"  {name}  " not in zoo] == []
    folder = Path(__file__).parents[2] / "zoo"
    command_refuses(["run", "spirall", "--out", "nowhere"], "E_UNKNOWN_RECIPE: spiral", capsys)
    where = f"pip install -e {folder}" if place == "clone" else "zoo/ of cotrain's repository"
    assert where in " ".join(zoo.split())


def test_a_long_path_stays_whole_in_the_list(monkeypatch, tmp_path, capsys):
    """It was cut where the line ended, so that the command could not be copied."""
    folder = tmp_path / ("a folder of many words " * 3).strip() / ("x" * 90) / "zoo"
    (folder / "cotrain_zoo").mkdir(parents=True)
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: [])
    monkeypatch.setattr(registry, "zoo_folder", lambda: folder)
    assert main(["list"]) == 0
    assert f"pip install -e '{folder}'" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["why", "view", "audit", "serve", "attack", "diff"])
def test_the_description_of_a_command_is_one_text(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    description = capsys.readouterr().out.partition("\n\n")[2].partition("\n\n")[0]
    assert not re.search(r"^ ", description, re.MULTILINE), description


def test_controls_are_written_as_the_flags_that_one_types():
    names = ["verifier", "balance", "simultaneous", "clip", "rate", "rate_end", "labels", "target"]
    text = (
        '``verifier="frozen"``, ``balance=False``, ``simultaneous=True``, ``clip=(0.2, 0.2)``, '
        '``rate=1, rate_end=1``, ``labels="a"|"b"``, ``target=N``, ``verifier_kl=0.001`` and ``judge``'
    )
    assert with_flag_names(text, names) == (
        "``--verifier frozen``, ``--no-balance``, ``--simultaneous``, ``--clip 0.2 0.2``, ``--rate 1 --rate-end 1``, "
        "``--labels a|b``, ``--target N``, ``verifier_kl=0.001`` and ``judge``"
    )


def test_the_flags_that_a_description_names_are_listed_below_it(capsys):
    with pytest.raises(SystemExit):
        main(["run", "tango", "--help"])
    said = capsys.readouterr().out
    assert "`--simultaneous`: both learn" in " ".join(said.split()) and "=True" not in said
    assert re.search(r"^  --simultaneous", said, re.MULTILINE) and re.search(r"^  --balance", said, re.MULTILINE)


def test_defaults_that_hang_on_the_size_of_the_model_are_told(capsys):
    with pytest.raises(SystemExit):
        main(["run", "tango", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "(default: 16; 8 from 100M parameters)" in said
    assert said.count("(default: 0.0002; 1e-05 or less from 100M parameters, 0.0001 of adapters)") == 2  # of both
    assert defaults_by_size({"tasks_per_step": 4, "lr": 1e-6, "kl": 1.0, "prm_lr": 1e-3}) == {
        "prm_lr": "1e-05 or less from 100M parameters"
    }
