"""Scores and intervals against constants worked out by hand or taken from published tables."""

from __future__ import annotations

import itertools
import json

import pytest

from cotrain.core.statistics import (
    Estimate,
    mean_interval,
    paired_difference,
    pass_at_k,
    student_t,
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


PAIRS = [(True, True)] * 6 + [(False, True)] * 2 + [(None, True)] * 2 + [(False, False)] * 3 + [(True, False)] * 2


def test_pass_at_k_equals_the_average_over_all_subsets() -> None:
    for n, c, k in [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (7, 1, 7), (4, 3, 2)]:
        marks = [True] * c + [False] * (n - c)
        subsets = list(itertools.combinations(marks, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets)), (n, c, k)
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="k=6"):
        pass_at_k(5, 1, 6)
