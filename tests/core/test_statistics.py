"""Scores and intervals against constants worked out by hand or taken from published tables."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.core.address import rng_of
from cotrain.core.statistics import (
    Estimate,
    balanced_accuracy,
    bootstrap_mean,
    brier,
    calibration_error,
    detection,
    difference,
    majority_at_k,
    mean_interval,
    paired_difference,
    pass_at_k,
    processbench_f1,
    student_t,
    wilson,
)


def test_wilson_matches_the_published_example() -> None:
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662; 15 of 148 gives 0.0624 to 0.1605.
    e = wilson(81, 263)
    assert (round(e.low, 4), round(e.high, 4), e.n) == (0.2553, 0.3662, 263)
    e = wilson(15, 148)
    assert (round(e.low, 4), round(e.high, 4)) == (0.0624, 0.1605)
    # 0 of 20: upper bound z²/(n + z²) = 3.8415/23.8415
    e = wilson(0, 20)
    assert e.low == 0.0 and e.high == pytest.approx(0.16113, abs=1e-5)
    assert wilson(20, 20).high == 1.0


def test_nothing_observed_is_undefined_and_null_in_json() -> None:
    e = wilson(0, 0)
    assert math.isnan(e.value) and (e.low, e.high) == (0.0, 1.0)
    assert bootstrap_mean([], seed=1).json() == {"value": None, "low": None, "high": None, "n": 0}
    assert mean_interval([]).n == 0
    with pytest.raises(ValueError, match="successes=3, n=2"):
        wilson(3, 2)


def test_json_round_trip_and_unknown_bounds_include_everything() -> None:
    e = mean_interval([0.25])
    saved = json.loads(json.dumps(e.json(), allow_nan=False))
    assert saved == {"value": 0.25, "low": None, "high": None, "n": 1}
    assert Estimate.of_json(saved) == e
    assert e.includes(0.0) and e.includes(-1e9) and e.includes(1e9)
    known = Estimate(value=0.5, low=0.4, high=0.6, n=9)
    assert Estimate.of_json(known.json()) == known and known.includes(0.4) and not known.includes(0.39)


def test_student_t_matches_the_table() -> None:
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 10: 2.2281, 29: 2.0452, 30: 2.0423, 100: 1.9840}
    for df, value in table.items():
        assert student_t(df) == pytest.approx(value, abs=5e-5), df
    assert student_t(199) == pytest.approx(student_t(200), abs=1e-4)  # the two branches meet
    assert student_t(1000) == pytest.approx(1.9623, abs=5e-5)


def test_mean_interval_by_hand() -> None:
    # 1, 2, 3: deviation 1, half width 4.3027 / sqrt(3) = 2.4841
    e = mean_interval([1.0, 2.0, 3.0])
    assert (e.value, e.n) == (2.0, 3)
    assert e.low == pytest.approx(2 - 2.4841, abs=1e-4) and e.high == pytest.approx(2 + 2.4841, abs=1e-4)


def test_paired_difference_removes_what_the_pairs_share() -> None:
    a, b = [0.9, 0.5, 0.1], [0.8, 0.4, 0.0]
    e = paired_difference(a, b)
    assert e.value == pytest.approx(0.1) and e.high - e.low < 1e-9 and not e.includes(0.0)
    with pytest.raises(ValueError):
        paired_difference([1.0], [1.0, 2.0])


def test_difference_is_square_and_add() -> None:
    a = Estimate(value=0.6, low=0.5, high=0.7, n=10)
    b = Estimate(value=0.2, low=0.1, high=0.4, n=20)
    e = difference(a, b)
    assert e.value == pytest.approx(0.4) and e.n == 10
    assert e.low == pytest.approx(0.4 - math.sqrt(0.01 + 0.04)) and e.high == pytest.approx(0.4 + math.sqrt(0.02))
    # Newcombe 1998, method 10: 56/70 - 48/80 gives 0.0524 to 0.3339
    e = difference(wilson(56, 70), wilson(48, 80))
    assert (round(e.low, 4), round(e.high, 4)) == (0.0524, 0.3339)


def test_bootstrap_brackets_the_mean_and_repeats() -> None:
    values = [float(i % 2) for i in range(400)]
    e = bootstrap_mean(values, seed=3)
    assert e == bootstrap_mean(values, seed=3) and e != bootstrap_mean(values, seed=4)
    # normal theory: half width 1.96 * 0.5 / 20 = 0.049
    assert e.value == 0.5 and e.low == pytest.approx(0.451, abs=0.01) and e.high == pytest.approx(0.549, abs=0.01)


def test_clusters_widen_the_interval_by_the_root_of_their_size() -> None:
    # 400 values in 25 clusters of 16 equal values: effectively 25 observations, half width 1.96 * 0.5 / 5 = 0.196
    clusters = [i // 16 for i in range(400)]
    values = [float(c % 2) for c in clusters]
    e = bootstrap_mean(values, seed=3, clusters=clusters)
    assert e.value == pytest.approx(12 / 25)
    assert e.high - e.low == pytest.approx(0.392, abs=0.05)
    lone = bootstrap_mean([1.0, 0.0], seed=0, clusters=["t", "t"])
    assert lone.value == 0.5 and math.isinf(lone.low) and math.isinf(lone.high)
    with pytest.raises(ValueError, match="2 values and 1 clusters"):
        bootstrap_mean([1.0, 2.0], seed=0, clusters=[0])


PAIRS = [(True, True)] * 6 + [(False, True)] * 2 + [(None, True)] * 2 + [(False, False)] * 3 + [(True, False)] * 2


def test_balanced_accuracy_by_hand() -> None:
    # true positive rate 6/10 (the unreadable ones count as missed), true negative rate 3/5
    e = balanced_accuracy(PAIRS)
    assert e.value == pytest.approx(0.6) and e.n == 15
    a, b = wilson(6, 10), wilson(3, 5)
    assert e.low == pytest.approx(0.6 - math.hypot(0.6 - a.low, 0.6 - b.low) / 2)
    assert e.high == pytest.approx(0.6 + math.hypot(a.high - 0.6, b.high - 0.6) / 2)
    clustered = balanced_accuracy(PAIRS, seed=1, clusters=list(range(15)))
    assert clustered.value == pytest.approx(0.6) and clustered.low < 0.6 < clustered.high


def test_balanced_accuracy_needs_both_classes_and_does_not_reward_silence() -> None:
    assert math.isnan(balanced_accuracy([(True, True)] * 9).value)
    assert balanced_accuracy([(None, True), (None, False)]).value == 0.0
    assert balanced_accuracy([(True, True), (True, False)]).value == 0.5  # always saying yes is chance


def test_detection_of_both_classes_by_hand() -> None:
    positive = detection(PAIRS, positive=True)
    assert positive.precision.value == 6 / 8 and positive.recall.value == 6 / 10
    assert positive.f1.value == pytest.approx(2 * 6 / (8 + 10))
    erroneous = detection(PAIRS, positive=False)
    assert erroneous.precision.value == 3 / 5 and erroneous.recall.value == 3 / 5
    assert erroneous.f1.value == pytest.approx(0.6) and erroneous.f1.low < 0.6 < erroneous.f1.high
    assert positive.precision == wilson(6, 8)
    clustered = detection(PAIRS, positive=True, clusters=[i // 3 for i in range(15)])
    assert clustered.recall.value == 0.6 and clustered.recall != positive.recall


def test_processbench_by_hand() -> None:
    # three erroneous: one located, one at the wrong place, one unreadable; two right: one cleared, one accused
    found = processbench_f1([(2, 2), (1, 2), (None, 0), (-1, -1), (0, -1)])
    assert found.erroneous.value == pytest.approx(1 / 3) and found.correct.value == 0.5
    assert found.f1.value == pytest.approx(2 * (1 / 3) * 0.5 / (1 / 3 + 0.5)) == pytest.approx(0.4)
    assert processbench_f1([(0, 1), (0, -1)]).f1.value == 0.0
    assert math.isnan(processbench_f1([(-1, -1)]).f1.value)


def test_brier_and_calibration_by_hand() -> None:
    forecasts = [(0.9, True), (0.9, False), (0.1, False), (1.0, True)]
    assert brier(forecasts) == pytest.approx((0.01 + 0.81 + 0.01 + 0.0) / 4)
    # last bin holds 0.9, 0.9, 1.0: |2 - 2.8| = 0.8; second bin holds 0.1: 0.1
    assert calibration_error(forecasts) == pytest.approx(0.9 / 4)
    assert math.isnan(brier([])) and math.isnan(calibration_error([]))
    with pytest.raises(ValueError, match=r"1\.5"):
        calibration_error([(1.5, True)])


def test_pass_at_k_equals_the_average_over_all_subsets() -> None:
    for n, c, k in [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (7, 1, 7), (4, 3, 2)]:
        marks = [True] * c + [False] * (n - c)
        subsets = list(itertools.combinations(marks, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets)), (n, c, k)
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="k=6"):
        pass_at_k(5, 1, 6)


def test_majority_by_hand() -> None:
    answers = [("4", True), ("5", False), ("5", False), (None, False), ("4", True), ("4", True)]
    assert majority_at_k(answers, 1) == 1.0
    assert majority_at_k(answers, 3) == 0.0
    assert majority_at_k(answers, 5) == 0.5  # 4 and 5 are tied
    assert majority_at_k(answers, 6) == 1.0
    assert majority_at_k([(None, False)], 1) == 0.0
    with pytest.raises(ValueError, match="k=2"):
        majority_at_k([("1", True)], 2)


def test_wilson_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = rng_of("coverage")
    inside = sum(wilson(sum(rng.random() < 0.3 for _ in range(60)), 60).includes(0.3) for _ in range(400))
    assert 0.92 <= inside / 400 <= 0.98


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.integers(0, 5))
def test_intervals_hold_their_value(values: list[float], seed: int) -> None:
    for e in (bootstrap_mean(values, seed=seed), mean_interval(values)):
        assert e.low <= e.value <= e.high or e.value == pytest.approx(e.low) or e.value == pytest.approx(e.high)
