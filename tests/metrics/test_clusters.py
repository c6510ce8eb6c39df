"""Intervals by hand, inside of their bounds, never without a width, and with the coverage that they claim."""

import math

import numpy as np
import pytest

from cotrain.core.statistics import student_t, wilson_interval
from cotrain.metrics.clusters import Bounded, Harmonic, Mean, Share, counts_json, make_figure, paired_changes, sums_of
from cotrain.metrics.verdicts import confusion_counts, rate_statistics

RIGHT = Share("right", "all")


def rows(*pairs):
    return {task: {"right": float(right), "all": float(n)} for task, (right, n) in enumerate(pairs)}


def test_statistics_by_hand():
    sums = sums_of({"a": 1.0, "b": 3.0, "c": 0.0})
    assert float(Share("a", "a b")(sums)) == 0.25 and float(Share("a a", "a a b")(sums)) == 0.4
    assert math.isnan(float(Share("c", "c")(sums)))
    pair = (Share("a", "a b"), Share("b", "a b"))
    assert float(Mean(pair)(sums)) == 0.5 and float(Harmonic(pair)(sums)) == pytest.approx(0.375)
    assert float(Harmonic((Share("c", "a"), Share("c", "b")))(sums)) == 0.0
    assert Mean(pair).names == {"a", "b"}


def test_one_yes_or_no_a_task_has_wilsons_interval():
    for right, n in ((0, 4), (4, 4), (3, 8)):
        found = make_figure(rows(*[(i < right, 1) for i in range(n)]), RIGHT, n)
        assert (found.low, found.high) == pytest.approx(wilson_interval(right / n, n)), (right, n)
    none = make_figure(rows(*[(0, 1)] * 4), RIGHT, 4)
    assert (none.value, none.low) == (0.0, 0.0) and none.high == pytest.approx(0.4899, abs=1e-4)


def test_samples_that_do_not_differ_between_tasks_count_once_a_task():
    for right in (0, 4, 8):
        found = make_figure(rows(*[(right, 8)] * 5), RIGHT, 40)
        assert (found.low, found.high) == pytest.approx(wilson_interval(right / 8, 5))
    alone = make_figure(rows((3, 8)), RIGHT, 8)
    assert (alone.low, alone.high) == pytest.approx(wilson_interval(3 / 8, 1))


def test_clustered_samples_rest_on_fewer_observations():
    # 4 tasks of 2 samples: 2, 2, 1, 0 right, θ = 5/8. Leaving one out: 3/6, 3/6, 4/6, 5/6, mean 5/8;
    # v = 3/4 · (2 · (1/8)² + (1/24)² + (5/24)²) = 0.0572917; n = (15/64) / v = 4.0909
    found = make_figure(rows((2, 2), (2, 2), (1, 2), (0, 2)), RIGHT, 8)
    assert (found.low, found.high) == pytest.approx(wilson_interval(5 / 8, 4.090909, student_t(3)), abs=1e-5)
    assert found.n == 8 and found.value == 5 / 8


def test_no_interval_rests_on_more_observations_than_there_are():
    # seven tasks with 4 of 8 and one with 5: hardly any spread, so θ(1 − θ)/v would be 1008 observations; there are 64
    found = make_figure(rows(*[(4, 8)] * 7, (5, 8)), RIGHT, 64)
    assert (found.low, found.high) == pytest.approx(wilson_interval(33 / 64, 64, student_t(7)))


def test_tasks_that_a_figure_is_not_about_do_not_count():
    found = make_figure(rows((1, 1), (0, 1), *[(0, 0)] * 50), RIGHT, 2)
    assert (found.low, found.high) == pytest.approx(wilson_interval(0.5, 2))
    assert make_figure(rows((0, 0)), RIGHT, 0) is None and make_figure({}, RIGHT, 0) is None


def test_a_mean_is_as_wide_as_its_parts_where_one_has_no_spread():
    counts = {i: confusion_counts([(True, i > 0), (True, True)]) for i in range(6)} | {
        6: confusion_counts([(False, False)])
    }
    balanced = rate_statistics()["balanced_accuracy"]
    found = make_figure(counts, balanced, 13)
    tpr, tnr = (
        make_figure(counts, rate_statistics()["true_positive_rate"], 12),
        make_figure(counts, rate_statistics()["true_negative_rate"], 1),
    )
    assert (tnr.low, tnr.high) == pytest.approx(wilson_interval(1.0, 1))
    assert (found.low, found.high) == pytest.approx(((tpr.low + tnr.low) / 2, (tpr.high + tnr.high) / 2))


DISTANCE = Bounded(lambda s: 2 * s["right"] / s["all"] - 1, -1.0, 1.0, frozenset(("right", "all")))


@pytest.mark.parametrize("statistic", [RIGHT, Mean((RIGHT, RIGHT)), Harmonic((RIGHT, RIGHT)), DISTANCE])
def test_intervals_stay_inside_of_their_bounds_and_have_a_width(statistic):
    low, high = statistic.bounds
    for seed in range(40):
        draws = np.random.default_rng(seed)
        tasks = int(draws.integers(1, 6))
        counts = rows(*[(int(draws.integers(0, 4)) * (seed % 3 > 0), 3) for _ in range(tasks)])
        found = make_figure(counts, statistic, 3 * tasks)
        assert low <= found.low <= found.value <= found.high <= high
        assert found.high - found.low > 0.05


def test_a_change_by_hand():
    # 4 tasks of one sample: 1 was right, 3 are. Changes 1, 1, 0, 0: mean ½, deviation √⅓, standard error 0.288675
    before, after = rows((1, 1), (0, 1), (0, 1), (0, 1)), rows((1, 1), (1, 1), (1, 1), (0, 1))
    saved = counts_json({"x": make_figure(before, RIGHT, 4)})
    change = paired_changes({"x": make_figure(after, RIGHT, 4), "y": make_figure(after, RIGHT, 4)}, saved)["x"]
    assert (change.value, change.low) == (0.5, pytest.approx(0.5 - 3.18245 * 0.288675, abs=1e-4)) and change.high == 1.0


def test_a_change_without_spread_is_not_certain():
    # all 4 rise from 0 to 1: of 0 of 4 others up to 0.4899 might not have
    saved = counts_json({"x": make_figure(rows(*[(0, 1)] * 4), RIGHT, 4)})
    change = paired_changes({"x": make_figure(rows(*[(1, 1)] * 4), RIGHT, 4)}, saved)["x"]
    assert (change.value, change.high) == (1.0, 1.0) and change.low == pytest.approx(1 - 0.4899, abs=1e-4)


def test_a_change_that_hangs_on_one_task_is_that_of_two_separate_figures():
    side = {
        0: confusion_counts([(True, True)]),
        1: confusion_counts([(True, False)]),
        2: confusion_counts([(False, False)]),
    }
    balanced = rate_statistics()["balanced_accuracy"]
    saved = counts_json({"x": make_figure(side, balanced, 3)})
    change = paired_changes({"x": make_figure(side, balanced, 3)}, saved)["x"]
    alone = make_figure(side, balanced, 3)
    assert change.value == 0.0 and change.high == pytest.approx(
        math.hypot(alone.high - alone.value, alone.value - alone.low)
    )


@pytest.mark.whole
@pytest.mark.parametrize(("a", "b", "tasks", "samples"), [(0.3, 0.7, 6, 8), (2, 3, 12, 8), (0.1, 1.9, 8, 1)])
def test_the_interval_covers_as_often_as_it_says(a, b, tasks, samples):
    """400 experiments on tasks of beta-distributed difficulty: 95 % covered, less two standard errors of the count."""
    draws, hits = np.random.default_rng(7), 0
    for _ in range(400):
        right = draws.binomial(samples, draws.beta(a, b, tasks))
        found = make_figure(rows(*[(r, samples) for r in right]), RIGHT, tasks * samples)
        hits += found.low <= a / (a + b) <= found.high
    assert hits / 400 > 0.93
