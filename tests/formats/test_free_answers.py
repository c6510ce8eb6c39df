"""Where answers stand in free text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.core.types import ParseFailure
from cotrain.formats.answers import READERS, answer_reader, final_answer, free_solution
from cotrain.formats.solutions import Solution, tagged_solution
from tests.sentences import refuses


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So, the answer is 32.", "32"),
        ("She pays twice.\n#### 6\nThe answer is: 6", "6"),
        ("#### 1280\nLana picked 1280 extra flowers.\n#### 1290", "1290"),
        ("2 * 3 = 6\n**39**", "39"),
        ("Final answer: 39", "39"),
        ("The final answer is: \\boxed{39}", "39"),
        ("Answer: **39 apples**", "39 apples"),
        ("**Answer:** 39", "39"),
        ("**Final Answer**: 12 km", "12 km"),
        ("The final answer is $\\frac{1}{2}$. I hope it is correct.", "\\frac{1}{2}"),
        ("The answer is that she has 39 apples left over.", "39"),
        ("The answer is 1,234.50 dollars.", "1,234.50 dollars"),
        ("The answer is 3 + 4 = 7.", "7"),
        ("So the answer is $18.", "$18"),
        ("The answer to the question is 5.", "5"),
        ("the answer is\n\n12", "12"),
        ("The answer is -5", "-5"),
        ("The answer is 4. No: the answer is 5.", "5"),
    ],
)
def test_answers_after_a_phrase(text, answer):
    assert answer_reader("phrase")(text) == answer


@pytest.mark.parametrize("text", ["", "She has 39 apples.", "He answers the phone.", "the answer is", "**a** b"])
def test_a_text_without_the_phrase_has_no_answer(text):
    assert free_solution(text, "phrase") == ParseFailure(reason="no answer")


def test_other_formats():
    text = "\\boxed{1}\n#### 2\n12 in 3.5 hours, so -4 in all."
    assert [free_solution(text, name).answer for name in ("boxed", "hash", "last-number")] == ["1", "2", "-4"]
    assert free_solution("A: red\nA: blue", r"A: (\w+)").answer == "blue"


def test_a_format_that_does_not_exist_and_a_pattern_that_cannot_be_used_are_told():
    with refuses("E_UNKNOWN_FORMAT", names="'phrase'"):
        answer_reader("phrases")
    with refuses("E_PATTERN_GROUPS", names="2 groups"):
        answer_reader("(a)(b)")
    with refuses("E_PATTERN_SYNTAX"):
        answer_reader("(a")


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        ("<think>", "</think>"),
        ("<thinking>", "</thinking>"),
        ("<thought>", "</thought>"),
        ("<Thought>", "</Thought>"),
        ("<reasoning>", "</reasoning>"),
        ("<seed:think>", "</seed:think>"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ],
    ids=lambda tag: re.sub(r"\W", "", tag)[:10],
)
def test_a_thought_in_the_tags_of_any_model_holds_no_answer(opens, closes):
    thought = f"{opens}Is it \\boxed{{7}} or <answer>7</answer>?{closes}"
    assert final_answer(f"{thought} I do not know.") is None
    assert final_answer(f"{thought} It is \\boxed{{8}}.") == "8"
    assert free_solution(f"{thought} I do not know.", "boxed") == ParseFailure(reason="no answer")
    found = free_solution(f"{thought}\nIt is \\boxed{{8}}.", "boxed")
    assert found.answer == "8" and [step.text for step in found.steps] == ["It is \\boxed{8}."]
    assert free_solution(f"{thought}<answer>8</answer>", "tags").answer == "8"
    (step,) = free_solution(f"{opens}Four and four.{closes}<answer>8</answer>", "tags").steps
    assert step.text == "Four and four."
    if opens != "<think>":  # one that is not closed may be any text
        assert final_answer(f"{opens} It is \\boxed{{8}}.") == "8"


def test_lines_are_steps_where_they_stand():
    text = "  Two and two.\n\n 2 + 2 = 4 \nThe answer is 4."
    solution = free_solution(text, "phrase")
    assert [s.text for s in solution.steps] == ["Two and two.", "2 + 2 = 4", "The answer is 4."]
    assert all(text[s.start : s.end] == s.text for s in solution.steps)


@given(text=st.text(max_size=300), name=st.sampled_from(sorted(READERS)))
def test_what_is_read_is_the_same_in_tags(text, name):
    solution = free_solution(text + "\nThe answer is 7.", name)
    if isinstance(solution, Solution):
        parsed = tagged_solution(solution.tagged)
        assert isinstance(parsed, Solution) and parsed.answer == solution.answer == final_answer(solution.tagged)
        assert len(parsed.steps) == len(solution.steps)


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(READERS))
@pytest.mark.parametrize("piece", ["answer is ", "**", "#### ", "1,234.", "\\boxed{", "answer to a ", "<step>", "-.5/"])
def test_degenerate_text_is_read_in_a_moment(name, piece):
    text = piece * (100_000 // len(piece))
    assert isinstance(free_solution(text, name), Solution | ParseFailure)


def test_a_number_with_commas_is_one_number_however_it_begins():
    assert answer_reader("last-number")("It took 1044,000,000 years.") == "1044,000,000"
    assert answer_reader("last-number")("It took 4, 12,345 and 7.") == "7"


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("boxed", "so \\boxed {42}.", "42"),
        ("boxed", "so $\\boxed 42$.", "42"),
        ("boxed", "so \\fbox{42}", "42"),
        ("boxed", "\\boxed{42}. I was to write it in \\boxed{}.", "42"),
        ("hash", "#### 42\n#### \n", "42"),
        ("hash", "#### 42 ####", "42"),
        ("hash", "##### 42", "42"),
        ("hash", "#### 42. That is all.\nBye.", "42"),
        ("last-number", "It has 5 cm^2, or 5 m^{-2}.", "5"),
        ("last-number", "It is 10^5 of x^2.", "10^5"),
        ("last-number", "It is 2^{10}.", "2^{10}"),
        ("last-number", "It is 5 / 6.", "5 / 6"),
        ("last-number", "It is 10%-20%.", "20%"),
        ("last-number", "It is 0.\\overline{3}.", "0.\\overline{3}"),
        ("last-number", "It is 0.1(6).", "0.1(6)"),
        ("phrase", "The answer is $5$, $6$, and $7$.", "5, 6, and 7"),
        ("phrase", "The answers are 5 and 6.", "5 and 6"),
        ("phrase", "The answer is 42, as required.", "42"),
        ("phrase", "The answer is 5 (not 6).", "5"),
        ("phrase", "The answer is:\n- 42", "42"),
        ("phrase", "The answer is - 42", "- 42"),
        ("phrase", "The answer is 5 hours 30 minutes.", "5 hours 30 minutes"),
        ("phrase", "The answer is not $5$.", "not 5"),
        ("phrase", "The answer is at least $5$.", "at least 5"),
        ("phrase", "The answer is no more than 5.", "no more than 5"),
        ("phrase", "The answer is the square root of 5.", "the square root of 5"),
        ("phrase", "The answer is $5$, or maybe $6$.", "5, or maybe 6"),
        ("phrase", "The answer is 5 or possibly 6.", "5 or possibly 6"),
        ("phrase", "The answer is 5 if x>0 and 6 otherwise.", "5 if x>0 and 6 otherwise"),
        ("phrase", "The answer is 42; done.", "42"),
        ("phrase", "The answer is 42, i.e. forty-two.", "42"),
        ("phrase", "The answer is *42*.", "42"),
        ("phrase", "The answer is 0.333...", "0.333..."),
        ("phrase", "The answer is Mr. Smith.", "Mr. Smith"),
        ("last-number", "It is 1.000.000 in all.", "1.000.000"),
        ("phrase", "The answer is $\\begin{aligned}x&=1\\\\y&=2\\end{aligned}$", "x =1, y =2"),
    ],
)
def test_marks_written_otherwise(name, text, answer):
    assert free_solution(text, name).answer == answer
