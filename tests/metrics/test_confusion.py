"""Confusion, calibration and agreement of a judge, counted by hand on counts that differ in every cell."""

import math

import numpy as np
import pytest

from cotrain.metrics.clusters import make_figure, sums_of
from cotrain.metrics.verdicts import (
    MCC,
    MCC_UNDEFINED,
    belief_gap,
    calibration_counts,
    calibration_error,
    confusion_counts,
    rate_statistics,
    unanimous_share,
)

# right: 3 called right, 1 called wrong, 1 not readable; wrong: 4 called wrong, 2 called right, 1 not readable
PAIRS = (
    [(True, True)] * 3 + [(True, False), (True, None)] + [(False, False)] * 4 + [(False, True)] * 2 + [(False, None)]
)


def test_every_cell_is_counted_for_what_it_is():
    assert confusion_counts(PAIRS) == {"tp": 3.0, "fn": 2.0, "tn": 4.0, "fp": 3.0}
    assert confusion_counts([], "step_") == {"step_tp": 0.0, "step_fn": 0.0, "step_tn": 0.0, "step_fp": 0.0}


def test_rates_by_hand():
    found = {name: float(rate(sums_of(confusion_counts(PAIRS)))) for name, rate in rate_statistics().items()}
    assert found == {
        "true_positive_rate": pytest.approx(3 / 5),
        "true_negative_rate": pytest.approx(4 / 7),
        "balanced_accuracy": pytest.approx((3 / 5 + 4 / 7) / 2),
        "error_precision": pytest.approx(4 / 6),
        "error_recall": pytest.approx(4 / 7),
        "error_f1": pytest.approx(8 / 13),  # 2 · 4 / (2 · 4 + 2 + 3)
    }


def test_a_rate_without_its_class_is_undefined():
    found = {name: float(rate(sums_of(confusion_counts([(True, True)])))) for name, rate in rate_statistics().items()}
    assert found["true_positive_rate"] == 1.0
    assert all(math.isnan(found[name]) for name in ("true_negative_rate", "balanced_accuracy", "error_recall"))


def test_the_matthews_correlation_by_hand():
    # tp 3, fn 2, tn 4, fp 3: (3 · 4 − 3 · 2) / √(6 · 5 · 7 · 6) = 6 / √1260
    assert float(MCC(sums_of(confusion_counts(PAIRS)))) == pytest.approx(6 / math.sqrt(1260))


def test_the_matthews_correlation_is_pearsons_of_the_two_words():
    chance = np.random.default_rng(0)
    for _ in range(50):
        true, said = chance.random(30) < 0.4, chance.random(30) < 0.6
        pairs = [(bool(t), bool(s)) for t, s in zip(true, said, strict=True)]
        assert float(MCC(sums_of(confusion_counts(pairs)))) == pytest.approx(np.corrcoef(true, said)[0, 1])


@pytest.mark.parametrize("one", [(True, True), (True, False), (False, True), (False, False)])
def test_a_correlation_without_two_classes_and_two_verdicts_is_undefined_and_counted(one):
    """As with one class (every solution right), and with a judge who says CORRECT of all."""
    for pairs in ([one], [one, (not one[0], one[1])], [one, (one[0], not one[1])]):
        counts = confusion_counts(pairs)
        assert math.isnan(float(MCC(sums_of(counts)))) and float(MCC_UNDEFINED(sums_of(counts))) == 1.0
        assert make_figure({0: counts}, MCC, len(pairs)) is None
    assert float(MCC_UNDEFINED(sums_of(confusion_counts(PAIRS)))) == 0.0
    assert math.isnan(float(MCC_UNDEFINED(sums_of(confusion_counts([])))))


def test_the_interval_of_a_correlation_stays_within_its_bounds():
    rows = {i: confusion_counts([(True, True), (False, i < 2)]) for i in range(9)}
    found = make_figure(rows, MCC, 18)
    assert -1.0 <= found.low < found.value < found.high <= 1.0


def test_calibration_is_the_distance_within_bins():
    # bin 9: scores 0.9 and 1.0, one right: |1.9 − 1| = 0.9; bin 2: 0.2 and 0.25, none right: 0.45; 1.35 over 4
    counts = calibration_counts([(0.9, True), (1.0, False), (0.2, False), (0.25, False)])
    assert counts["bin9_all"] == 2.0 and counts["bin2_said"] == pytest.approx(0.45)
    assert float(calibration_error(sums_of(counts))) == pytest.approx(1.35 / 4)
    assert math.isnan(float(calibration_error(sums_of(calibration_counts([])))))


def test_the_gap_is_positive_where_a_judge_is_too_kind():
    assert float(belief_gap(sums_of({"said": 6.0, "believable": 4.0, "parsed": 8.0}))) == 0.25
    assert float(belief_gap(sums_of({"said": 1.0, "believable": 4.0, "parsed": 6.0}))) == -0.5


def test_unanimous_solutions():
    assert unanimous_share([[True, True], [False, False, False], [True, False], [True]]) == pytest.approx(2 / 3)
    assert unanimous_share([[True], []]) is None
