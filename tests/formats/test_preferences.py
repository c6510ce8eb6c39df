from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_texts import grm, harmless, reason, words

from cotrain.formats.preferences import Preference, Ratings, read_gram, read_grm, read_rmr1, read_thinkrm, write_gram
from tests.verdict_writers import write_grm, write_rmr1, write_thinkrm

# -- RM-R1


def test_rmr1():
    text = write_rmr1("accuracy, 60%", "A is sound, <quote_B>B</quote_B> is not", True)
    parsed = read_rmr1(text)
    assert isinstance(parsed, Preference)
    assert (parsed.margin, parsed.final, parsed.score, parsed.steps) == (1, True, 1.0, ())
    assert (words(text, parsed), parsed.format_score) == (["A"], 1.0)
    bare = read_rmr1("<answer>[[B]]</answer>")
    assert (bare.final, bare.score, bare.format_score) == (False, 0.0, 0.2)
    assert read_rmr1("<solution>x</solution><eval>e</eval>\n<answer> [[B]] </answer>").format_score == 1.0
    assert read_rmr1("I lean to [[B]]." + "." * 80 + "<answer>[[A]]</answer>").final is True


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[A]]", "no answer"),
        ("<answer>A</answer>", "bad answer"),
        ("<answer>[[C]]</answer>", "bad answer"),
        ("<answer>[[A]] or [[B]]</answer>", "bad answer"),
        ("I lean to [[B]]. <answer>[[A]]</answer>", "two letters"),
        ("[[A]] <answer>[[A]]</answer>", "two letters"),
        ("<answer>[[A]]</answer>" + "." * 80 + "<answer>[[B]]</answer>", "several answers"),
        ("not <answer>[[A]]</answer>", "answer taken back"),
        ("<answer>[[A]]</answer> but", "text after answer"),
    ],
)
def test_what_is_no_comparison(text, why):
    assert reason(read_rmr1(text)) == why


@given(rubric=harmless, evaluation=harmless, first=st.booleans())
def test_written_comparisons_are_read_back(rubric, evaluation, first):
    parsed = read_rmr1(write_rmr1(rubric, evaluation, first))
    assert isinstance(parsed, Preference) and (parsed.final, parsed.format_score) == (first, 1.0)


# -- Think-RM


def test_thinkrm():
    text = "<think>maybe <answer>B</answer>?</think>A explains more.\n<answer>A</answer>"
    parsed = read_thinkrm(text)
    assert isinstance(parsed, Preference)
    assert (parsed.margin, parsed.final, parsed.score, parsed.format_score) == (1, True, 1.0, 1.0)
    assert words(text, parsed) == ["A"]
    assert read_thinkrm("<answer>B</answer>") == Preference(
        margin=-1, spans=read_thinkrm("<answer>B</answer>").spans, format_score=0.6
    )
    assert read_thinkrm("well</think><answer>B</answer>").format_score == 1.0


@pytest.mark.parametrize(
    ("number", "margin", "final", "score"),
    [
        ("-3", 3, True, 1.0),
        ("-1", 1, True, 2 / 3),
        ("0", 0, None, 0.5),
        ("+2", -2, False, 1 / 6),
        ("3", -3, False, 0.0),
    ],
)
def test_grades(number, margin, final, score):
    parsed = read_thinkrm(f"<think></think><answer> {number}\n</answer>", graded=True)
    assert (parsed.margin, parsed.limit, parsed.final, parsed.spans) == (margin, 3, final, ())
    assert parsed.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "graded", "why"),
    [
        ("<think>t</think>A", False, "no answer"),
        ("<think>t</think><answer>2</answer>", False, "bad answer"),
        ("<think>t</think><answer>A</answer>", True, "bad answer"),
        ("<think>t</think><answer>4</answer>", True, "bad answer"),
        ("<think>t</think><answer>2.0</answer>", True, "bad answer"),
        ("<think>t</think><answer>A B</answer>", False, "bad answer"),
        ("<think>t</think><answer>A</answer><answer>B</answer>", False, "several answers"),
        ("<think>t</think>not <answer>A</answer>", False, "answer taken back"),
        ("<think>t<answer>A</answer>", False, "unclosed think"),
    ],
)
def test_what_is_no_preference(text, graded, why):
    assert reason(read_thinkrm(text, graded=graded)) == why


@given(thought=harmless, margin=st.integers(-3, 3), first=st.booleans())
def test_written_preferences_are_read_back(thought, margin, first):
    parsed = read_thinkrm(write_thinkrm(thought, margin, graded=True), graded=True)
    assert isinstance(parsed, Preference) and (parsed.margin, parsed.limit) == (margin, 3)
    binary = read_thinkrm(write_thinkrm(thought, 1 if first else -1))
    assert isinstance(binary, Preference) and (binary.final, binary.limit) == (first, 1)


def test_what_cannot_be_written():
    with pytest.raises(ValueError, match="1 or -1, not 0"):
        write_thinkrm("", 0)
    with pytest.raises(ValueError, match=r"-3 \.\.\. 3, not 4"):
        write_thinkrm("", 4, graded=True)


# -- DeepSeek-GRM


def test_grm():
    text = (
        "<principles>\n- 60% the result is right\n\n40% clear: short\n</principles>\n"
        "<critique>[7, 7]? No.</critique>\n<scores>\\boxed{7, 10, 3}</scores>"
    )
    parsed = read_grm(text, 3)
    assert isinstance(parsed, Ratings)
    assert (parsed.points, parsed.best, parsed.final, parsed.score) == ((7, 10, 3), 1, None, None)
    assert parsed.principles == (("the result is right", 60), ("clear: short", 40))
    assert (parsed.steps, parsed.spans) == ((), ())


@pytest.mark.parametrize(
    ("points", "best", "final", "score"),
    [
        ((10,), 0, None, 1.0),
        ((1,), 0, None, 0.0),
        ((10, 1), 0, True, 1.0),
        ((1, 10), 1, False, 0.0),
        ((5, 5), None, None, 0.5),
        ((7, 7, 3), None, None, None),
    ],
)
def test_ratings(points, best, final, score):
    parsed = read_grm(write_grm([("right", 100)], "", points), len(points))
    assert (parsed.points, parsed.best, parsed.final, parsed.score) == (points, best, final, score)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "bad order"),
        ("<scores>[7, 3]</scores>", "bad order"),
        (grm() + "<scores>[7, 3]</scores>", "bad order"),
        ("Sure. " + grm(), "stray text"),
        (grm() + " I changed my mind.", "stray text"),
        (grm(principles=""), "bad principles"),
        (grm(principles="right"), "bad principles"),
        (grm(principles="100%"), "bad principles"),
        (grm(principles="0% right"), "bad principles"),
        (grm(principles="101% right"), "bad principles"),
        (grm(principles="²% right"), "bad principles"),
        (grm(principles="50% right\nand so on"), "bad principles"),
        (grm(scores="[7, 11]"), "bad scores"),
        (grm(scores="[7, 0]"), "bad scores"),
        (grm(scores="[7, 3.5]"), "bad scores"),
        (grm(scores="[7 3]"), "bad scores"),
        (grm(scores="[7, 3] or [3, 7]"), "bad scores"),
        (grm(scores="7"), "score count"),
        (grm(scores="[7, 3, 1]"), "score count"),
        (grm()[:-9], "unclosed scores"),
    ],
)
def test_what_are_no_ratings(text, why):
    assert reason(read_grm(text, 2)) == why


line = st.text(min_size=1).filter(lambda t: len(t.splitlines()) == 1 and t == t.strip() and "<" not in t and t)


@given(
    principles=st.lists(st.tuples(line, st.integers(1, 100)), min_size=1, max_size=4),
    critique=harmless,
    points=st.lists(st.integers(1, 10), min_size=1, max_size=6),
)
def test_written_ratings_are_read_back(principles, critique, points):
    parsed = read_grm(write_grm(principles, critique, points), len(points))
    assert parsed == Ratings(points=tuple(points), principles=tuple(principles))


# -- GRAM


def test_gram():
    parsed = read_gram(" B\n")
    assert isinstance(parsed, Preference) and (parsed.final, parsed.score) == (False, 0.0)
    assert words(" B\n", parsed) == ["B"]
    assert all(read_gram(write_gram(first)).final is first for first in (True, False))
    for text in ("", "a", "AB", "A B", "Response A", "not A", "A."):
        assert reason(read_gram(text)) == "bad label"
