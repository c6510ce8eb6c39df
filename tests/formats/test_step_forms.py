"""Free solutions are cut into steps in the way that one names, and each step stands where it says."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.core.types import ParseFailure
from cotrain.formats.answers import free_solution
from cotrain.formats.solutions import Solution, tagged_solution
from cotrain.formats.steps import STEPS_AS, steps_in, steps_kind_of
from tests.sentences import refuses

NUMBERED = """Sure! Here is how:

1. **Add**: 3 + 4 = 7. A list inside:
   1. of one
2) So 7 * 2 = 14.

The answer is 14."""


def cut(text, kind):
    return [step.text for step in steps_in(text, kind)]


def test_one_text_in_each_way():
    assert cut(NUMBERED, "tags") == []
    assert cut(NUMBERED, "lines") == [line.strip() for line in NUMBERED.split("\n") if line]
    assert cut(NUMBERED, "numbered") == [
        "**Add**: 3 + 4 = 7. A list inside:\n   1. of one",
        "So 7 * 2 = 14.\n\nThe answer is 14.",
    ]
    assert cut(NUMBERED, "paragraphs")[1].startswith("1. **Add**") and len(cut(NUMBERED, "paragraphs")) == 3
    assert cut(NUMBERED, "sentences")[:4] == ["Sure!", "Here is how:", "1. **Add**: 3 + 4 = 7.", "A list inside:"]
    assert cut("<step>a</step> b <step>3+4</step><step></step>", "tags") == ["a", "3+4"]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("### Step 1: Find x.\nIt is 3.\n### Step 2: Add.", ["Find x.\nIt is 3.", "Add."]),
        ("**Step 1:** 3 + 4\n**Step 2:** 7", ["3 + 4", "7"]),
        ("Step 1 - add\nStep 3: never\nStep 2 - end", ["add\nStep 3: never", "end"]),
        ("(1) one\n(2) two", ["one", "two"]),
        ("2. begins late\n3. and goes on", []),
        ("1.5 apples and 2.5 pears", []),
    ],
)
def test_numbers_count_up_from_one(text, steps):
    assert cut(text, "numbered") == steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (
            "He has 3.5 apples. Mr. Smith has 2, e.g. red ones.",
            ["He has 3.5 apples.", "Mr. Smith has 2, e.g. red ones."],
        ),
        ("Is it 3? Yes! So 4.\nThen 5.", ["Is it 3?", "Yes!", "So 4.", "Then 5."]),
        ("So \\(x=2\\). $3 are left", ["So \\(x=2\\).", "$3 are left"]),
        ("1. One thing. 2 more.", ["1. One thing.", "2 more."]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text, steps):
    assert cut(text, "sentences") == steps


def test_rules_and_lone_marks_are_no_steps():
    assert cut("Let\n\\[\nx = 2\n\\]\n---\n```", "lines") == ["Let", "x = 2"]


def test_the_way_is_the_one_that_most_texts_are_written_in():
    lines, paragraphs, flat = "a\nb is 3", "a\nb\n\nc\nd\n\ne", "He has 3. So it is 4."
    assert steps_kind_of([NUMBERED] * 3 + [flat]) == "numbered"
    assert steps_kind_of([NUMBERED] * 2 + [flat] * 2) == "sentences"
    assert steps_kind_of([paragraphs] * 4) == "paragraphs"
    assert steps_kind_of(["a\n\nb\n\nc"] * 4) == "lines"  # a paragraph is a line
    assert (
        steps_kind_of([lines] * 4) == "lines" and steps_kind_of([]) == "lines" and steps_kind_of([flat]) == "sentences"
    )


def test_a_way_that_does_not_exist_is_told():
    with refuses("E_UNKNOWN_WAY_TO_CUT_STEPS", names="'sentences'"):
        steps_in("a", "sentence")


def test_an_answer_in_tags_with_steps_before_it():
    """DeepSeek-R1-Zero's format, and worked text before the tag."""
    thought = "<think>\nThree and four.\nThat is 7.\n</think>\n<answer>7</answer>"
    solution = free_solution(thought, "tags", "lines")
    assert [s.text for s in solution.steps] == ["Three and four.", "That is 7."] and solution.answer == "7"
    assert all(thought[s.start : s.end] == s.text for s in solution.steps)
    assert (
        free_solution("a\nb<answer>7</answer>", "tags", "lines").tagged
        == "<step>a</step><step>b</step><answer>7</answer>"
    )
    assert free_solution("a <answer>7</answer> <answer>8</answer>", "tags", "lines").reason == "several answers"


def test_a_thought_is_neither_steps_nor_answer():
    text = "<think>\nThe answer is 5.\n</think>\n\nTwo and two.\nThe answer is 4."
    solution = free_solution(text, "phrase", "lines")
    assert [s.text for s in solution.steps] == ["Two and two.", "The answer is 4."] and solution.answer == "4"
    assert free_solution("<think>The answer is 5.", "phrase") == ParseFailure(reason="unclosed think", format_score=0.2)
    assert free_solution("The answer is 4.", "phrase", "numbered") == ParseFailure(reason="no steps")


TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["\n", "\n\n", "1. ", "2) ", "Step 1: ", ". ", "<step>", "</step>", "**"]), st.text(max_size=9)
    ),
    max_size=12,
).map("".join)


@pytest.mark.whole
@given(text=TEXTS, kind=st.sampled_from(STEPS_AS))
def test_steps_stand_in_the_text_in_order_and_are_read_back(text, kind):
    steps = steps_in(text, kind)
    assert all(text[s.start : s.end] == s.text and s.text.strip() == s.text != "" for s in steps)
    assert all(a.end <= b.start for a, b in pairwise(steps))
    solution = free_solution(f"{text}\nThe answer is 7.", "phrase", kind)
    if isinstance(solution, Solution):
        assert len(tagged_solution(solution.tagged).steps) == len(solution.steps)


@pytest.mark.whole
@pytest.mark.parametrize("kind", STEPS_AS)
@pytest.mark.parametrize("piece", [" ", "\n ", "1. ", ". ", '." ', "Step 1:", "((", "** ", "\n1. ", "\n\n", "<step>"])
def test_degenerate_text_is_cut_in_a_moment(kind, piece):
    began = time.process_time()
    assert isinstance(steps_in(piece * (100_000 // len(piece)), kind), tuple)
    assert time.process_time() - began < 5.0
