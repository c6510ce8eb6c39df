"""Which figures choose the learning rate of an arm."""

from __future__ import annotations

import json

import pytest

from cotrain.analysis.comparison.rates import validation_figures_at_end


@pytest.mark.parametrize(
    ("chosen", "greedy"),
    [
        ({}, 0.2),  # no ``evaluation.best``: the last state
        ({"chosen": 20}, 0.9),  # the best one
        ({"chosen": 30}, 0.2),  # the best one's checkpoint was gone, so the run ended with its last state
    ],
)
def test_rates_are_chosen_by_the_state_that_is_measured(tmp_path, chosen, greedy):
    """The best evaluation was taken also where the run ended with its last state."""
    evaluations = [(-1, 0.1), (9, 0.5), (19, 0.9), (29, 0.2)]  # the number of the last step, from 0, and a figure
    rows = [{"step": step, "kind": "evaluation", "eval/solver/greedy": value} for step, value in evaluations]
    rows.insert(3, {"step": 29, "kind": "step", "loss": 1.0})
    rows[-1]["eval/solver/mcc"] = None
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "summary.json").write_text(json.dumps({"steps": 30, "before": {}, "after": {}, **chosen}))
    assert validation_figures_at_end(tmp_path) == {"solver/greedy": greedy}
