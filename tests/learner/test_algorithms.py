"""The named algorithms against numbers worked out by hand."""

import json
import math
from dataclasses import replace
from typing import get_args

import pytest
from learn_makers import advantages, credit, credit_and_state, outcomes, sampled

from cotrain.algorithms.functional.advantages import leave_one_out, whiten
from cotrain.algorithms.grpo import ALGORITHMS, GRPO, RLOO, AlgorithmName, MaxRL, Reinforce, ReinforcePP
from cotrain.algorithms.policy_gradient import mean_baseline
from cotrain.algorithms.policy_loss import ScoreFunction
from cotrain.algorithms.running_mean import RunningMean
from cotrain.core.signals import OUTCOME, STEP
from tests.sentences import refuses


def steps(*values_and_ends, length=4, call=0, outcome=None):
    signals = [("step", v, (e, e + 1)) for v, e in values_and_ends]
    return sampled(signals=signals + ([("outcome", outcome)] if outcome is not None else []), length=length, call=call)


def test_rloo_by_hand():
    result = credit(RLOO(reward_weights={OUTCOME: 1.0}), outcomes(1.0, 0.0, 0.0))
    assert [a[0] for a in advantages(result)] == pytest.approx([1.0, -0.5, -0.5])


def test_rloo_pools_the_steps_of_the_group_by_hand():
    traces = [steps((1.0, 0), (-1.0, 2)), steps((1.0, 1), length=2, call=1)]
    # r/K: 1/2, −1/2, 1; minus the mean of the others: 1/2 − 1/4, −1/2 − 3/4, 1 − 0
    assert advantages(credit(RLOO(reward_weights={STEP: 1.0}), traces)) == [
        pytest.approx([-1.0, -1.25, -1.25, 0.0]),
        pytest.approx([1.0, 1.0]),
    ]


def test_reinforce_plus_plus_whitens_over_tokens():
    traces = [sampled(signals=[("outcome", 1.0)], length=1), sampled(signals=[("outcome", 0.0)], length=3, call=1)]
    # four tokens 1 0 0 0: mean 1/4, sample std 1/2
    result = credit(ReinforcePP(reward_weights={OUTCOME: 1.0}), traces)
    assert advantages(result) == [pytest.approx([1.5], abs=4e-6), pytest.approx([-0.5] * 3, abs=4e-6)]


def test_reinforce_plus_plus_steps_reach_every_token_before_they_are_whitened():
    traces = [
        steps((1.0, 0), (-1.0, 1), length=2, outcome=1.0),
        sampled(signals=[("outcome", 1.0)], length=3, call=1),
    ]
    result = credit(ReinforcePP(reward_weights={OUTCOME: 1.0, STEP: 1.0}), traces)
    # reward-to-go 0, −1/2 over the tokens of the one trace with steps: mean −1/4, sample std √2/4
    z = 0.25 / (math.sqrt(2) / 4)
    assert advantages(result) == [pytest.approx([z, -z], abs=4e-6), [0.0] * 3]
    assert result.dropped == {}


def test_reinforce_plus_plus_uses_groups_without_spread():
    result = credit(
        ReinforcePP(reward_weights={OUTCOME: 1.0}), outcomes(1.0, 1.0, group="a") + outcomes(0.0, 0.0, group="b")
    )
    assert len(result.samples) == 4
    assert result.metrics["zero_spread_groups"] == 0.0  # rewards of the batch are compared, and they differ
    alone = credit(ReinforcePP(reward_weights={OUTCOME: 1.0}), outcomes(1.0, group="a") + outcomes(0.0, group="b"))
    assert alone.metrics["zero_spread_groups"] == 0.0 and all(a != [0.0] * 4 for a in advantages(alone))
    equal = credit(ReinforcePP(reward_weights={OUTCOME: 1.0}), outcomes(1.0, group="a") + outcomes(1.0, group="b"))
    assert equal.metrics["zero_spread_groups"] == 1.0


def test_running_baseline_of_each_role_by_hand():
    def play(first, second):
        signals = [[("outcome", first)], [("outcome", second)]]
        return [sampled(role=r, group=r, signals=s) for r, s in zip(("black", "white"), signals, strict=True)]

    algorithm = Reinforce(reward_weights={OUTCOME: 1.0}, baseline=RunningMean(0.5))
    first, state = credit_and_state(algorithm, play(1.0, 0.0))
    assert first.dropped == {"zero_spread": 1} and advantages(first)[0][0] == 1.0  # before the first game it is 0
    second, state = credit_and_state(algorithm, play(0.0, 1.0), state=state)
    assert [a[0] for a in advantages(second)] == pytest.approx([-0.5, 1.0])
    assert state == {"baselines": {"black/outcome": 0.25, "white/outcome": 0.5}}
    third = credit(algorithm, play(0.0, 1.0), state=state)
    assert [a[0] for a in advantages(third)] == pytest.approx([-0.25, 0.5])
    with refuses("E_RUNNING_MEAN_DECAY"):
        RunningMean(1.0)


def test_resumed_baseline_goes_on():
    algorithm = Reinforce(reward_weights={OUTCOME: 1.0, STEP: 0.5})
    batches = [[steps((1.0, 0), (-1.0, 2), outcome=o)] for o in (1.0, 0.0, 1.0)]
    state = {}
    for batch in batches[:2]:
        _, state = credit_and_state(algorithm, batch, state=state)
    one = advantages(credit(algorithm, batches[2], state=state))
    two = advantages(credit(replace(algorithm), batches[2], state=json.loads(json.dumps(state))))
    assert one == two != advantages(credit(algorithm, batches[2]))


def test_maxrl_by_hand():
    # one of four is right: mean 1/4; three of four: mean 3/4
    traces = outcomes(1.0, 0.0, 0.0, 0.0, group="hard") + outcomes(1.0, 1.0, 1.0, 0.0, group="easy")
    result = credit(MaxRL(reward_weights={OUTCOME: 1.0}), traces)
    expected = [3.0, -1.0, -1.0, -1.0, 1 / 3, 1 / 3, 1 / 3, -1.0]
    assert [a[0] for a in advantages(result)] == pytest.approx(expected)


def test_maxrl_learns_nothing_from_a_group_without_success_or_without_failure():
    traces = outcomes(0.0, 0.0, group="none") + outcomes(1.0, 1.0, group="all") + outcomes(1.0, group="alone")
    result = credit(MaxRL(reward_weights={OUTCOME: 1.0}), traces)
    assert result.samples == () and result.dropped == {"zero_spread": 5}
    with refuses("E_MAXRL_REWARD", names="-1"):
        credit(MaxRL(reward_weights={OUTCOME: 1.0}), outcomes(1.0, -1.0))


def test_an_estimator_over_the_batch_may_follow_one_within_the_group():
    whitened = GRPO(reward_weights={OUTCOME: 1.0}, advantage=mean_baseline, over_batch=whiten)
    found = [
        a[0]
        for a in advantages(credit(whitened, outcomes(1.0, 0.0, length=1) + outcomes(3.0, 1.0, group="h", length=1)))
    ]
    # ±1/2 and ±1, mean 0, squares 2.5 over 3
    assert found == pytest.approx([x / math.sqrt(2.5 / 3) for x in (0.5, -0.5, 1.0, -1.0)], abs=4e-6)


def test_only_the_functions_differ():
    rewards = {OUTCOME: 1.0}
    assert (
        RLOO(reward_weights=rewards)
        == GRPO(reward_weights=rewards, advantage=leave_one_out)
        != GRPO(reward_weights=rewards)
    )
    made = Reinforce(reward_weights=rewards)
    assert (made.loss, made.needs().min_group_size, RLOO(reward_weights=rewards).needs().min_group_size) == (
        ScoreFunction(),
        1,
        2,
    )
    assert tuple(ALGORITHMS) == get_args(AlgorithmName)
    assert ALGORITHMS["dr_grpo"](reward_weights=rewards).advantage is mean_baseline and ALGORITHMS["maxrl"] is MaxRL


def test_samples_that_two_edits_leave_out_for_one_reason_are_added_up():
    def drop_first(samples):
        return list(samples[1:]), {"cut": 1}

    for field in ("edit_before", "edit_after"):
        algorithm = GRPO(reward_weights={OUTCOME: 1.0}, **{field: (drop_first, drop_first)})
        assert credit(algorithm, outcomes(1.0, 0.0, 0.0, 1.0)).dropped == {"cut": 2}, field
