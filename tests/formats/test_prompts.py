from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cotrain.formats.role_prompts import REVIEW, REVIEW_FULL
from cotrain.prompts.templates import SOLVE, SOLVE_FULL, fields_of, fill_template
from tests.sentences import refuses


def test_the_embedded_bases_prompts():
    assert fill_template(SOLVE, problem="How many?") == "How many?\nSolve:"
    assert fill_template(REVIEW, problem="How many?", solution="<step>1</step>") == "How many?\n<step>1</step>\nReview:"


def test_fields():
    assert fields_of(SOLVE_FULL) == {"problem"}
    assert fields_of(REVIEW_FULL) == {"problem", "solution", "count", "nonce"}
    assert fields_of("{a}{a} {b} {not a name} {} {a{c} { d} } {") == {"a", "b", "c"}
    assert fill_template(r"\boxed{{n}} {x y} {", n=3) == r"\boxed{3} {x y} {"
    assert "K = 3 steps" in fill_template(REVIEW_FULL, problem="p", solution="s", count=3, nonce="0")


@given(problem=st.text(), solution=st.text())
def test_values_are_copied_and_never_read(problem, solution):
    assert fill_template(REVIEW, problem=problem, solution=solution) == problem + "\n" + solution + "\nReview:"
    hostile = "{solution}{problem}{{}}{0.__class__}%s"
    assert fill_template(REVIEW, problem=hostile, solution=solution) == hostile + "\n" + solution + "\nReview:"


def test_wrong_fields_are_named():
    with refuses("E_TEMPLATE_FIELDS", names=("['solution']", "none")):
        fill_template(REVIEW, problem="p")
    with refuses("E_TEMPLATE_FIELDS", names=("none", "['solutoin']")):
        fill_template(SOLVE, problem="p", solutoin="s")
