"""Self-checks, verdicts on reviews and searches: what is read, and what is refused and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.formats.role_replies import Query, meta_verdict, search_query, self_check
from cotrain.formats.solutions import SelfCheck

SOLUTION = "<step> a=1</step><step> b=2</step><answer> 2 </answer>"
CHECK = "<step>|1 CORRECT</step><step>|2 INCORRECT</step><final>INCORRECT</final>"


def test_a_self_check_is_cut_in_two():
    read = self_check(SOLUTION + CHECK)
    assert isinstance(read, SelfCheck) and read.ok and (read.text, read.analysis) == (SOLUTION, CHECK)
    assert read.format_score == 1.0
    assert (read.answer, [s.text for s in read.steps]) == ("2", [" a=1", " b=2"])
    assert (read.review.steps, read.review.final) == ((True, False), False)


@pytest.mark.parametrize(
    ("text", "reason", "score"),
    [
        (SOLUTION, "check: no final verdict", 0.2),
        (SOLUTION + CHECK.replace("<step>|1 CORRECT</step>", ""), "check: step count", 0.2),
        (SOLUTION + SOLUTION + CHECK, "check: step count", 0.2),
        (CHECK, "stray tag", 0.0),
        ("", "no steps", 0.0),
        ("x" * 200_000, "too long", 0.0),
    ],
)
def test_half_a_self_check_is_none(text, reason, score):
    read = self_check(text)
    assert not read.ok and (read.reason, read.format_score) == (reason, score)


def test_a_meta_verdict_may_follow_reasoning():
    text = "The second verdict is unfounded: 12+4=16.\n <final> INCORRECT</final>"
    read = meta_verdict(text)
    assert read.ok and read.final is False and read.steps == ()
    assert text[read.final_span.start : read.final_span.end] == read.final_span.text == "INCORRECT"
    assert meta_verdict("<final>CORRECT</final>").final is True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sound", "no final verdict"),
        ("<final>CORRECT</final><final>INCORRECT</final>", "several finals"),
        ("<final>maybe</final>", "bad final verdict"),
        ("<final>CORRECT</final> or not", "stray text"),
        ("<final>CORRECT", "unclosed final"),
        ("The review says <final>CORRECT</final>", "verdict inside a sentence"),
    ],
)
def test_what_is_no_meta_verdict(text, reason):
    assert meta_verdict(text).reason == reason


def test_a_verdict_inside_a_sentence_is_well_formed_but_for_its_place():
    assert meta_verdict("The review says <final>CORRECT</final>").format_score == 0.6


def test_searches():
    assert search_query("I need <search> pears </search> and <search>nuts</search>") == Query(text="pears")
    assert search_query("<search> </search>").reason == "empty search"
    for text in ("pears", "<search>pears", "</search>pears<search>"):
        assert search_query(text).reason == "no search"


@given(
    st.lists(
        st.sampled_from(
            ["<step>", "</step>", "<final>", "</final>", "<answer>", "</answer>", "CORRECT", " a", "<search>"]
        )
    )
)
def test_every_text_has_a_value(pieces):
    text = "".join(pieces)
    for read in (self_check(text), meta_verdict(text), search_query(text)):
        assert read.ok or read.reason
