from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.core.types import ParseFailure, Span
from cotrain.formats.answers import final_answer
from cotrain.formats.role_replies import Review, corrected_review, step_verdicts, write_review
from cotrain.formats.solutions import MAX_CHARS, Solution, tagged_solution, without_thought, write_solution

PIECES = ["<step>", "</step>", "<answer>", "</answer>", "<final>", "</final>", "CORRECT", "INCORRECT", "\\boxed{"]
PIECES += ["}", "{", "\\", "####", " ", "\n", "a", "4", "<", "</", ">", "not", "é", "\x00", "\ud800"]
soup = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
harmless = st.text().filter(lambda t: not any(tag in t for tag in PIECES[:6]) and without_thought(t) == t)


def reason(result: Solution | Review | ParseFailure) -> str:
    assert isinstance(result, ParseFailure), result
    assert not result.ok
    return result.reason


# -- solutions


def test_a_solution():
    text = "<step> pears= apples+4=12+4=16 pears</step><step> b</step>\n<answer> 4 </answer>"
    parsed = tagged_solution(text)
    assert parsed == Solution(
        steps=(Span(start=6, end=36, text=" pears= apples+4=12+4=16 pears"), Span(start=49, end=51, text=" b")),
        answer="4",
    )
    assert parsed.ok and parsed.format_score == 1.0
    assert all(text[s.start : s.end] == s.text for s in parsed.steps)


@pytest.mark.parametrize(
    ("text", "why", "score"),
    [
        ("", "no steps", 0.0),
        ("four", "no steps", 0.0),
        ("<answer>4</answer>", "no steps", 0.2),
        ("<step>a</step>", "no answer", 0.2),
        ("<step>a</step><answer> </answer>", "no answer", 0.2),
        ("<step>a</step><answer>4</answer><answer>5</answer>", "several answers", 0.2),
        ("<step>a</step><answer>4</answer><answer></answer>", "several answers", 0.6),
        ("<answer>4</answer><step>a</step>", "answer before steps", 0.6),
        ("<step>a<step>b</step><answer>4</answer>", "unclosed step", 0.6),
        ("<step>a<answer>4</answer>", "unclosed step", 0.0),
        ("<step>a</step><step>b", "unclosed step", 0.0),
        ("<step>a</step><answer>4", "unclosed answer", 0.0),
        ("<step>a</step></step><answer>4</answer>", "stray tag", 0.6),
        ("<step>a</step><answer>4</answer><final>CORRECT</final>", "stray tag", 0.6),
        ("<step>a</step><answer>4</answer>" + " " * MAX_CHARS, "too long", 0.0),
    ],
)
def test_what_is_no_solution(text, why, score):
    parsed = tagged_solution(text)
    assert (reason(parsed), parsed.format_score) == (why, score)


def test_text_outside_of_the_tags_costs_format_but_not_the_solution():
    parsed = tagged_solution("Well. <step>a</step> so <answer>4</answer>")
    assert parsed.ok and parsed.format_score == 0.6


@pytest.mark.whole
@given(steps=st.lists(harmless, min_size=1, max_size=5), answer=harmless.filter(lambda t: t.strip()))
def test_written_solutions_are_read_back(steps, answer):
    parsed = tagged_solution(write_solution(steps, answer))
    assert isinstance(parsed, Solution)
    assert [s.text for s in parsed.steps] == steps
    assert parsed.answer == answer.strip() == final_answer(write_solution(steps, answer))


# -- answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>3</answer> no, <answer> 4 </answer>", "4"),
        ("<answer><answer>5</answer>", "5"),
        ("<answer>5", None),
        ("<answer> </answer>", None),
        (r"\boxed{3} then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{} \\boxed{", None),
        (r"\boxed{{}}", "{}"),
        (r"\boxed{3} then \boxed{4", "3"),
        (r"{ \boxed{a \boxed{b} c} }", "b"),
        (r"\boxed{5} <answer>4</answer>", "4"),
        ("work\n#### 1,234\nmore", "1,234"),
        ("####", None),
        ("#### 1\n#### 2", "2"),
        ("it is 5", None),
        ("", None),
    ],
)
def test_final_answers(text, answer):
    assert final_answer(text) == answer


# -- reviews


def verdicts_of(text: str, count: int) -> tuple[tuple[bool, ...], bool]:
    """The verdicts of a text that must be a review, after a look at where the final one stands."""
    review = step_verdicts(text, count)
    assert isinstance(review, Review), review
    assert review.ok and review.format_score == 1.0
    span = review.final_span
    assert text[span.start : span.end] == span.text and "CORRECT" in span.text
    assert span.start > text.index("<final>") and span.end <= text.index("</final>")
    assert ("INCORRECT" not in span.text) == review.final
    return review.steps, review.final


def test_a_review():
    text = "<step> pears= apples+4=12+4=16|16 CORRECT</step><step> b=16-12=4|5 INCORRECT</step><final>INCORRECT</final>"
    assert verdicts_of(text, 2) == ((True, False), False)
    boxed = "<step>x \\boxed{CORRECT}\n</step>\n<step>INCORRECT</step>\n<final> \\boxed{CORRECT} </final>\n"
    assert verdicts_of(boxed, 2) == ((True, False), True)
    assert verdicts_of("<final>CORRECT</final>", 0) == ((), True)


GOOD = "<step>a CORRECT</step>"
END = "<final>CORRECT</final>"


@pytest.mark.parametrize(
    ("text", "why", "score"),
    [
        ("", "no final verdict", 0.0),
        ("CORRECT", "no final verdict", 0.0),
        (GOOD, "no final verdict", 0.2),
        (GOOD + END + END, "several finals", 0.2),
        (GOOD + "<final>CORRECT</final><final>INCORRECT</final>", "several finals", 0.2),
        (GOOD + "<final>correct</final>", "bad final verdict", 0.2),
        (GOOD + "<final>it is CORRECT</final>", "bad final verdict", 0.2),
        (GOOD + "<final></final>", "bad final verdict", 0.2),
        (END + GOOD, "final before steps", 0.2),
        (END, "no steps", 0.0),
        (GOOD + GOOD + END, "step count", 0.2),
        ("<step>a</step>" + END, "bad step verdict", 0.2),
        ("<step>CORRECT, I think</step>" + END, "bad step verdict", 0.2),
        ("<step>aCORRECT</step>" + END, "bad step verdict", 0.2),
        ("<step>a CORRECT.</step>" + END, "bad step verdict", 0.2),
        ("<step>CORRECT/INCORRECT</step>" + END, "bad step verdict", 0.2),
        ("Sure! " + GOOD + END, "stray text", 0.6),
        (GOOD + "CORRECT" + END, "stray text", 0.6),
        (GOOD + "</step>" + END, "stray text", 0.6),
        (GOOD + END + "<step>", "unclosed step", 0.6),
        (GOOD + "<final>CORRECT", "unclosed final", 0.0),
        ("<step>a " + GOOD + END, "unclosed step", 0.6),
        (GOOD + END + " " * MAX_CHARS, "too long", 0.0),
    ],
)
def test_what_is_no_review(text, why, score):
    parsed = step_verdicts(text, 1)
    assert (reason(parsed), parsed.format_score) == (why, score)


@pytest.mark.parametrize(
    "inside",
    ["not CORRECT", "isn't CORRECT", "CORRECT or INCORRECT", "INCORRECT. CORRECT", "\\boxed{CORRECT} INCORRECT"],
)
def test_verdicts_that_are_taken_back_are_none(inside):
    assert reason(step_verdicts(f"<step>{inside}</step>{END}", 1)) == "bad step verdict"


@pytest.mark.parametrize("inside", ["So it is correct. CORRECT", "the answer is no: CORRECT", "it is CORRECT"])
def test_verdicts_that_only_look_taken_back(inside):
    assert verdicts_of(f"<step>{inside}</step>{END}", 1) == ((True,), True)


words = st.lists(st.sampled_from(["CORRECT", "INCORRECT", "claims", "16", "|", "\\boxed{CORRECT}", "x"]), max_size=8)


@pytest.mark.whole
@given(reviews=st.lists(st.tuples(words, st.booleans()), max_size=5), final=st.booleans())
def test_written_reviews_are_read_back_and_words_inside_are_no_verdicts(reviews, final):
    derivations = [" ".join([*inside, "so"]) for inside, _ in reviews]
    verdicts = tuple(verdict for _, verdict in reviews)
    text = write_review(derivations, verdicts, final)
    assert verdicts_of(text, len(verdicts)) == (verdicts, final)
    assert not step_verdicts(text, len(verdicts) + 1).ok


# -- every string


@pytest.mark.whole
@settings(max_examples=400)
@given(text=soup, count=st.integers(0, 3))
def test_nothing_raises_and_scores_stay_in_range(text, count):
    answer = final_answer(text)
    assert answer is None or answer == answer.strip() != ""
    solution, review = tagged_solution(text), step_verdicts(text, count)
    assert 0.0 <= solution.format_score <= 1.0 and 0.0 <= review.format_score <= 1.0
    if isinstance(solution, Solution):
        assert solution.answer == answer
        assert all(text[s.start : s.end] == s.text for s in solution.steps)
    if isinstance(review, Review):
        assert len(review.steps) == count
        assert text.count("<step>") == text.count("</step>") == count
    else:
        assert review.format_score < 1.0


@pytest.mark.whole
@pytest.mark.parametrize(
    "unit", ["<", "<step>", "<step>a</step>", "\\boxed{", "{", "####", "<answer>", "</answer>", "CORRECT ", " "]
)
def test_a_megabyte_takes_less_than_a_second(unit, monkeypatch):
    import cotrain.formats.solutions as parsers

    monkeypatch.setattr(parsers, "MAX_CHARS", 10_000_000)  # the scanners themselves, without the cap
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()
    tagged_solution(text)
    step_verdicts(text, 1)
    final_answer("\\boxed{" + text)
    assert time.process_time() - start < 9.0  # three scans, on a core that is shared; squares take minutes


@pytest.mark.parametrize(
    "said", ["<step>2 + 3 is 5 CORRECT</step><final>CORRECT</final>", "no review", "<final>CORRECT</final>"]
)
def test_a_corrected_review_says_the_truth_in_the_words_of_the_other(said):
    text = corrected_review(said, [False], True)
    review = step_verdicts(text, 1)
    assert (review.steps, review.final) == ((False,), True)
    assert ("2 + 3 is 5" in text) == ("2 + 3 is 5" in said)
