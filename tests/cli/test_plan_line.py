"""The first lines of a run say who learns when, how often, and how steps are paid."""

import pytest

from cotrain.cli.dry_run import WIDTH, as_comments
from cotrain.cli.main import main
from cotrain.cli.plan_line import plan_lines
from cotrain.recipes.gram import gram
from cotrain.recipes.grpo import grpo
from cotrain.recipes.self_verify import self_verify
from cotrain.recipes.spin import spin
from cotrain.recipes.tango import tango

TURNS = ["plan: verifier learns for 40 steps", "then, in turn: generator for 3 steps, verifier for 1 step"]
UPDATES = "updates in 160 steps: generator 90, verifier 70"


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (
            {"advantage_mix": "reward"},
            [*TURNS, UPDATES, "generator's reward: r = outcome + α · mean(step)", "α: 0.1 → 0.001 (decay)"],
        ),
        (
            {"advantage_mix": "reward", "step_scale": "one", "alpha": 0.5, "alpha_end": 0.5, "format_reward": 0.1},
            [*TURNS, UPDATES, "generator's reward: r = outcome + 0.1 · format + α · sum(step)", "α: 0.5"],
        ),
        (
            {},
            [
                *TURNS,
                UPDATES,
                "generator's advantage: A = (1 − α) · A(outcome) + α · A(step)",
                "α: 0.1 → 0.001 (decay)",
            ],
        ),
        (
            {"advantage_mix": "add", "simultaneous": True, "steps": 4},
            [
                "plan: generator and verifier learn in every step",
                "updates in 4 steps: generator 4, verifier 4",
                "generator's advantage: A = A(outcome) + α · A(step)",
                "α: 0.1 → 0.001 (decay)",
            ],
        ),
    ],
    ids=["reward", "sum", "convex", "at once"],
)
def test_the_plan_of_a_run(settings, lines):
    first, *others = plan_lines(tango(**settings))
    assert [first, *(line.removeprefix("      ") for line in others)] == lines
    assert all(len(line) <= 80 for line in (first, *others))


def test_phases_in_which_the_same_policy_learns_are_named():
    """Self-verification had "model for 5 steps, model for 1 step", and SPIN the generator twice."""
    first, *_ = plan_lines(self_verify())
    assert first == "plan: in turn: model (generator) for 5 steps, model (verifier) for 1 step"
    first, second, *_ = plan_lines(spin(iteration=3))
    assert first == "plan: generator (opponent) learns for 3 steps"
    assert second.strip() == "then, in turn: generator (opponent) for 1 step, generator (former) for 1 step"
    first, second, *_ = plan_lines(gram(unlabelled=1, warmup=1))  # two lines that were the same
    assert first == "plan: judge (pairs) learns for 1 step"
    assert second.strip() == "judge (judge) learns for 1 step"


def test_one_policy_that_is_paid_for_answers_has_no_plan_to_tell():
    assert plan_lines(grpo()) == []


def test_a_long_line_of_a_dry_run_is_broken_and_stays_a_comment():
    line = "memory on cpu, estimated: " + ", ".join(f"part-{n} {n} MiB" for n in range(20))
    comments = as_comments(line)
    assert len(comments) > 1 and all(one.startswith("# ") and len(one) <= WIDTH + 2 for one in comments)
    assert " ".join(one.removeprefix("# ").strip() for one in comments) == line
    assert as_comments("") == ["#"] and as_comments("      then, in turn") == ["#       then, in turn"]


@pytest.mark.whole
def test_they_are_the_first_lines_of_a_run(tmp_path, capsys):
    words = ["run", "tango", "--smoke", "--advantage-mix", "reward", "--threads", "1", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "plan: verifier learns for 1 step",
        "      then, in turn: generator for 1 step, verifier for 1 step",
        "      updates in 3 steps: generator 1, verifier 2",
    ]
    assert "r = outcome + α · mean(step)" in lines[3]
