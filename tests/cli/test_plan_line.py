"""The first lines of a run say who learns when, how often, and how steps are paid."""

import pytest

from cotrain.cli.main import main
from cotrain.cli.plan_line import plan_lines
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango

TURNS = "plan: 40 × verifier, then in turn 3 × generator (Ng), 1 × verifier (Nv)"
UPDATES = "  updates in 160 steps: generator 90, verifier 70"


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (
            {"advantage_mix": "reward"},
            [TURNS, UPDATES, "  generator: r = outcome + α · mean(step), α 0.1 → 0.001 (decay)"],
        ),
        (
            {"advantage_mix": "reward", "step_scale": "one", "alpha": 0.5, "alpha_end": 0.5, "format_reward": 0.1},
            [TURNS, UPDATES, "  generator: r = outcome + 0.1 · format + α · sum(step), α 0.5"],
        ),
        ({}, [TURNS, UPDATES, "  generator: A = (1 − α) · A(outcome) + α · A(step), α 0.1 → 0.001 (decay)"]),
        (
            {"advantage_mix": "add", "simultaneous": True, "steps": 4},
            [
                "plan: every step generator and verifier",
                "  updates in 4 steps: generator 4, verifier 4",
                "  generator: A = A(outcome) + α · A(step), α 0.1 → 0.001 (decay)",
            ],
        ),
    ],
    ids=["reward", "sum", "convex", "at once"],
)
def test_the_plan_of_a_run(settings, lines):
    found = plan_lines(tango(**settings))
    assert found == lines and max(map(len, found)) <= 80


def test_one_policy_that_is_paid_for_answers_has_no_plan_to_tell():
    assert plan_lines(grpo()) == []


@pytest.mark.whole
def test_they_are_the_first_lines_of_a_run(tmp_path, capsys):
    words = ["run", "tango", "--smoke", "--advantage-mix", "reward", "--threads", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    first, second, third = capsys.readouterr().out.splitlines()[:3]
    assert first == "plan: 1 × verifier, then in turn 1 × generator (Ng), 1 × verifier (Nv)"
    assert second.startswith("  updates in 3 steps: ")
    assert third.startswith("  generator: r = outcome + α · mean(step)")
