"""The tournament that chooses among solutions: its pairs, its ratings, and who wins."""

from __future__ import annotations

import asyncio
from itertools import combinations

import pytest

from cotrain.rollout.tournament import pair_neighbours, rate_by_tournament, win_rates


def rated(margin_of, count, rounds=2):
    asked = []

    async def margin(i, j):
        asked.append((i, j))
        return margin_of(i, j)

    return asyncio.run(rate_by_tournament(margin, count, rounds=rounds)), asked


def test_win_rates_by_hand():
    """0 beats 1 by 0.5 and loses to 2 by 0.25; 1 and 2 are even, which weighs τ = 0.1."""
    found = win_rates(4, {(0, 1): 0.5, (0, 2): -0.25, (1, 2): 0.0, (1, 3): None})
    assert found == pytest.approx([0.5 / 0.75, 0.05 / 0.6, (0.25 + 0.05) / 0.35, 0.5])


def test_neighbours_that_have_not_met_are_paired():
    assert pair_neighbours([0.1, 0.9, 0.5, 0.4], {}) == [(0, 3), (1, 2)]
    assert pair_neighbours([0.1, 0.9, 0.5, 0.4], {(1, 2): 1.0}) == [(0, 2), (1, 3)]
    assert pair_neighbours([0.5, 0.5], {(0, 1): None}) == []


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("best", range(3))
def test_who_beats_all_wins_in_few_comparisons(count, best):
    if best >= count:
        return
    strength = {i: -abs(i - best) for i in range(count)}
    ratings, asked = rated(lambda i, j: float((strength[i] > strength[j]) - (strength[i] < strength[j])), count)
    assert len(ratings) == count and max(ratings) == ratings[best]
    assert len(asked) == len(set(asked)) <= min(count + 2 * (count // 2), count * (count - 1) // 2)
    assert all(i < j for i, j in asked)
    assert all(sum(i in pair for pair in asked) >= min(2, count - 1) for i in range(count))


def test_more_rounds_than_pairs_ask_each_pair_once():
    _, asked = rated(lambda i, j: 0.3, 4, rounds=9)
    assert sorted(asked) == list(combinations(range(4), 2))


def test_a_judge_that_says_nothing_moves_nobody():
    assert rated(lambda i, j: None, 5)[0] == [0.5] * 5
    assert rated(lambda i, j: 0.0, 5)[0] == [0.5] * 5
