"""Advantages of ``Grpo`` against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
from cotrain.learn.grpo import Grpo, Kl
from learn_makers import advantages, annotated, outcomes

from cotrain.core.errors import ConfigError, StateError, UnknownName
from cotrain.learn.balance import ClassBalance
from cotrain.learn.mixing import decay

ROOT_HALF = math.sqrt(0.5)
TOLERANCE = 3e-6  # of ε = 1e-6 beside standard deviations near 1
TANGO = Grpo(mix={"outcome": 1.0, "step": decay(0.1, 1e-3)})


def credit(algorithm, traces, updates=0, planned=10):
    return algorithm.credit(traces, updates=updates, planned=planned)


def tango_pair():
    """Two solutions of one problem: K = 2 steps (+, −) and wrong; K = 1 step (+) and right."""
    first = [("outcome", 0.0), ("step", 1.0, (0, 2)), ("step", -1.0, (2, 4))]
    second = [("outcome", 1.0), ("step", 1.0, (0, 3))]
    return [annotated(length=5, signals=first), annotated(length=3, signals=second, call=1)]


def test_outcome_alone():
    result = credit(Grpo(mix={"outcome": 1.0}), outcomes(1.0, 0.0, 0.0, 1.0))
    z = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert advantages(result) == [pytest.approx([s * z] * 4, rel=1e-6) for s in (1, -1, -1, 1)]
    assert result.metrics["reward/outcome"] == 0.5


def test_without_std_only_the_mean_is_taken_off():
    result = credit(Grpo(mix={"outcome": 2.0}, std=False), outcomes(1.0, 0.0, 0.0, 0.0))
    assert advantages(result) == [pytest.approx([a] * 4) for a in (1.5, -0.5, -0.5, -0.5)]


def test_tango_with_unequal_numbers_of_steps_by_hand():
    # pool of r/K: 1/2, −1/2, 1; mean 1/3; sample std √21/6
    std = math.sqrt(21) / 6
    z1, z2, z3 = (1 / 6) / std, (-5 / 6) / std, (2 / 3) / std
    result = credit(TANGO, tango_pair())
    first = [-0.9 * ROOT_HALF + 0.1 * a for a in (z1 + z2, z1 + z2, z2, z2, 0.0)]
    second = [0.9 * ROOT_HALF + 0.1 * z3] * 3
    assert advantages(result) == [pytest.approx(first, abs=TOLERANCE), pytest.approx(second, abs=TOLERANCE)]
    assert result.metrics["mix/outcome"] == pytest.approx(0.9)
    assert result.metrics["mix/step"] == pytest.approx(0.1)
    assert result.metrics["count/step"] == 1.5


def test_the_mixture_follows_this_policys_updates():
    late = credit(TANGO, tango_pair(), updates=10, planned=10)
    assert late.metrics["mix/step"] == pytest.approx(1e-3)
    assert late.samples[0].advantages[4].item() == pytest.approx(-0.999 * ROOT_HALF, abs=TOLERANCE)


def test_steps_worth_one_each():
    algorithm = Grpo(mix={"step": 1.0}, step_scale="one")
    # pool 1, −1, 1; mean 1/3; squares (4 + 16 + 4)/9, sample std √(12/9)
    std = math.sqrt(12 / 9)
    expected = [(2 / 3 - 4 / 3) / std] * 2 + [(-4 / 3) / std] * 2 + [0.0]
    assert advantages(credit(algorithm, tango_pair()))[0] == pytest.approx(expected, abs=TOLERANCE)


def test_additive_blend_keeps_the_outcome_whole():
    algorithm = Grpo(mix={"outcome": 1.0, "step": 0.5}, blend="add", std=False)
    # outcome ±1/2; steps minus 1/3: 1/6, −5/6, 2/3
    assert advantages(credit(algorithm, tango_pair())) == [
        pytest.approx([-0.5 - 1 / 3, -0.5 - 1 / 3, -0.5 - 5 / 12, -0.5 - 5 / 12, -0.5]),
        pytest.approx([0.5 + 1 / 3] * 3),
    ]


def test_several_reviews_of_one_step_are_averaged():
    twice = [("step", 1.0, (0, 2)), ("step", -1.0, (0, 2)), ("step", 1.0, (2, 4)), ("step", 1.0, (2, 4))]
    once = [("step", -1.0, (0, 4))]
    algorithm = Grpo(mix={"step": 1.0}, std=False)
    # K = 2: pool 1/2, −1/2, 1/2, 1/2, −1; mean 0; step 1: (1/2 − 1/2)/2 = 0, step 2: 1/2
    result = credit(algorithm, [annotated(signals=twice), annotated(signals=once, call=1)])
    assert advantages(result) == [pytest.approx([0.5] * 4), pytest.approx([-1.0] * 4)]
    assert result.metrics["count/step"] == 1.5


def test_a_trace_without_step_signals_keeps_its_share_of_the_outcome():
    traces = [*tango_pair(), annotated(length=2, signals=[("outcome", 0.5)], call=2)]
    result = credit(Grpo(mix={"outcome": 1.0, "step": 0.1}), traces)
    assert result.metrics["coverage/step"] == pytest.approx(2 / 3)
    assert advantages(result)[2] == pytest.approx([0.0, 0.0])  # outcome at the mean, no process advantage
    none = [annotated(signals=[("outcome", r)], call=i) for i, r in enumerate((0.0, 1.0))]
    assert advantages(credit(Grpo(mix={"outcome": 1.0, "step": 0.1}), none))[1] == pytest.approx(
        [0.9 * ROOT_HALF] * 4, abs=TOLERANCE
    )


def test_merge_sums_rewards_and_separate_channels_sum_advantages():
    traces = [
        annotated(signals=[("agreement", a), ("format", f)], call=i)
        for i, (a, f) in enumerate([(1.0, 1.0), (0.0, 1.0), (0.0, 0.0)])
    ]
    mix = {"agreement": 1.0, "format": 0.8}
    merged = credit(Grpo(mix=mix, merge=True, std=False), traces)  # R = 1.8, 0.8, 0; mean 2.6/3
    assert [a[0] for a in advantages(merged)] == pytest.approx([1.8 - 2.6 / 3, 0.8 - 2.6 / 3, -2.6 / 3])
    apart = credit(Grpo(mix=mix), traces)
    std = math.sqrt(1 / 3)
    expected = [(2 / 3 + 0.8 / 3) / std, (-1 / 3 + 0.8 / 3) / std, (-1 / 3 - 1.6 / 3) / std]
    assert [a[0] for a in advantages(apart)] == pytest.approx(expected, abs=TOLERANCE)


def test_groups_are_compared_with_themselves_alone():
    traces = outcomes(0.0, 1.0, group="a") + outcomes(10.0, 11.0, group="b")
    values = [a[0] for a in advantages(credit(Grpo(mix={"outcome": 1.0}), traces))]
    assert values == pytest.approx([-ROOT_HALF, ROOT_HALF, -ROOT_HALF, ROOT_HALF], abs=TOLERANCE)


def test_zero_spread_is_dropped_and_counted():
    traces = outcomes(1.0, 1.0, 1.0, group="a") + outcomes(0.0, 1.0, group="b") + outcomes(1.0, group="alone")
    result = credit(Grpo(mix={"outcome": 1.0}), traces)
    assert len(result.samples) == 2
    assert result.dropped == {"zero_spread": 4}
    assert result.metrics["zero_spread_groups"] == pytest.approx(2 / 3)
    kept = credit(Grpo(mix={"outcome": 1.0}, drop_zero_spread=False), traces)
    assert len(kept.samples) == 6
    assert advantages(kept)[0] == [0.0] * 4
    assert kept.dropped == {}


def test_spread_in_one_channel_keeps_the_group():
    same = [[("outcome", 1.0), ("step", s, (0, 2))] for s in (1.0, -1.0)]
    result = credit(TANGO, [annotated(signals=s, call=i) for i, s in enumerate(same)])
    assert result.dropped == {}
    assert result.metrics["zero_spread_groups"] == 0.0
    assert advantages(result)[0] == pytest.approx([0.1 * ROOT_HALF] * 2 + [0.0, 0.0], abs=TOLERANCE)


def test_unusable_traces_are_dropped_with_their_reason():
    traces = [
        *outcomes(0.0, 1.0),
        annotated(signals=[], call=2),
        annotated(signals=[("outcome", float("nan"))], call=3),
        annotated(signals=[("outcome", 5.0)], length=0, call=4),
    ]
    result = credit(Grpo(mix={"outcome": 1.0}), traces)
    assert result.dropped == {"no outcome": 1, "non-finite outcome": 1, "no tokens": 1}
    assert [a[0] for a in advantages(result)] == pytest.approx([-ROOT_HALF, ROOT_HALF], abs=TOLERANCE)


def test_nothing_at_all():
    for traces in ([], [annotated(signals=[])]):
        result = credit(replace(TANGO, balance=ClassBalance()), traces)
        assert result.samples == ()
    assert result.dropped == {"no outcome": 1}


def labelled(*pairs):
    return [annotated(signals=[("agreement", r), ("truth", t)], call=i) for i, (r, t) in enumerate(pairs)]


def test_class_weights_multiply_samples_and_not_advantages():
    algorithm = Grpo(mix={"agreement": 1.0}, balance=ClassBalance(label="truth", ema=0.8))
    traces = labelled((1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    result = credit(algorithm, traces)
    s = [1 / math.sqrt(0.6), 1 / math.sqrt(0.2)]
    mean = (3 * s[0] + s[1]) / 4
    assert [x.weight for x in result.samples] == pytest.approx([s[0] / mean] * 3 + [s[1] / mean])
    assert advantages(result) == advantages(credit(Grpo(mix={"agreement": 1.0}), traces))
    assert result.metrics["balance/positive"] == pytest.approx(0.25)
    assert algorithm.state()["classes"] == pytest.approx([0.6, 0.2])
    credit(algorithm, traces)
    assert algorithm.state()["classes"] == pytest.approx([0.8 * 0.6 + 0.6, 0.8 * 0.2 + 0.2])


def test_class_weights_have_mean_one_over_what_is_trained_on():
    algorithm = Grpo(mix={"agreement": 1.0}, balance=ClassBalance())
    flat = [annotated(group="flat", signals=[("agreement", 1.0), ("truth", 0.0)], call=i) for i in range(5)]
    result = credit(algorithm, labelled((1.0, 0.0), (0.0, 1.0)) + flat)
    assert len(result.samples) == 2
    assert sum(x.weight for x in result.samples) == pytest.approx(2.0)
    assert algorithm.state()["classes"] == pytest.approx([0.2 * 6, 0.2 * 1])  # dropped groups are counted


def test_state_goes_round_and_copies_start_afresh():
    algorithm = Grpo(mix={"agreement": 1.0}, balance=ClassBalance())
    credit(algorithm, labelled((1.0, 0.0), (0.0, 1.0)))
    twin = replace(algorithm)
    assert twin == algorithm
    assert twin.state() == {"baselines": {}, "classes": [0.0, 0.0]}
    twin.load(algorithm.state())
    assert twin.state() == algorithm.state()
    with pytest.raises(StateError, match="unknown"):
        twin.load({**algorithm.state(), "more": 1})
    with pytest.raises(StateError, match="missing"):
        twin.load({"classes": [0.0, 0.0]})
    assert twin.state() == algorithm.state()


def test_needs():
    algorithm = Grpo(mix={"outcome": 1.0}, kl=Kl("start"), entropy=0.001, balance=ClassBalance())
    needs = algorithm.needs()
    assert (needs.group, needs.reference, needs.entropy, needs.on_policy) == (2, "start", True, True)
    assert Grpo(mix={"outcome": 1.0}).needs().entropy is False


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"mix": {}}, "names no signal"),
        ({"estimator": "grop"}, "did you mean 'grpo'"),
        ({"normalise": "tokens"}, "did you mean 'token'"),
        ({"normalise": "constant"}, "belong together"),
        ({"constant": 5.0}, "belong together"),
        ({"clip": (1.2, 0.2)}, "clip"),
        ({"clip": None, "ratio": "sequence"}, "needs clip"),
        ({"truncate": 2.0}, "clip=None"),
        ({"mix": {"outcome": 1.0, "step": 1.5}}, "must lie in"),
        ({"mix": {"outcome": 1.0, "a": 0.6, "b": 0.6}, "process": ("a", "b")}, "at most 1"),
        ({"mix": {"step": 1.0}, "merge": True}, "no whole-trace signal"),
        ({"balance": ClassBalance(label="outcome")}, "both a reward and the label"),
        ({"step_scale": "K"}, "step_scale"),
        ({"blend": "mean"}, "blend"),
    ],
)
def test_settings_that_make_no_sense(settings, match):
    with pytest.raises((ConfigError, UnknownName), match=match):
        Grpo(**{"mix": {"outcome": 1.0}, **settings})


def test_protocol_and_algorithm_must_agree_on_kinds_of_signals():
    with pytest.raises(ConfigError, match="span of tokens"):
        credit(Grpo(mix={"outcome": 1.0}), [annotated(signals=[("outcome", 1.0, (0, 2))])])
    with pytest.raises(ConfigError, match="whole trace"):
        credit(Grpo(mix={"step": 1.0}), [annotated(signals=[("step", 1.0)])])
    with pytest.raises(ConfigError, match="2 times"):
        credit(Grpo(mix={"outcome": 1.0}), [annotated(signals=[("outcome", 1.0), ("outcome", 0.0)])])
    with pytest.raises(ConfigError, match=r"tokens \[2, 9\) in 4"):
        credit(Grpo(mix={"step": 1.0}), [annotated(signals=[("step", 1.0, (2, 9))])])
    with pytest.raises(ConfigError, match="no trace has it"):
        credit(Grpo(mix={"outcome": 1.0}, balance=ClassBalance()), outcomes(1.0, 0.0))
    with pytest.raises(ConfigError, match="class label"):
        signals = [("outcome", 1.0), ("truth", 0.5)]
        credit(Grpo(mix={"outcome": 1.0}, balance=ClassBalance()), [annotated(signals=signals)])
