"""What a command prints holds no control character, whatever a model, a file or an error says."""

import json

import pytest

from cotrain.cli.main import main
from cotrain.core.verbosity import (
    ERROR_END,
    ERROR_START,
    count_of,
    first_sentence,
    is_hidden,
    json_text,
    print_error,
    print_lines,
    print_progress,
    print_traceback,
)
from cotrain.runs.log import LoggingObserver, SilentObserver

POISON = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxet"


def hidden_in(text):
    return [c for c in text if is_hidden(c) and c != "\n"]


def test_an_error_is_one_bounded_line_with_its_beginning_and_its_end(capsys):
    print_error(f"cannot read {POISON}\nsecond line " + "x" * 100_000 + "; name another file")
    said = capsys.readouterr().err
    assert not hidden_in(said) and said.count("\n") == 1
    assert said.startswith("cotrain: cannot read <U+001B>") and said.endswith("; name another file\n")
    assert len(said) < 2 * (ERROR_START + ERROR_END) and "characters left out" in said
    print_error("cotrain why: no such rollout")
    assert capsys.readouterr().err == "cotrain why: no such rollout\n"


def test_results_and_progress_are_safe_and_whole(capsys):
    print_lines([f"a {POISON}", "b\nc", "y" * 10_000])
    print_progress(f"asked: {POISON}")
    said = capsys.readouterr().out
    assert not hidden_in(said) and said.splitlines()[1:3] == ["b", "c"] and "y" * 10_000 in said


def test_json_is_safe_and_says_the_same():
    value = {"é": [POISON, 1, None]}
    text = json_text(value)
    assert not hidden_in(text) and "é" in text and json.loads(text) == value


def test_a_traceback_is_safe(capsys):
    try:
        raise KeyError(POISON)
    except KeyError as error:
        print_traceback(type(error), error, error.__traceback__)
    said = capsys.readouterr().err
    assert not hidden_in(said) and said.startswith("Traceback") and "raise KeyError(POISON)" in said


def test_the_log_of_a_run_is_safe_too(tmp_path):
    LoggingObserver(SilentObserver(), tmp_path).message(f"note: {POISON}")
    assert not hidden_in((tmp_path / "run.log").read_text())


@pytest.mark.parametrize("level", ["info", "debug"])
def test_the_words_of_a_users_error_reach_no_terminal_raw(tmp_path, capsys, level):
    (tmp_path / "mine.py").write_text(f"raise ValueError('cannot read ' + {POISON!r})\n")
    assert main(["run", f"{tmp_path}/mine.py:mine", "--out", str(tmp_path / "run"), "--log-level", level]) == 2
    said = capsys.readouterr().err
    assert "cannot read <U+001B>" in said and not hidden_in(said)


@pytest.mark.parametrize(
    ("number", "thing", "said"),
    [(1, "step", "1 step"), (0, "step", "0 steps"), (1, "batch", "1 batch"), (2000, "batch", "2,000 batches")],
)
def test_a_count_has_its_plural(number, thing, said):
    assert count_of(number, thing) == said


@pytest.mark.parametrize(
    ("description", "first"),
    [
        ("Games (Kirchner et al. 2024): two provers. More.", "Games (Kirchner et al. 2024): two provers."),
        ("Works on words,\ne.g. long ones. And more.\n\nDetails.", "Works on words, e.g. long ones."),
        ("No full stop", "No full stop"),
    ],
    ids=["et-al", "eg", "none"],
)
def test_the_first_sentence_of_a_description(description, first):
    """The page of a run cut it at "et al."."""
    assert first_sentence(description) == first
