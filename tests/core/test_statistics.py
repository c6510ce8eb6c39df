"""Scores and intervals against constants worked out by hand or taken from published tables."""

from __future__ import annotations

import json
import math
import random
from statistics import NormalDist

import pytest

from cotrain.core.statistics import (
    Estimate,
    mean_interval,
    over_seeds_and_problems,
    paired_difference,
    significance_level,
    smallest_significant,
    student_t,
    wilson_interval,
)


def test_json_round_trip_and_unknown_bounds_include_everything() -> None:
    e = mean_interval([0.25])
    saved = json.loads(json.dumps(e.to_json(), allow_nan=False))
    assert saved == {"value": 0.25, "low": None, "high": None, "n": 1}
    assert Estimate.from_json(saved) == e
    assert e.includes(0.0) and e.includes(-1e9) and e.includes(1e9)
    known = Estimate(value=0.5, low=0.4, high=0.6, n=9)
    assert Estimate.from_json(known.to_json()) == known and known.includes(0.4) and not known.includes(0.39)


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


def test_fewer_than_three_seeds_have_no_interval_and_could_have_seen_nothing() -> None:
    for values in ([0.1], [0.1, 0.2]):
        e = mean_interval(values)
        assert e.n == len(values) and e.includes(1e9) and smallest_significant(e) == math.inf


def test_seeds_and_problems_by_hand() -> None:
    # seeds 1, 2, 3: s² = 1; problems m − 1 and m + 1 of each: v/N = 2/2 = 1; problems m − 2 and m + 2: v/N = 8/2 = 4
    seeds = [1.0, 2.0, 3.0]
    for far, variance in ((1.0, 1.0), (0.5, 1.0), (2.0, 4.0)):
        e = over_seeds_and_problems([(m, [m - far, m + far]) for m in seeds])
        assert e.value == 2.0 and e.n == 3
        assert e.high - 2.0 == pytest.approx(4.30265 * math.sqrt(variance / 3), rel=1e-5)
    # luck: the seeds agree, but what 4 problems say of each does not let them
    lucky = over_seeds_and_problems([(0.5, [0.0, 1.0, 0.0, 1.0])] * 3)
    assert lucky.high - 0.5 == pytest.approx(4.30265 * math.sqrt((1 / 3) / 4 / 3), rel=1e-5)
    assert over_seeds_and_problems([(v, ()) for v in (1.0, 2.0, 3.0)]) == mean_interval([1.0, 2.0, 3.0])


def test_the_smallest_difference_seen_by_hand() -> None:
    # 4 degrees of freedom: 2.77645 and 0.94096 standard errors of 0.01
    e = Estimate(value=0.0, low=-0.0277645, high=0.0277645, n=5)
    assert smallest_significant(e) == pytest.approx(0.0371741, abs=1e-6)
    table = {1: 1.37638, 2: 1.06066, 4: 0.94096, 10: 0.87906, 1000: 0.84198}  # 80 % points
    for df, value in table.items():
        assert student_t(df, 0.6) == pytest.approx(value, abs=5e-5), df


def test_what_is_called_by_hand() -> None:
    # two-sided p of 3.71741 with 4 degrees of freedom, of 3.16164 with 9
    assert significance_level(5) == pytest.approx(0.0205, abs=5e-5)
    assert significance_level(10) == pytest.approx(0.0118, abs=1e-4)
    assert significance_level(1000) == pytest.approx(2 * (1 - NormalDist().cdf(1.96 + 0.8416)), abs=1e-4)


@pytest.mark.whole
@pytest.mark.parametrize("between", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("n", [3, 5])
def test_intervals_hold_the_truth_and_differences_are_found_as_often_as_promised(n, between) -> None:
    """By simulation: seeds that vary with ``between`` times the standard error of their 64 problems."""
    rng, problems, covered, called, trials = random.Random(f"{n} {between}"), 64, 0, 0, 400
    error = 1 / math.sqrt(problems)
    for _ in range(trials):
        runs = []
        for _ in range(n):
            mean = rng.gauss(0.0, between * error)
            said = [rng.gauss(mean, 1.0) for _ in range(problems)]
            runs.append((sum(said) / problems, said))
        e = over_seeds_and_problems(runs)
        covered += e.includes(0.0)
        called += abs(e.value) >= smallest_significant(e)
    assert covered / trials > 0.925  # 95 %, less three standard errors of the simulation
    assert called / trials < 0.045


def test_paired_difference_removes_what_the_pairs_share() -> None:
    a, b = [0.9, 0.5, 0.1], [0.8, 0.4, 0.0]
    e = paired_difference(a, b)
    assert e.value == pytest.approx(0.1) and e.high - e.low < 1e-9 and not e.includes(0.0)
    with pytest.raises(ValueError):
        paired_difference([1.0], [1.0, 2.0])


def test_wilson_by_hand() -> None:
    # 0 of 4: the upper bound is z² / (n + z²) = 3.8415 / 7.8415; 4 of 4 is its mirror image
    assert wilson_interval(0.0, 4) == pytest.approx((0.0, 0.48990), abs=1e-4) and wilson_interval(0.0, 4)[0] == 0.0
    assert wilson_interval(1.0, 4) == pytest.approx((0.51010, 1.0), abs=1e-4) and wilson_interval(1.0, 4)[1] == 1.0
    # 4 of 10: middle (0.4 + 0.192073) / 1.384146 = 0.427754, half sqrt(0.384146 * 0.24 + 0.036892) / 1.384146 =
    # 0.259573
    assert wilson_interval(0.4, 10) == pytest.approx((0.16818, 0.68733), abs=1e-4)
    assert (
        wilson_interval(0.4, 10, student_t(3))[1] > wilson_interval(0.4, 10)[1]
    )  # fewer degrees of freedom, a wider interval
    for share, n in ((-0.1, 4), (1.1, 4), (0.5, 0)):
        with pytest.raises(ValueError, match="wilson needs"):
            wilson_interval(share, n)


def test_a_bounded_measure_has_a_bounded_interval() -> None:
    e = mean_interval([1.0, 0.9, 1.0])
    assert e.high > 1.0 and e.clip_to(0.0, 1.0) == Estimate(value=e.value, low=e.low, high=1.0, n=3)
    alone = mean_interval([0.4])
    assert alone.clip_to(0.0, 1.0) == alone  # what is unknown stays unknown
    outside = Estimate(value=0.0, low=-3.0, high=-2.0, n=2).clip_to(-1.0, 1.0)
    assert (outside.low, outside.high) == (-1.0, -1.0)
