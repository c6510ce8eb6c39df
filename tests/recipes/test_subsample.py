"""Balanced sampling after advantages: which samples of a group are learned from."""

import math

import pytest

from cotrain.algorithms.grpo import GRPO
from cotrain.algorithms.policy_gradient import drop_flat_groups
from cotrain.core.signals import OUTCOME
from cotrain.recipes.mars.subsample import Subsample
from tests.learner.learn_makers import advantages, credit, outcomes, sampled
from tests.sentences import refuses

KEYS = [f"0:0:{i}:digester:0" for i in range(6)]


def test_small_groups_are_repeated_by_hand():
    five = Subsample(size=5).draw_indices(KEYS[:2], [1.0, 1.0])
    assert sorted(five.count(i) for i in (0, 1)) == [2, 3]
    assert Subsample(size=4).draw_indices(KEYS[:2], [1.0, 1.0]) == [0, 0, 1, 1]
    assert Subsample(size=4, exact=False).draw_indices(KEYS[:2], [1.0, 1.0]) == [0, 1]
    assert Subsample(size=4).draw_indices([], []) == []


def test_large_groups_are_thinned_by_address():
    some = Subsample(size=3).draw_indices(KEYS, [1.0] * 6)
    assert len(set(some)) == 3 and some == sorted(some) == Subsample(size=3).draw_indices(KEYS, [5.0] * 6)
    moved = Subsample(size=3).draw_indices(KEYS[::-1], [1.0] * 6)
    assert {KEYS[i] for i in some} == {KEYS[::-1][i] for i in moved}  # the place does not matter
    assert Subsample(size=1, sampling="advantage").draw_indices(KEYS, [0, 0, 0, 2.0, 0, 0]) == [3]
    assert Subsample(size=2, sampling="advantage").draw_indices(KEYS[:3], [0.0, 0.1, 2.0]) == [1, 2]


@pytest.mark.whole
def test_chances_are_equal_or_proportional_to_the_advantage():
    pairs = [(f"{i}:a", f"{i}:b") for i in range(4000)]
    for sampling, share in (("random", 0.5), ("advantage", 0.75)):
        first = sum(Subsample(size=1, sampling=sampling).draw_indices(pair, [3.0, 1.0]) == [0] for pair in pairs)
        assert abs(first / len(pairs) - share) < 0.02


def brought_to(size):
    return GRPO(reward_weights={OUTCOME: 1.0}, edit_after=(drop_flat_groups, Subsample(size=size)))


def test_statistics_are_those_of_all_traces():
    traces = outcomes(1.0, 0.0, 0.0, 0.0, 0.0, 0.0) + outcomes(1.0, 1.0, group="h")  # h has nothing to teach
    result = credit(brought_to(2), traces)
    deviation = math.sqrt(5 / 36 + 1 / 36) + 1e-6  # (25 + 5)/36 over 5
    whole = {round((r - 1 / 6) / deviation, 4) for r in (0.0, 1.0)}
    assert len(result.samples) == 2 and {round(a[0], 4) for a in advantages(result)} <= whole
    assert result.dropped == {"zero_spread": 2, "subsample": 4}
    few = credit(brought_to(4), outcomes(1.0, 0.0))
    assert [s.key for s in few.samples] == [sampled(call=i).key for i in (0, 0, 1, 1)]


def test_nonsense_is_refused():
    with refuses("E_SETTING_RANGE"):
        Subsample(size=0)
    with refuses("E_UNKNOWN_SAMPLING"):
        Subsample(size=1, sampling="luck")
