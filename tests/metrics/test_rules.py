"""Rules by hand, and against the rule on all values there ever were."""

import math
import random
from collections import Counter
from itertools import pairwise

import pytest

from cotrain.metrics.rules import DriftFromStart, FarFromBase, GrowingDistance, MetricSeries, RiseAndFall, mean


def plain_parted(rule, window, paid, true):
    """The rule on all values there ever were."""
    n = len(paid)
    earlier = (n - window) // window
    if n < window or earlier < 1:
        return None
    means = [[mean(column[i * window : (i + 1) * window]) for i in range(earlier)] for column in (paid, true)]
    now = [mean(column[-window:]) for column in (paid, true)]
    best = means[1].index(max(means[1]))
    up, down = now[0] - means[0][best], means[1][best] - now[1]
    late = true[-3 * window :]
    scatter = (sum((b - a) ** 2 for a, b in pairwise(late)) / (len(late) - 1) / window) ** 0.5
    if down < rule.fall or down < 2.5 * scatter or up < rule.rise:
        return None
    return -down if up >= 0.1 * (max(*means[0], now[0]) - min(*means[0], now[0])) else None


@pytest.mark.whole
@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_summary_of_what_was_reads_as_the_whole_series_does(window):
    """Values of one place behind the point, so that windows are equal now and then."""
    draw, found = random.Random(window), Counter()
    parted, drifted = RiseAndFall(0.05, 0.1, "a", "b"), DriftFromStart(0.7, 1.3)
    for _ in range(40):
        series, paid, true, level = MetricSeries(window), [], [], 0.5
        for step in range(40):
            level = draw.random() if step % 12 == 0 else level
            paid.append(round(step / 40 + draw.random(), 1))
            true.append(round(level + 0.1 * draw.random(), 1))
            series.add_row(step, [paid[-1], true[-1]])
            expected = plain_parted(parted, window, paid, true)
            assert parted(series) == expected
            found["parted"] += expected is not None
            ratio = mean(paid[-window:]) / first if step + 1 >= 2 * window and (first := mean(paid[:window])) else None
            assert drifted(series) == (None if ratio is None or 0.7 <= ratio <= 1.3 else ratio)
            found["drifted"] += drifted(series) is not None
    assert min(found["parted"], found["drifted"]) > 20


def test_a_fall_of_few_problems_a_step_is_chance_and_one_of_many_is_not():
    """The same means, 0.4 and then 0.25; rows about them by 0.2 as of three problems a step, and by 0.02."""

    def told(scatter):
        series = MetricSeries(10)
        for step in range(30):
            level = (0.4, 0.25, 0.25)[step // 10]
            series.add_row(step, [(0.3, 0.6, 0.9)[step // 10], level + scatter * (-1) ** step])
        return RiseAndFall(0.05, 0.1, "a", "b")(series)

    assert told(0.2) is None and told(0.02) == pytest.approx(-0.15)


def test_the_scatter_of_a_series_by_hand():
    """Steps of 1, 1 and 4: half of their mean square is 3, the variance of a row; a window of two rows has half of it,
    the difference of two windows twice that."""
    series = MetricSeries(2)
    for step, value in enumerate((0.0, 1.0, 2.0, -2.0)):
        series.add_row(step, [value])
    assert series.scatter_error(0) == pytest.approx(math.sqrt(3.0))


@pytest.mark.parametrize(
    ("shares", "accuracies", "found"),
    [
        ((0.77, 0.68, 0.77), (0.4, 0.2, 0.07), -0.33),  # a vote that collapses: agreement is what it was
        ((0.6, 0.7, 0.95), (0.5, 0.55, 0.4), -0.15),  # it rises, and accuracy falls a little
        ((0.6, 0.7, 0.95), (0.5, 0.5, 0.45), None),  # answers agree more, and are right as often
        ((0.8, 0.6, 0.3), (0.6, 0.4, 0.1), None),  # harder problems: both fall
        ((0.6, 0.8, 0.9), (0.3, 0.5, 0.6), None),
    ],
)
def test_answers_that_agree_on_what_is_wrong(shares, accuracies, found):
    series, rule = MetricSeries(10), GrowingDistance(0.3, 0.1, "a", "b")
    for step in range(30):
        series.add_row(step, [shares[step // 10], accuracies[step // 10]])
    assert rule(series) == (None if found is None else pytest.approx(found))
    assert all(part in rule.healthy_text(10) for part in ("0.1", "0.3"))


def test_a_distance_of_few_problems_a_step_is_chance():
    series = MetricSeries(10)
    for step in range(30):
        series.add_row(step, [0.8, (0.5, 0.15, 0.15)[step // 10] + 0.45 * (-1) ** step])
    assert series.scatter_error(1) * 2.5 > 0.35 and GrowingDistance(0.3, 0.1, "a", "b")(series) is None


@pytest.mark.parametrize(
    ("scatter", "found"),
    [(0.0, 0.5), (0.02, 0.5), (0.2, None)],
    ids=["none", "little", "much"],
)
def test_one_sided_verdicts_of_few_problems_a_step_are_chance(scatter, found):
    """A judge that calls 50 % right where 15 % are, by the window's means: 35 points off, where 30 are healthy."""
    series, rule = MetricSeries(10), FarFromBase(0.3, 0.1, 0.9)
    for step in range(10):
        swing = scatter * (-1) ** step
        series.add_row(step, [0.5 + swing, 0.15 - swing / 2])
    assert rule(series) == (None if found is None else pytest.approx(found))
