import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.algorithms.functional.advantages import (
    add_at_tokens,
    ema_baseline,
    group_is_flat,
    group_mean_std,
    leave_one_out,
    reward_to_go,
    whiten,
)


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def pools(*index):
    return torch.tensor(index, dtype=torch.int64)


def test_group_mean_std_by_hand():
    values, index = f64(1, 2, 0, 5, 0, 1), pools(0, 1, 0, 1, 0, 0)  # pool 0: 1 0 0 1; pool 1: 2 5
    sample = group_mean_std(values, index, std="sample")
    s0, s1 = math.sqrt(1 / 3) + 1e-6, math.sqrt(4.5) + 1e-6
    assert sample.tolist() == pytest.approx([0.5 / s0, -1.5 / s1, -0.5 / s0, 1.5 / s1, -0.5 / s0, 0.5 / s0], rel=1e-12)
    population = group_mean_std(values, index, std="population")
    assert population[0].item() == pytest.approx(0.5 / (0.5 + 1e-6), rel=1e-12)
    centred = group_mean_std(values, index, std=None)
    assert centred.tolist() == [0.5, -1.5, -0.5, 1.5, -0.5, 0.5]


def test_sample_std_is_that_of_torch():
    torch.manual_seed(1)
    values = torch.randn(7, dtype=torch.float64)
    expected = (values - values.mean()) / (values.std() + 1e-6)
    torch.testing.assert_close(group_mean_std(values, pools(*[0] * 7), std="sample"), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("std", ["sample", "population", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_values_give_exact_zeros_and_so_does_a_pool_of_one(std, dtype):
    values = torch.tensor([0.1, 0.1, 0.1, 0.7], dtype=dtype)  # the float32 mean of three 0.1 is not 0.1
    assert group_mean_std(values, pools(0, 0, 0, 1), std=std).tolist() == [0, 0, 0, 0]
    assert leave_one_out(values, pools(0, 0, 0, 1)).tolist() == [0, 0, 0, 0]


def test_leave_one_out_by_hand():
    values, index = f64(1, 0, 0, 3, 5), pools(0, 0, 0, 1, 1)
    assert leave_one_out(values, index).tolist() == pytest.approx([1.0, -0.5, -0.5, -2.0, 2.0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5, width=32)), min_size=1, max_size=20))
def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others(pairs):
    index, values = pools(*[p for p, _ in pairs]), f64(*[v for _, v in pairs])
    result = leave_one_out(values, index)
    for i, (pool, value) in enumerate(pairs):
        others = [v for j, (p, v) in enumerate(pairs) if p == pool and j != i]
        expected = value - sum(others) / len(others) if others else 0.0
        assert result[i].item() == pytest.approx(expected, abs=1e-9)


def test_flat_pools():
    values, index = f64(1, 1, 2, 3, 9), pools(0, 0, 1, 1, 2)
    assert group_is_flat(values, index, 4).tolist() == [True, False, True, True]  # pool 3 has no value


def test_whiten_by_hand():
    assert whiten(f64(1, 3)).tolist() == pytest.approx([-1 / (math.sqrt(2) + 1e-6), 1 / (math.sqrt(2) + 1e-6)])
    assert whiten(f64(1, 3), std="population").tolist() == pytest.approx([-1 / (1 + 1e-6), 1 / (1 + 1e-6)])
    assert whiten(f64(4, 4)).tolist() == [0, 0]


def test_ema_baseline_by_hand():
    """Two moves of the game "a", one of "b" between them: a game counts once, by its mean, after it was compared."""
    advantages, ema = ema_baseline(f64(1, -1, 0), ["a", "b", "a"], 0.2, decay=0.9)
    after_a = 0.9 * 0.2 + 0.1 * 0.5
    assert advantages.tolist() == pytest.approx([0.8, -1.0 - after_a, -0.2])
    assert ema == pytest.approx(0.9 * after_a - 0.1)


def test_place_and_reward_to_go_by_hand():
    assert add_at_tokens(f64(1, 2, 4), pools(3, 0, 3), 5).tolist() == [2, 0, 0, 5, 0]
    assert reward_to_go(f64(1, 0, 2, 3)).tolist() == [6, 5, 5, 3]
    assert reward_to_go(f64(1, 0, 2, 4), gamma=0.5).tolist() == [1 + 0.5 + 0.5, 2, 4, 4]
    assert reward_to_go(f64(3), gamma=0.5).tolist() == [3]
    assert reward_to_go(torch.stack([f64(0, 1), f64(2, 0)]), gamma=0.5).tolist() == [[0.5, 1], [2, 0]]
    with pytest.raises(ValueError, match="3 tokens"):
        add_at_tokens(f64(1), pools(3), 3)
    with pytest.raises(ValueError, match="3 tokens"):
        add_at_tokens(f64(1), pools(-1), 3)


def test_a_placed_value_summed_to_the_front_is_the_sum_over_steps_that_end_here_or_later():
    scores, ends = f64(0.5, -2.0, 1.0), pools(1, 3, 4)
    expected = [sum(z for z, e in zip(scores.tolist(), ends.tolist(), strict=True) if e >= t) for t in range(6)]
    assert reward_to_go(add_at_tokens(scores, ends, 6)).tolist() == pytest.approx(expected)
    assert expected == [-0.5, -0.5, -1.0, -1.0, 1.0, 0]


def test_refuses_indices_that_do_not_fit():
    with pytest.raises(ValueError, match="int64"):
        group_mean_std(f64(1, 2), torch.tensor([0.0, 0.0]), std=None)
    with pytest.raises(ValueError, match="expected values"):
        leave_one_out(f64(1, 2), pools(0))
