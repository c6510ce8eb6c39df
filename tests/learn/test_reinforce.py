import math

import pytest
from cotrain.learn.grpo import Grpo
from cotrain.learn.reinforce import Reinforce, ReinforcePlusPlus, Rloo
from learn_makers import advantages, annotated, outcomes


def credit(algorithm, traces):
    return algorithm.credit(traces, updates=0, planned=10)


def steps(*values_and_ends, length=4, call=0, outcome=None):
    signals = [("step", v, (e, e + 1)) for v, e in values_and_ends]
    return annotated(
        signals=signals + ([("outcome", outcome)] if outcome is not None else []), length=length, call=call
    )


def test_rloo_by_hand():
    result = credit(Rloo(mix={"outcome": 1.0}), outcomes(1.0, 0.0, 0.0))
    assert [a[0] for a in advantages(result)] == pytest.approx([1.0, -0.5, -0.5])


def test_rloo_pools_the_steps_of_the_group_by_hand():
    traces = [steps((1.0, 0), (-1.0, 2)), steps((1.0, 1), length=2, call=1)]
    # r/K: 1/2, −1/2, 1; minus the mean of the others: 1/2 − 1/4, −1/2 − 3/4, 1 − 0
    assert advantages(credit(Rloo(mix={"step": 1.0}), traces)) == [
        pytest.approx([-1.0, -1.25, -1.25, 0.0]),
        pytest.approx([1.0, 1.0]),
    ]


def test_reinforce_plus_plus_whitens_over_tokens():
    traces = [annotated(signals=[("outcome", 1.0)], length=1), annotated(signals=[("outcome", 0.0)], length=3, call=1)]
    # four tokens 1 0 0 0: mean 1/4, sample std 1/2
    result = credit(ReinforcePlusPlus(mix={"outcome": 1.0}), traces)
    assert advantages(result) == [pytest.approx([1.5], abs=4e-6), pytest.approx([-0.5] * 3, abs=4e-6)]


def test_reinforce_plus_plus_steps_reach_every_token_before_they_are_whitened():
    traces = [
        steps((1.0, 0), (-1.0, 1), length=2, outcome=1.0),
        annotated(signals=[("outcome", 1.0)], length=3, call=1),
    ]
    result = credit(ReinforcePlusPlus(mix={"outcome": 1.0, "step": 1.0}), traces)
    # reward-to-go 0, −1/2 over the tokens of the one trace with steps: mean −1/4, sample std √2/4
    z = 0.25 / (math.sqrt(2) / 4)
    assert advantages(result) == [pytest.approx([z, -z], abs=4e-6), [0.0] * 3]
    assert result.dropped == {}


def test_reinforce_plus_plus_uses_groups_without_spread():
    result = credit(
        ReinforcePlusPlus(mix={"outcome": 1.0}), outcomes(1.0, 1.0, group="a") + outcomes(0.0, 0.0, group="b")
    )
    assert len(result.samples) == 4
    assert result.metrics["zero_spread_groups"] == 1.0


def test_running_baseline_of_each_role_by_hand():
    def play(first, second):
        signals = [[("outcome", first)], [("outcome", second)]]
        return [annotated(role=r, group=r, signals=s) for r, s in zip(("black", "white"), signals, strict=True)]

    algorithm = Reinforce(mix={"outcome": 1.0}, baseline_decay=0.5)
    assert credit(algorithm, play(1.0, 0.0)).dropped == {"zero_spread": 2}  # the first batch is its own baseline
    assert [a[0] for a in advantages(credit(algorithm, play(0.0, 1.0)))] == pytest.approx([-1.0, 1.0])
    assert algorithm.state()["baselines"] == {"black/outcome": [0.5, 2], "white/outcome": [0.5, 2]}
    assert [a[0] for a in advantages(credit(algorithm, play(0.0, 1.0)))] == pytest.approx([-0.5, 0.5])


def test_resumed_baseline_goes_on():
    one, two = (Reinforce(mix={"outcome": 1.0, "step": 0.5}) for _ in range(2))
    batches = [[steps((1.0, 0), (-1.0, 2), outcome=o)] for o in (1.0, 0.0, 1.0)]
    for batch in batches[:2]:
        credit(one, batch)
    two.load(one.state())
    assert advantages(credit(one, batches[2])) == advantages(credit(two, batches[2])) != []


def test_only_defaults_differ():
    mix = {"outcome": 1.0}
    traces = outcomes(1.0, 0.0, 0.0)
    assert advantages(credit(Rloo(mix=mix), traces)) == advantages(credit(Grpo(mix=mix, estimator="rloo"), traces))
    assert (Reinforce(mix=mix).clip, Reinforce(mix=mix).needs().group) == (None, 1)
    assert Rloo(mix=mix).needs().group == 2
