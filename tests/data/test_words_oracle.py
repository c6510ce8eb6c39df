"""The strict step parser and the oracle, on a problem worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.data.word_problems.oracle import Step, grade_steps, parse_integer, parse_step, read_steps
from cotrain.data.word_problems.problem import Fact, assemble_problem

PROBLEM = assemble_problem(
    (
        Fact(target="apples", kind="given", right=12),
        Fact(target="pears", kind="plus", left="apples", right=4),
        Fact(target="plums", kind="difference", left="pears", right="apples"),
        Fact(target="pies", kind="minus", left="apples", right=2),
        Fact(target="eggs", kind="times", left="plums", right=3),
    ),
    "eggs",
    family="plain",
)
RIGHT = (" pears= apples+4=12+4=16 pears", " plums= pears- apples=16-12=4 plums", " eggs= plums*3=4*3=12 eggs")


def reasons(*steps: str) -> tuple[str, ...]:
    return grade_steps(PROBLEM, steps).reasons


def test_the_exact_solution_is_right():
    assert PROBLEM.steps == RIGHT
    judgement = grade_steps(PROBLEM, RIGHT)
    assert judgement.ok == (True, True, True) and judgement.first_wrong is None


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (" pears= 4+ apples=4+12=16 pears", "malformed"),  # a number has no space
        (" pears=4+ apples=4+12=16 pears", ""),  # commuted
        (" pears= apples+4=12+4=17 pears", "arithmetic"),
        (" pears= apples+4=12-4=8 pears", "arithmetic"),  # not the operator of its own relation
        (" pears= apples+4=13+4=17 pears", "premise"),
        (" pears= apples+4=12+5=17 pears", "premise"),
        (" pears= apples-4=12-4=8 pears", "relation"),
        (" pears= apples+5=12+5=17 pears", "relation"),
        (" pears= nuts+4=12+4=16 pears", "relation"),
        (" pears=12+4=12+4=16 pears", "relation"),
        (" apples= pears-4=16-4=12 apples", "relation"),  # a given fact is not derived
        (" stars= apples+4=12+4=16 stars", "relation"),
        (" pies= apples-2=12-2=10 pies", "unneeded"),
        (" plums= pears- apples=16-12=4 plums", "premise"),  # pears are not worked out yet
        ("pears= apples+4=12+4=16", "malformed"),
        (" pears= apples+4=12+4=16 ", "malformed"),
        (" pears= apples+4=16", "malformed"),
        (" pears= apples+4=12+4=016 pears", "malformed"),
        (" pears= apples+4=12+4=+16", "malformed"),
        (" pears= apples+-4=12+-4=8 pears", "malformed"),  # constants have no sign
        (" pears= apples+4=12+4=16=16", "malformed"),
        ("", "malformed"),
    ],
)
def test_first_step(step: str, reason: str):
    assert reasons(step) == (reason,)


def test_a_step_that_goes_on_from_a_wrong_value_is_right():
    steps = (" pears= apples+4=12+4=10 pears", " plums= pears- apples=10-12=-2 plums", " eggs= plums*3=-2*3=-6 eggs")
    assert reasons(*steps) == ("arithmetic", "", "")
    assert grade_steps(PROBLEM, steps).first_wrong == 0
    back_to_truth = (steps[0], RIGHT[1])
    assert reasons(*back_to_truth) == ("arithmetic", "premise")


def test_the_latest_claim_counts_and_repeating_is_wrong():
    assert reasons(RIGHT[0], " pears= apples+4=12+4=20 pears", " plums= pears- apples=20-12=8 plums") == (
        "",
        "repeated",
        "",
    )
    assert reasons(RIGHT[0], "nonsense", RIGHT[1]) == ("", "malformed", "")


def test_commuted_products_and_no_commuted_differences():
    assert reasons(*RIGHT[:2], " eggs=3* plums=3*4=12 eggs") == ("", "", "")
    assert reasons(RIGHT[0], " plums= apples- pears=12-16=-4 plums") == ("", "relation")


def test_modular_arithmetic():
    facts = (Fact(target="apples", kind="given", right=7), Fact(target="pears", kind="plus", left="apples", right=8))
    problem = assemble_problem(facts, "pears", family="plain", modulus=10)
    assert grade_steps(problem, (" pears= apples+8=7+8=5 pears",)).ok == (True,)
    assert grade_steps(problem, (" pears= apples+8=7+8=15 pears",)).reasons == ("arithmetic",)


def test_readings_keep_what_was_known_and_claimed():
    first, second, third = read_steps(PROBLEM, (" pears= apples+4=12+4=10 pears", "x=7", " pears"))
    assert first.known == {"apples": 12} and first.claim == "10"
    assert second.known == {"apples": 12, "pears": 10} and (second.step, second.claim) == (None, "7")
    assert third.claim == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0", 0), ("-7", -7), ("120", 120)),
        *((bad, None) for bad in ("", "-", "-0", "007", "1.0", "1 ", "²", "٣", "--1", "1" * 10)),
    ],
)
def test_integer(text: str, value: int | None):
    assert parse_integer(text) == value


NOUN = st.from_regex("[a-z]{1,8}", fullmatch=True)
VALUE = st.integers(-99999, 99999)
OPERAND = st.one_of(NOUN, st.integers(0, 99999))


@pytest.mark.whole
@given(NOUN, OPERAND, st.sampled_from("+-*"), OPERAND, VALUE, st.sampled_from("+-*"), VALUE, VALUE)
def test_what_is_written_is_read_back(target, left, operator, right, left_value, value_operator, right_value, result):
    a, b = (f" {side}" if isinstance(side, str) else side for side in (left, right))
    text = f" {target}={a}{operator}{b}={left_value}{value_operator}{right_value}={result} {target}"
    assert parse_step(text) == Step(
        target=target,
        left=left,
        operator=operator,
        right=right,
        left_value=left_value,
        value_operator=value_operator,
        right_value=right_value,
        result=result,
    )


@given(st.lists(st.one_of(st.text(), st.text(alphabet=" =+-*0123456789apers"), st.sampled_from(RIGHT)), max_size=6))
def test_any_text_gets_a_judgement(steps: list[str]):
    judgement = grade_steps(PROBLEM, tuple(steps))
    assert len(judgement.ok) == len(judgement.reasons) == len(steps)
    assert all(ok == (reason == "") for ok, reason in zip(judgement.ok, judgement.reasons, strict=True))


def test_long_text_is_read_in_linear_time():
    assert reasons("+" * 200_000, "=" * 200_000, " a" * 100_000, "1" * 200_000) == ("malformed",) * 4
