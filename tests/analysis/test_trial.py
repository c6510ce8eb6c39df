"""``cotrain compare --smoke``: every phase of every arm in a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotrain.analysis.comparison.arms import parse_arm
from cotrain.analysis.comparison.compare import ComparisonPlan
from cotrain.analysis.comparison.trial import short_plan, trial_note
from cotrain.cli.main import main


def plan_of(*arms: str, **options) -> ComparisonPlan:
    return ComparisonPlan(arms=tuple(map(parse_arm, arms)), seeds=1, out=Path("nowhere"), **options)


def test_a_trial_reaches_every_phase_of_every_arm():
    short = short_plan(plan_of("grpo", "tango:group_size=2"), batches=None)
    recipes = short.make_recipes(short.arms)
    tango = recipes["tango:group_size=2"]
    assert [steps for _, steps in tango.schedule.warmup] == [1]
    assert short.batches == 1 + len(tango.schedule.cycle)
    assert (recipes["grpo"].group_size, tango.group_size) == (4, 2)
    for recipe in recipes.values():
        assert (recipe.tasks_per_step, recipe.evaluation.tasks, recipe.evaluation.group_size) == (2, 2, 2)
    assert trial_note(short).startswith(f"note: --smoke: 1 seed, {short.batches} steps of 2 problems")


def test_what_the_user_gives_counts_more():
    short = short_plan(plan_of("grpo", overrides=("tasks_per_step=3",)), batches=7)
    assert short.batches == 7
    assert short.make_recipes(short.arms)["grpo"].tasks_per_step == 3


@pytest.mark.whole
def test_a_trial_ends_with_a_report(tmp_path):
    assert main(["compare", "grpo", "grpo:kl=0.01", "--smoke", "--workers", "1", "--out", str(tmp_path / "c")]) == 0
    assert (tmp_path / "c" / "report.html").is_file()
