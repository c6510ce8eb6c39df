"""Comparisons whose runs end at their best state, and last so many updates of their leading policy."""

import json
from pathlib import Path

import pytest

from cotrain.analysis.comparison.arms import parse_arm
from cotrain.analysis.comparison.compare import ComparisonPlan, compare
from tests.helpers import TINY
from tests.sentences import refuses

ARMS = (
    f"semi_supervised:rest=vote,model={TINY},labelled=4,tasks_per_step=2,group_size=4,lr=0.01",
    f"semi_supervised:rest=learning,warmup=2,model={TINY},labelled=4,tasks_per_step=2,group_size=4,lr=0.01",
)


def plan(out: Path, **more) -> ComparisonPlan:
    settings = ("evaluation.best=solver/pass@1", "evaluation.group_size=2", "evaluation.splits=[]")
    small = ("evaluation.tasks=4", "evaluation.curve_tasks=4", "evaluation.greedy=false")
    given = {
        "equal": "updates",
        "batches": 3,
        "evaluate_every": 1,
        "overrides": (*settings, *small),
        "operations": (2, 2),
    }
    return ComparisonPlan(arms=tuple(map(parse_arm, ARMS)), seeds=1, out=out, workers=2, **(given | more))


@pytest.mark.whole
def test_every_generator_has_as_many_batches_and_as_many_points_to_choose_from(tmp_path):
    result = compare(plan(tmp_path / "out"), say=lambda line: None)
    vote, learning = (arm["seeds"][0] for arm in result["recipes"].values())
    assert (
        vote["spent"]["batches"] == 3 and learning["spent"]["batches"] == 2 + 5
    )  # warm-up; generator, verifier in turn
    assert len(vote["curve"]) == len(learning["curve"]) == 4
    for folder in (tmp_path / "out").glob("*/seed-0"):
        summary = json.loads((folder / "summary.json").read_text())
        assert json.loads((folder / "recipe.json").read_text())["steps"] == summary["steps"]  # so progress can be told
        assert summary["chosen"] in {0, *range(1, 8)} and summary["steps"] in (3, 7)


@pytest.mark.whole
def test_two_lengths_are_refused(tmp_path):
    with refuses("E_TWO_LENGTHS", names=("budget 5.0", "batches 3")):
        plan(tmp_path, budget=5.0)
