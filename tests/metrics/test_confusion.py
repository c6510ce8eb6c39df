"""Confusion, calibration and agreement of a judge, counted by hand on counts that differ in every cell."""

import math

import pytest

from cotrain.metrics.clusters import sums_of
from cotrain.metrics.verdicts import believed, calibration_counts, calibration_error, confusion, rates, unanimous

# right: 3 called right, 1 called wrong, 1 not readable; wrong: 4 called wrong, 2 called right, 1 not readable
PAIRS = (
    [(True, True)] * 3 + [(True, False), (True, None)] + [(False, False)] * 4 + [(False, True)] * 2 + [(False, None)]
)


def test_every_cell_is_counted_for_what_it_is():
    assert confusion(PAIRS) == {"tp": 3.0, "fn": 2.0, "tn": 4.0, "fp": 3.0}
    assert confusion([], "step_") == {"step_tp": 0.0, "step_fn": 0.0, "step_tn": 0.0, "step_fp": 0.0}


def test_rates_by_hand():
    found = {name: float(rate(sums_of(confusion(PAIRS)))) for name, rate in rates().items()}
    assert found == {
        "true_positive_rate": pytest.approx(3 / 5),
        "true_negative_rate": pytest.approx(4 / 7),
        "balanced_accuracy": pytest.approx((3 / 5 + 4 / 7) / 2),
        "precision": pytest.approx(4 / 6),
        "recall": pytest.approx(4 / 7),
        "f1": pytest.approx(8 / 13),  # 2 · 4 / (2 · 4 + 2 + 3)
    }


def test_a_rate_without_its_class_is_undefined():
    found = {name: float(rate(sums_of(confusion([(True, True)])))) for name, rate in rates().items()}
    assert found["true_positive_rate"] == 1.0
    assert all(math.isnan(found[name]) for name in ("true_negative_rate", "balanced_accuracy", "recall"))


def test_calibration_is_the_distance_within_bins():
    # bin 9: scores 0.9 and 1.0, one right: |1.9 − 1| = 0.9; bin 2: 0.2 and 0.25, none right: 0.45; 1.35 over 4
    counts = calibration_counts([(0.9, True), (1.0, False), (0.2, False), (0.25, False)])
    assert counts["bin9_all"] == 2.0 and counts["bin2_said"] == pytest.approx(0.45)
    assert float(calibration_error(sums_of(counts))) == pytest.approx(1.35 / 4)
    assert math.isnan(float(calibration_error(sums_of(calibration_counts([])))))


def test_the_gap_is_positive_where_a_judge_is_too_kind():
    assert float(believed(sums_of({"said": 6.0, "believable": 4.0, "parsed": 8.0}))) == 0.25
    assert float(believed(sums_of({"said": 1.0, "believable": 4.0, "parsed": 6.0}))) == -0.5


def test_unanimous_solutions():
    assert unanimous([[True, True], [False, False, False], [True, False], [True]]) == pytest.approx(2 / 3)
    assert unanimous([[True], []]) is None
