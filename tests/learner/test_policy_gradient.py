"""Advantages of ``PolicyGradient`` against numbers worked out by hand."""

import json
import math
from dataclasses import replace

import pytest
from learn_makers import advantages, credit, credit_and_state, outcomes, sampled

from cotrain.algorithms.advantage_edits import TrainWithPromptOf
from cotrain.algorithms.class_balance import ClassBalance
from cotrain.algorithms.grpo import GRPO, DrGRPO
from cotrain.algorithms.policy_gradient import KLPenalty, PolicyGradient, drop_flat_groups
from cotrain.algorithms.samples import decay, linear
from cotrain.core.signals import AGREEMENT, CLASS_LABEL, FORMAT, OUTCOME, STEP, Signal
from tests.sentences import refuses

ROOT_HALF = math.sqrt(0.5)
TOLERANCE = 3e-6  # of ε = 1e-6 beside standard deviations near 1
TANGO = GRPO(reward_weights={OUTCOME: 1.0, STEP: decay(0.1, 1e-3)})


def tango_pair():
    """Two solutions of one problem: K = 2 steps (+, −) and wrong; K = 1 step (+) and right."""
    first = [("outcome", 0.0), ("step", 1.0, (0, 2)), ("step", -1.0, (2, 4))]
    second = [("outcome", 1.0), ("step", 1.0, (0, 3))]
    return [sampled(length=5, signals=first), sampled(length=3, signals=second, call=1)]


def test_outcome_alone():
    result = credit(GRPO(reward_weights={OUTCOME: 1.0}), outcomes(1.0, 0.0, 0.0, 1.0))
    z = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert advantages(result) == [pytest.approx([s * z] * 4, rel=1e-6) for s in (1, -1, -1, 1)]
    assert result.metrics["reward/outcome"] == 0.5


def test_without_std_only_the_mean_is_taken_off():
    result = credit(DrGRPO(reward_weights={OUTCOME: 2.0}), outcomes(1.0, 0.0, 0.0, 0.0))
    assert advantages(result) == [pytest.approx([a] * 4) for a in (1.5, -0.5, -0.5, -0.5)]


def test_tango_with_unequal_numbers_of_steps_by_hand():
    # pool of r/K: 1/2, −1/2, 1; mean 1/3; sample std √21/6
    std = math.sqrt(21) / 6
    z1, z2, z3 = (1 / 6) / std, (-5 / 6) / std, (2 / 3) / std
    result = credit(TANGO, tango_pair())
    first = [-0.9 * ROOT_HALF + 0.1 * a for a in (z1 + z2, z1 + z2, z2, z2, 0.0)]
    second = [0.9 * ROOT_HALF + 0.1 * z3] * 3
    assert advantages(result) == [pytest.approx(first, abs=TOLERANCE), pytest.approx(second, abs=TOLERANCE)]
    assert result.metrics["advantage_mix/outcome"] == pytest.approx(0.9)
    assert result.metrics["advantage_mix/step"] == pytest.approx(0.1)
    assert result.metrics["count/step"] == 1.5


def test_the_mixture_follows_this_policys_updates():
    late = credit(TANGO, tango_pair(), updates=10, planned=10)
    assert late.metrics["advantage_mix/step"] == pytest.approx(1e-3)
    assert late.samples[0].advantages[4].item() == pytest.approx(-0.999 * ROOT_HALF, abs=TOLERANCE)


def test_steps_worth_one_each():
    algorithm = GRPO(reward_weights={STEP: 1.0}, step_scale="one")
    # pool 1, −1, 1; mean 1/3; squares (4 + 16 + 4)/9, sample std √(12/9)
    std = math.sqrt(12 / 9)
    expected = [(2 / 3 - 4 / 3) / std] * 2 + [(-4 / 3) / std] * 2 + [0.0]
    assert advantages(credit(algorithm, tango_pair()))[0] == pytest.approx(expected, abs=TOLERANCE)


def test_additive_blend_keeps_the_outcome_whole():
    algorithm = DrGRPO(reward_weights={OUTCOME: 1.0, STEP: 0.5}, advantage_mix="add")
    # outcome ±1/2; steps minus 1/3: 1/6, −5/6, 2/3
    assert advantages(credit(algorithm, tango_pair())) == [
        pytest.approx([-0.5 - 1 / 3, -0.5 - 1 / 3, -0.5 - 5 / 12, -0.5 - 5 / 12, -0.5]),
        pytest.approx([0.5 + 1 / 3] * 3),
    ]


def test_rewards_are_added_before_they_are_compared():
    """r = r_outcome + α · r_process, r_process the mean of the verifier's verdicts on the steps."""
    # solution 1: 0 + 0.5 · (1 − 1)/2 = 0; solution 2: 1 + 0.5 · 1 = 1.5; solution 3, without a review: 0
    group = [*tango_pair(), sampled(length=2, signals=[("outcome", 0.0)], call=2)]
    mean = 1.5 / 3
    plain = credit(DrGRPO(reward_weights={OUTCOME: 1.0, STEP: 0.5}, advantage_mix="reward"), group)
    assert advantages(plain) == [
        pytest.approx([-mean] * 5),
        pytest.approx([1.5 - mean] * 3),
        pytest.approx([-mean] * 2),
    ]
    assert (plain.metrics["advantage_mix/outcome"], plain.metrics["advantage_mix/step"]) == (1.0, 0.5)
    std = math.sqrt((2 * 0.25 + 1.0) / 2)
    scaled = credit(GRPO(reward_weights={OUTCOME: 1.0, STEP: 0.5}, advantage_mix="reward"), group)
    assert [a[0] for a in advantages(scaled)] == pytest.approx([-0.5 / std, 1.0 / std, -0.5 / std], abs=TOLERANCE)


def test_the_process_reward_may_be_the_sum_of_the_steps():
    two_right = [("outcome", 0.0), ("step", 1.0, (0, 2)), ("step", 1.0, (2, 4))]
    one_right = [("outcome", 1.0), ("step", 1.0, (0, 3))]
    pair = [sampled(length=5, signals=two_right), sampled(length=3, signals=one_right, call=1)]
    how = {"reward_weights": {OUTCOME: 1.0, STEP: 0.5}, "advantage_mix": "reward"}
    mean = advantages(credit(DrGRPO(**how), pair))  # 0 + 0.5 · 1 and 1 + 0.5 · 1: 0.5 and 1.5
    assert [a[0] for a in mean] == pytest.approx([-0.5, 0.5])
    total = advantages(credit(DrGRPO(**how, step_scale="one"), pair))  # 0 + 0.5 · 2 and 1 + 0.5 · 1: 1.0 and 1.5
    assert [a[0] for a in total] == pytest.approx([-0.25, 0.25])


def test_the_three_blends_of_one_group_by_hand():
    """Steps of solution 1: +½, −½ of two; of solution 2: +1 of one. Pool of steps: mean 1/3."""
    how = {"reward_weights": {OUTCOME: 1.0, STEP: 0.5}}
    firsts = {
        blend: [a[0] for a in advantages(credit(DrGRPO(**how, advantage_mix=blend), tango_pair()))]
        for blend in ("convex", "add", "reward")
    }
    assert firsts["convex"] == pytest.approx([0.5 * -0.5 + 0.5 * (1 / 6 - 5 / 6), 0.5 * 0.5 + 0.5 * 2 / 3])
    assert firsts["add"] == pytest.approx([-0.5 + 0.5 * (1 / 6 - 5 / 6), 0.5 + 0.5 * 2 / 3])
    assert firsts["reward"] == pytest.approx([-0.75, 0.75])  # 0 and 1.5


def test_the_weight_of_the_process_reward_follows_the_updates():
    by = DrGRPO(reward_weights={OUTCOME: 1.0, STEP: decay(0.1, 1e-3)}, advantage_mix="reward")
    late = credit(by, tango_pair(), updates=10, planned=10)
    assert [a[0] for a in advantages(late)] == pytest.approx([-0.5005, 0.5005])
    assert late.metrics["advantage_mix/step"] == pytest.approx(1e-3)


def test_several_reviews_of_one_step_are_averaged():
    twice = [("step", 1.0, (0, 2)), ("step", -1.0, (0, 2)), ("step", 1.0, (2, 4)), ("step", 1.0, (2, 4))]
    once = [("step", -1.0, (0, 4))]
    algorithm = DrGRPO(reward_weights={STEP: 1.0})
    # K = 2: pool 1/2, −1/2, 1/2, 1/2, −1; mean 0; step 1: (1/2 − 1/2)/2 = 0, step 2: 1/2
    result = credit(algorithm, [sampled(signals=twice), sampled(signals=once, call=1)])
    assert advantages(result) == [pytest.approx([0.5] * 4), pytest.approx([-1.0] * 4)]
    assert result.metrics["count/step"] == 1.5


def test_a_trace_without_step_signals_keeps_its_share_of_the_outcome():
    traces = [*tango_pair(), sampled(length=2, signals=[("outcome", 0.5)], call=2)]
    result = credit(GRPO(reward_weights={OUTCOME: 1.0, STEP: 0.1}), traces)
    assert result.metrics["coverage/step"] == pytest.approx(2 / 3)
    assert advantages(result)[2] == pytest.approx([0.0, 0.0])  # outcome at the mean, no process advantage
    none = [sampled(signals=[("outcome", r)], call=i) for i, r in enumerate((0.0, 1.0))]
    assert advantages(credit(GRPO(reward_weights={OUTCOME: 1.0, STEP: 0.1}), none))[1] == pytest.approx(
        [0.9 * ROOT_HALF] * 4, abs=TOLERANCE
    )


def test_merge_sums_rewards_and_separate_channels_sum_advantages():
    traces = [
        sampled(signals=[("agreement", a), ("format", f)], call=i)
        for i, (a, f) in enumerate([(1.0, 1.0), (0.0, 1.0), (0.0, 0.0)])
    ]
    rewards = {AGREEMENT: 1.0, FORMAT: 0.8}
    merged = credit(DrGRPO(reward_weights=rewards, sum_rewards_first=True), traces)  # R = 1.8, 0.8, 0; mean 2.6/3
    assert [a[0] for a in advantages(merged)] == pytest.approx([1.8 - 2.6 / 3, 0.8 - 2.6 / 3, -2.6 / 3])
    apart = credit(GRPO(reward_weights=rewards), traces)
    std = math.sqrt(1 / 3)
    expected = [(2 / 3 + 0.8 / 3) / std, (-1 / 3 + 0.8 / 3) / std, (-1 / 3 - 1.6 / 3) / std]
    assert [a[0] for a in advantages(apart)] == pytest.approx(expected, abs=TOLERANCE)


def test_merged_rewards_of_single_turns_are_summed_with_those_of_the_whole():
    """Each answer has one sum on its last token, whatever turns its parts were given to."""
    rewards = {OUTCOME: 1.0, FORMAT: 0.5}
    traces = [
        sampled(signals=[("outcome", 1.0), ("format", 1.0, (0, 2)), ("format", 0.0, (2, 4))]),  # 1.5
        sampled(signals=[("outcome", 0.0, (0, 2)), ("outcome", 0.0, (2, 4)), ("format", 1.0)], call=1),  # 0.5
    ]
    merged = credit(DrGRPO(reward_weights=rewards, sum_rewards_first=True), traces)
    assert advantages(merged) == [[0.5] * 4, [-0.5] * 4]


def test_groups_are_compared_with_themselves_alone():
    traces = outcomes(0.0, 1.0, group="a") + outcomes(10.0, 11.0, group="b")
    values = [a[0] for a in advantages(credit(GRPO(reward_weights={OUTCOME: 1.0}), traces))]
    assert values == pytest.approx([-ROOT_HALF, ROOT_HALF, -ROOT_HALF, ROOT_HALF], abs=TOLERANCE)


def test_zero_spread_is_dropped_and_counted():
    traces = outcomes(1.0, 1.0, 1.0, group="a") + outcomes(0.0, 1.0, group="b") + outcomes(1.0, group="alone")
    result = credit(GRPO(reward_weights={OUTCOME: 1.0}), traces)
    assert len(result.samples) == 2
    assert result.dropped == {"zero_spread": 4}
    assert result.metrics["zero_spread_groups"] == pytest.approx(2 / 3)
    kept = credit(GRPO(reward_weights={OUTCOME: 1.0}, edit_after=()), traces)
    assert len(kept.samples) == 6
    assert advantages(kept)[0] == [0.0] * 4
    assert kept.dropped == {}


def test_spread_in_one_channel_keeps_the_group():
    same = [[("outcome", 1.0), ("step", s, (0, 2))] for s in (1.0, -1.0)]
    result = credit(TANGO, [sampled(signals=s, call=i) for i, s in enumerate(same)])
    assert result.dropped == {}
    assert result.metrics["zero_spread_groups"] == 0.0
    assert advantages(result)[0] == pytest.approx([0.1 * ROOT_HALF] * 2 + [0.0, 0.0], abs=TOLERANCE)


def test_unusable_traces_are_dropped_with_their_reason():
    traces = [
        *outcomes(0.0, 1.0),
        sampled(signals=[], call=2),
        sampled(signals=[("outcome", float("nan"))], call=3),
        sampled(signals=[("outcome", 5.0)], length=0, call=4),
    ]
    result = credit(GRPO(reward_weights={OUTCOME: 1.0}), traces)
    assert result.dropped == {"no outcome": 1, "non-finite outcome": 1, "no tokens": 1}
    assert [a[0] for a in advantages(result)] == pytest.approx([-ROOT_HALF, ROOT_HALF], abs=TOLERANCE)


def test_nothing_at_all():
    for traces in ([], [sampled(signals=[])]):
        result = credit(replace(TANGO, balance=ClassBalance()), traces)
        assert result.samples == ()
    assert result.dropped == {"no outcome": 1}


def labelled(*pairs):
    return [sampled(signals=[("agreement", r), ("class_label", t)], call=i) for i, (r, t) in enumerate(pairs)]


def test_class_weights_multiply_samples_and_not_advantages():
    algorithm = GRPO(reward_weights={AGREEMENT: 1.0}, balance=ClassBalance(class_label=CLASS_LABEL, ema=0.8))
    traces = labelled((1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    result, state = credit_and_state(algorithm, traces)
    s = [1 / math.sqrt(0.6), 1 / math.sqrt(0.2)]
    mean = (3 * s[0] + s[1]) / 4
    assert [x.weight for x in result.samples] == pytest.approx([s[0] / mean] * 3 + [s[1] / mean])
    assert advantages(result) == advantages(credit(GRPO(reward_weights={AGREEMENT: 1.0}), traces))
    assert result.metrics["balance/positive"] == pytest.approx(0.25)
    assert state["classes"] == pytest.approx([0.6, 0.2])
    _, later = credit_and_state(algorithm, traces, state=state)
    assert later["classes"] == pytest.approx([0.8 * 0.6 + 0.6, 0.8 * 0.2 + 0.2])
    assert state["classes"] == pytest.approx([0.6, 0.2])  # what was passed in is as it was


def test_class_weights_have_mean_one_over_what_is_trained_on():
    algorithm = GRPO(reward_weights={AGREEMENT: 1.0}, balance=ClassBalance())
    flat = [sampled(group="flat", signals=[("agreement", 1.0), ("class_label", 0.0)], call=i) for i in range(5)]
    result, state = credit_and_state(algorithm, labelled((1.0, 0.0), (0.0, 1.0)) + flat)
    assert len(result.samples) == 2
    assert sum(x.weight for x in result.samples) == pytest.approx(2.0)
    assert state["classes"] == pytest.approx([0.2 * 6, 0.2 * 1])  # dropped groups are counted


def test_nothing_is_remembered_but_what_is_handed_back():
    algorithm = GRPO(reward_weights={AGREEMENT: 1.0}, balance=ClassBalance())
    first = credit_and_state(algorithm, labelled((1.0, 0.0), (0.0, 1.0)))
    again = credit_and_state(algorithm, labelled((1.0, 0.0), (0.0, 1.0)))
    assert first[1] == again[1] == json.loads(json.dumps(first[1]))
    assert credit_and_state(GRPO(reward_weights={OUTCOME: 1.0}), outcomes(1.0, 0.0))[1] == {}
    assert replace(algorithm) == algorithm


def test_needs():
    algorithm = GRPO(reward_weights={OUTCOME: 1.0}, kl=KLPenalty("reference"), entropy=0.001, balance=ClassBalance())
    needs = algorithm.needs()
    assert (needs.min_group_size, needs.reference_policy) == (2, "reference")
    assert (needs.entropy, needs.on_policy) == (True, True)
    assert needs.reward_signals == (OUTCOME, CLASS_LABEL)
    assert GRPO(reward_weights={OUTCOME: 1.0}).needs().entropy is False
    assert PolicyGradient(reward_weights={OUTCOME: 1.0}, advantage=None).needs().min_group_size == 1  # nobody to be
    # compared with


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"reward_weights": {}}, "E_NO_REWARD_NAMED"),
        ({"reward_weights": {"outcome": 1.0}}, "E_REWARD_NOT_SIGNAL"),
        ({"reward_weights": {OUTCOME: -1.0}}, "E_REWARD_WEIGHT: 'outcome' | -1"),
        ({"reward_weights": {OUTCOME: math.nan}}, "E_REWARD_WEIGHT: 'outcome' | nan"),
        ({"reward_weights": {OUTCOME: linear(1.0, -0.1)}}, "E_REWARD_WEIGHT"),
        ({"reward_weights": {OUTCOME: 0.0, FORMAT: linear(0.0, 0.0)}}, "E_REWARD_WEIGHTS_ZERO"),
        ({"advantage": "grop"}, "E_ADVANTAGE_NOT_FUNCTION"),
        ({"loss": "clipped"}, "E_LOSS_NOT_FUNCTION"),
        ({"normalise": "tokens"}, "E_UNKNOWN_NORMALISE: 'token'"),
        ({"normalise": "constant"}, "E_NORMALISE_CONSTANT"),
        ({"constant": 5.0}, "E_NORMALISE_CONSTANT"),
        ({"reward_weights": {OUTCOME: 1.0, STEP: 1.5}}, "E_SPAN_WEIGHTS"),
        ({"reward_weights": {OUTCOME: 1.0, STEP: 0.6, Signal("a", per="span"): 0.6}}, "E_SPAN_WEIGHTS"),
        ({"reward_weights": {STEP: 1.0}, "sum_rewards_first": True}, "E_NO_SIGNAL_TO_SUM"),
        ({"balance": ClassBalance(class_label=OUTCOME)}, "E_REWARD_IS_CLASS_LABEL"),
        ({"step_scale": "K"}, "E_STEP_SCALE: step_scale"),
        ({"advantage_mix": "mean"}, "E_UNKNOWN_ADVANTAGE_MIX: advantage_mix"),
    ],
)
def test_settings_that_make_no_sense(settings, code):
    with refuses(code):
        GRPO(**{"reward_weights": {OUTCOME: 1.0}, **settings})


def test_labels_of_the_class_balance_are_there_and_are_0_or_1():
    with refuses("E_CLASS_LABEL_MISSING", names="'solver'"):
        credit(GRPO(reward_weights={OUTCOME: 1.0}, balance=ClassBalance()), outcomes(1.0, 0.0))
    with refuses("E_CLASS_LABEL_VALUE"):
        signals = [("outcome", 1.0), ("class_label", 0.5)]
        credit(GRPO(reward_weights={OUTCOME: 1.0}, balance=ClassBalance()), [sampled(signals=signals)])


def test_a_span_lies_within_its_answer():
    with refuses("E_SPAN_OUTSIDE_ANSWER", names=("[(2, 9)]", "4 tokens")):
        credit(GRPO(reward_weights={STEP: 1.0}), [sampled(signals=[("step", 1.0, (2, 9))])])


def test_samples_are_learned_with_the_prompt_of_another_role_of_their_group():
    asked = sampled(signals=[("outcome", 0.0)], prompt=(7, 8))
    revised = sampled(signals=[("outcome", 1.0)], role="refiner", prompt=(1, 2, 3))
    algorithm = GRPO(reward_weights={OUTCOME: 1.0}, edit_after=(drop_flat_groups, TrainWithPromptOf("solver")))
    first, second = credit(algorithm, [asked, revised]).samples
    assert (first.prompt_ids, first.off_policy) == ((7, 8), False)
    assert (second.prompt_ids, second.off_policy) == ((7, 8), True)
    lonely = [replace(s, group="h") for s in (revised, sampled(signals=[("outcome", 0.0)], role="refiner"))]
    with refuses("E_PROMPT_OUTSIDE_GROUP"):
        credit(algorithm, [asked, revised, *lonely])
