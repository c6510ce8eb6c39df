"""Scores and intervals against constants worked out by hand or taken from published tables."""

from __future__ import annotations

import json

import pytest

from cotrain.core.statistics import (
    Estimate,
    mean_interval,
    paired_difference,
    student_t,
    wilson,
)


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


def test_wilson_by_hand() -> None:
    # 0 of 4: the upper bound is z² / (n + z²) = 3.8415 / 7.8415; 4 of 4 is its mirror image
    assert wilson(0.0, 4) == pytest.approx((0.0, 0.48990), abs=1e-4) and wilson(0.0, 4)[0] == 0.0
    assert wilson(1.0, 4) == pytest.approx((0.51010, 1.0), abs=1e-4) and wilson(1.0, 4)[1] == 1.0
    # 4 of 10: middle (0.4 + 0.192073) / 1.384146 = 0.427754, half sqrt(0.384146 * 0.24 + 0.036892) / 1.384146 = 0.259573
    assert wilson(0.4, 10) == pytest.approx((0.16818, 0.68733), abs=1e-4)
    assert wilson(0.4, 10, student_t(3))[1] > wilson(0.4, 10)[1]  # fewer degrees of freedom, a wider interval
    for share, n in ((-0.1, 4), (1.1, 4), (0.5, 0)):
        with pytest.raises(ValueError, match="wilson needs"):
            wilson(share, n)


def test_a_bounded_measure_has_a_bounded_interval() -> None:
    e = mean_interval([1.0, 0.9, 1.0])
    assert e.high > 1.0 and e.within(0.0, 1.0) == Estimate(value=e.value, low=e.low, high=1.0, n=3)
    alone = mean_interval([0.4])
    assert alone.within(0.0, 1.0) == alone  # what is unknown stays unknown
    outside = Estimate(value=0.0, low=-3.0, high=-2.0, n=2).within(-1.0, 1.0)
    assert (outside.low, outside.high) == (-1.0, -1.0)
