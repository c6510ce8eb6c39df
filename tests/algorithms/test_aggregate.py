from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.algorithms.functional.aggregate import (
    AGGREGATIONS,
    aggregate,
    keep_top,
    majority,
    pairwise_advantages,
    skew_matrix,
)
from tests.sentences import refuses

unit = st.floats(0, 1)


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("mean", [True, False, True, True], 0.75),
        ("mean", (0.25, 0.75), 0.5),
        ("majority", [True, False, True], 1.0),
        ("majority", [0.1, 0.49, 0.9], 0.0),
        ("majority", [True, False], None),
        ("majority", [0.5, 0.5, 0.6], 1.0),
        ("majority", [0.5], None),
        ("sum", [7, 3, 9], 19.0),
        ("minimum", [0.9, 0.2, 1.0], 0.2),
        ("minimum", [True, False], 0.0),
        ("product", [0.5, 0.5, True], 0.25),
        ("product", [1e-300] * 3, 0.0),
    ],
)
def test_by_hand(name, values, result):
    assert aggregate(name, values) == result
    assert type(aggregate(name, values)) is (type(None) if result is None else float)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_of_nothing_is_nothing(name):
    assert aggregate(name, []) is None


def test_wrong_arguments_are_named():
    with refuses("E_UNKNOWN_AGGREGATION", names=("'meen'", "'mean'")):
        aggregate("meen", [1.0])
    with pytest.raises(ValueError, match="finite numbers"):
        aggregate("mean", [1.0, math.nan])
    with pytest.raises(ValueError, match="give both or neither"):
        aggregate("mean", [1.0], top=1)
    for values, meta, top in (([1], [1, 2], 1), ([1], [1], 0), ([1], [math.nan], 1)):
        with pytest.raises(ValueError, match="to keep the top"):
            keep_top(values, meta, top)


@pytest.mark.whole
@given(values=st.lists(unit, min_size=1), seed=st.randoms())
def test_order_does_not_matter_and_results_stay_in_range(values, seed):
    shuffled = seed.sample(values, len(values))
    for name in ("mean", "majority", "sum", "minimum"):
        assert aggregate(name, values) == aggregate(name, shuffled)
    assert 0.0 <= aggregate("product", values) <= aggregate("minimum", values) <= aggregate("mean", values) + 1e-12
    assert majority([1 - (v > 0.5) for v in values]) in (None, 0.0, 1.0)


def test_the_meta_score_chooses_who_votes():
    meta = [0.1, 0.9, 0.4, 0.4]
    assert keep_top([9, 2, 3, 8], meta, 2) == (2, 3)  # of equals the earlier
    assert keep_top("abcd", meta, 9) == ("a", "b", "c", "d")
    assert aggregate("mean", [1.0, 0.0, 0.5, 1.0], meta=meta, top=2) == 0.25
    assert aggregate("majority", [True, True, False, False], meta=[1, 0, 1, 1], top=3) == 0.0


# -- pairs


def test_three_responses_by_hand():
    """0 beats 1 and 2, 1 beats 2: row sums 2, 0, −2; Σd² = 6, root √(6/12) = √½."""
    matrix = skew_matrix(3, {(0, 1): 1, (0, 2): 1, (2, 1): -1})
    assert matrix == ((0, 1, 1), (-1, 0, 1), (-1, -1, 0))
    expected = 2 / 3 / math.sqrt(0.5)
    assert pairwise_advantages(matrix, eps=0.0) == pytest.approx((expected, 0.0, -expected))
    assert pairwise_advantages(matrix, scale=False) == pytest.approx((2 / 3, 0.0, -2 / 3))


def test_a_pair_asked_in_both_orders_is_averaged():
    assert skew_matrix(2, {(0, 1): 3, (1, 0): -1}) == ((0, 2), (-2, 0))
    assert skew_matrix(2, {(0, 1): 1, (1, 0): 1}) == ((0, 0), (0, 0))  # whoever is first wins: nothing is known


def test_small_and_flat_groups_have_no_advantage():
    assert pairwise_advantages(()) == ()
    assert pairwise_advantages(skew_matrix(1, {})) == (0.0,)
    assert pairwise_advantages(skew_matrix(4, {})) == (0.0,) * 4


def test_what_is_no_outcome():
    for pair, outcome in (((0, 0), 1.0), ((0, 3), 1.0), ((-1, 0), 1.0), ((0, 1), math.inf)):
        with pytest.raises(ValueError, match="does not fit a group of 3"):
            skew_matrix(3, {pair: outcome})
    for matrix in (((0, 1), (1, 0)), ((1,),), ((0, 1),), ((0, math.nan), (math.nan, 0))):
        with pytest.raises(ValueError, match="skew_matrix"):
            pairwise_advantages(matrix)


outcome = st.floats(-3, 3)
pairs = st.integers(2, 6).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.dictionaries(
            st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] != p[1]), outcome
        ),
    )
)


@pytest.mark.whole
@given(pairs)
def test_matrices_are_skew_and_advantages_centred(drawn):
    n, outcomes = drawn
    matrix = skew_matrix(n, outcomes)
    assert all(matrix[i][j] == -matrix[j][i] for i in range(n) for j in range(n))
    swapped = {(j, i): -d for (i, j), d in outcomes.items()}
    assert skew_matrix(n, swapped) == matrix
    for scale in (True, False):
        assert math.fsum(pairwise_advantages(matrix, scale=scale)) == pytest.approx(0.0, abs=1e-9)


@given(rewards=st.lists(st.floats(-5, 5), min_size=2, max_size=7))
def test_of_differences_of_rewards_it_is_the_z_score(rewards):
    n, mean = len(rewards), math.fsum(rewards) / len(rewards)
    matrix = skew_matrix(n, {(i, j): rewards[i] - rewards[j] for i in range(n) for j in range(i)})
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (n - 1) + 1e-6)
    assert pairwise_advantages(matrix) == pytest.approx([(r - mean) / deviation for r in rewards], abs=1e-6)
