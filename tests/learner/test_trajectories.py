"""A rollout counts once, however many training sequences it has: baselines, advantages and figures by hand."""

from dataclasses import replace

import pytest
import torch

from cotrain.algorithms.advantage_edits import LengthPenalty, OverlongPenalty
from cotrain.algorithms.class_balance import ClassBalance
from cotrain.algorithms.grpo import GRPO, RLOO
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.algorithms.ppo import PPO
from cotrain.algorithms.running_mean import RunningMean
from cotrain.algorithms.samples import place_rewards
from cotrain.core.signals import CLASS_LABEL, FORMAT, OUTCOME, STEP, Signal
from cotrain.recipes.prime.implicit_prm import Prime
from tests.learner.learn_makers import advantages, credit, credit_and_state, sampled
from tests.sentences import refuses

TURN = Signal("turn")


def rollout(*names, value, first_call=0, lengths=None, **more):
    """One rollout of so many sequences, with one reward for the whole of it."""
    lengths = lengths or [4] * len(names)
    samples = [
        sampled(signals=[("outcome", value)], call=first_call + i, length=length, **more)
        for i, length in enumerate(lengths)
    ]
    return [replace(sample, trajectory=samples[0].key) for sample in samples] if len(samples) > 1 else samples


def paid_five_times_as_long():
    """Four rollouts, of which the one that is paid has five sequences and each other one a single sequence."""
    paid = rollout(*"abcde", value=1.0)
    others = [rollout("f", value=0.0, first_call=5 + i)[0] for i in range(3)]
    return [*paid, *others]


def test_the_baseline_is_that_of_rollouts_and_the_advantage_goes_to_all_sequences():
    """Of (1, 0, 0, 0) the mean is ¼ and the deviation ½, so 1.5 and three times −0.5; of eight sequences it would be
    ⅝."""
    made = credit(GRPO(reward_weights={OUTCOME: 1.0}), paid_five_times_as_long())
    assert [row[0] for row in advantages(made)] == pytest.approx([1.5] * 5 + [-0.5] * 3, abs=1e-5)
    assert made.metrics["reward/outcome"] == 0.25 and made.metrics["traces"] == 8
    assert made.metrics["advantage/outcome"] == pytest.approx((5 * 1.5 + 3 * 0.5) / 8, abs=1e-5)


def test_the_others_mean_is_that_of_the_other_rollouts():
    made = credit(RLOO(reward_weights={OUTCOME: 1.0}), paid_five_times_as_long())
    assert [row[0] for row in advantages(made)] == pytest.approx([1.0] * 5 + [-1 / 3] * 3)


def test_merged_rewards_of_a_rollout_are_one_value():
    samples = [
        replace(sample, rewards=(*sample.rewards, *sampled(signals=[("format", 1.0)]).rewards))
        for sample in paid_five_times_as_long()
    ]
    made = credit(GRPO(reward_weights={OUTCOME: 1.0, FORMAT: 0.5}, sum_rewards_first=True), samples)
    assert [row[0] for row in advantages(made)] == pytest.approx([1.5] * 5 + [-0.5] * 3, abs=1e-5)


def test_a_group_of_one_rollout_teaches_nothing():
    made = credit(GRPO(reward_weights={OUTCOME: 1.0}), rollout(*"abc", value=1.0))
    assert made.samples == () and made.metrics["zero_spread_groups"] == 1.0


def test_a_running_mean_sees_a_game_once():
    """b after two games that won 1 and 0: 0.5 · (0.5 · 0 + 0.5 · 1) + 0.5 · 0."""
    games = [*rollout(*"abc", value=1.0), *rollout("d", value=0.0, first_call=3)]
    games = [replace(game, key=f"0:0:{i // 3}:solver:{i}") for i, game in enumerate(games)]
    algorithm = PolicyGradient(reward_weights={OUTCOME: 1.0}, baseline=RunningMean(0.5), advantage=None)
    made, state = credit_and_state(algorithm, games)
    assert [row[0] for row in advantages(made)] == [1.0, 1.0, 1.0, -0.5]
    assert state["baselines"] == {"solver/outcome": 0.25}


def test_a_reward_of_a_single_turn_is_a_value_of_its_own():
    one = sampled(signals=[("turn", 1.0, (0, 4))], call=0)
    other = sampled(signals=[("turn", 0.0, (0, 4))], call=1)
    placed = place_rewards([replace(s, trajectory=one.key) for s in (one, other)], TURN)
    assert placed.values.tolist() == [1.0, 0.0] and placed.first_index.tolist() == placed.reward_index.tolist() == [
        0,
        1,
    ]


def test_steps_are_counted_over_the_whole_rollout():
    """Two steps in one sequence and one in the next: each is worth a third."""
    first = sampled(signals=[("step", 1.0, (0, 2)), ("step", 1.0, (2, 4))], call=0)
    second = sampled(signals=[("step", -1.0, (1, 3))], call=1)
    placed = place_rewards([replace(s, trajectory=first.key) for s in (first, second)], STEP)
    assert placed.values.tolist() == pytest.approx([1 / 3, 1 / 3, -1 / 3])


def test_two_values_of_one_rollout_are_refused():
    first, second = rollout(*"ab", value=1.0)
    second = replace(second, rewards=(replace(second.rewards[0], value=0.0),))
    with refuses("E_SIGNAL_DIFFERS_IN_CONVERSATION", names=("0:0:0:solver:0", "1.0", "0.0")):
        credit(GRPO(reward_weights={OUTCOME: 1.0}), [first, second])


def test_classes_are_counted_by_rollouts():
    """One review of a right solution in three sequences and one of a wrong one: both classes were seen once."""
    right = [
        replace(s, rewards=(*s.rewards, *sampled(signals=[("class_label", 1.0)]).rewards))
        for s in rollout(*"abc", value=1.0)
    ]
    wrong = [
        replace(s, rewards=(*s.rewards, *sampled(signals=[("class_label", 0.0)]).rewards))
        for s in rollout("d", value=0.0, first_call=3)
    ]
    algorithm = GRPO(reward_weights={OUTCOME: 1.0}, balance=ClassBalance(class_label=CLASS_LABEL, ema=0.0))
    made, state = credit_and_state(algorithm, [*right, *wrong])
    assert state["classes"] == [1.0, 1.0] and [sample.weight for sample in made.samples] == [1.0] * 4


def test_lengths_are_those_of_the_whole_rollout():
    """Tokens 4 + 4 beside 4: λ is −½ and ½."""
    samples = [*rollout(*"ab", value=1.0), *rollout("c", value=1.0, first_call=2)]
    changed, _ = LengthPenalty(OUTCOME, 1.0)(samples)
    assert [sample.rewards[0].value for sample in changed] == [0.5, 0.5, 1.5]
    limited = [replace(sample, limit=5) for sample in samples]
    changed, _ = OverlongPenalty(OUTCOME, 4)(limited)  # 8 of 10 tokens, and 4 of 5
    assert [sample.rewards[0].value for sample in changed] == [0.5, 0.5, 0.25]


def test_a_return_is_that_of_a_rollout():
    samples = [replace(sample, old_values=torch.zeros(4)) for sample in paid_five_times_as_long()]
    assert credit(PPO(reward_weights={OUTCOME: 1.0}), samples).metrics["return"] == 0.25


def test_the_filter_of_prime_counts_rollouts():
    """A quarter is right, which is within 0.2 and 0.3; of sequences it would be ⅝."""
    algorithm = Prime(process_weight=0.0, keep=(0.2, 0.3))
    made = credit(algorithm, paid_five_times_as_long())
    assert made.metrics["kept_groups"] == 1 and len({row[0] for row in advantages(made)}) == 2
