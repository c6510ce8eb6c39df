import math

import pytest
import torch
from learn_makers import advantages, credit, sampled

from cotrain.algorithms.contract import BatchTotals
from cotrain.algorithms.ppo import PPO, ValueRegression
from cotrain.core.signals import OUTCOME, STEP
from cotrain.learner.batching import collate
from tests.sentences import refuses

MIX = {OUTCOME: 2.0, STEP: 1.0}


def judged(values=(0.5, 0.25, 0.75), outcome=1.0, call=0):
    signals = [("outcome", outcome), ("step", 1.0, (0, 1)), ("step", -1.0, (1, 2))]
    return sampled(length=3, signals=signals, values=torch.tensor(values), call=call)


def test_advantages_by_hand():
    # token rewards: steps ±1/2 at tokens 0 and 1, outcome 2 on the last: 1/2, −1/2, 2
    # δ = 0.5 + 0.25 − 0.5 = 0.25; −0.5 + 0.75 − 0.25 = 0; 2 − 0.75 = 1.25; λ = 1/2
    result = credit(PPO(reward_weights=MIX, lam=0.5, whiten=False), [judged()])
    assert advantages(result) == [pytest.approx([0.25 + 0.5 * 0.625, 0.625, 1.25])]
    assert result.metrics["return"] == 2.0


def test_whitening_is_over_all_tokens_of_the_batch():
    result = credit(
        PPO(reward_weights={OUTCOME: 1.0}, lam=0.0), [judged((0.0, 0.0, 0.0)), judged((0.0, 0.0, 1.0), 1.0, 1)]
    )
    raw = torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    expected = (raw - raw.mean()) / (raw.std() + 1e-6)
    assert [a for row in advantages(result) for a in row] == pytest.approx(expected.tolist(), rel=1e-5)


def test_critic_learns_the_reward_to_go():
    traces = [judged(), judged((0.0, 0.0, 0.0), 0.0, 1)]
    result = credit(ValueRegression(reward_weights=MIX, gamma=0.5), traces)
    assert result.samples[0].targets.tolist() == pytest.approx([0.5 + 0.5 * 0.5, 0.5, 2.0])
    assert result.samples[0].old_values.tolist() == [0.5, 0.25, 0.75]
    monte_carlo = credit(
        ValueRegression(reward_weights=MIX, gamma=0.5, values=None),
        [sampled(length=3, signals=[("outcome", 1.0), ("step", 1.0, (1, 2))])],
    )
    assert monte_carlo.samples[0].targets.tolist() == pytest.approx([1.0, 2.0, 2.0])


def test_explained_variance():
    exact = credit(
        ValueRegression(reward_weights={OUTCOME: 1.0}, lam=1.0), [judged((1.0,) * 3), judged((0.0,) * 3, 0.0, 1)]
    )
    assert exact.metrics["explained_variance"] == 1.0
    mean = credit(
        ValueRegression(reward_weights={OUTCOME: 1.0}, lam=1.0), [judged((0.5,) * 3), judged((0.5,) * 3, 0.0, 1)]
    )
    assert mean.metrics["explained_variance"] == pytest.approx(0.0)


def test_value_loss_is_normalised_and_clipped():
    result = credit(ValueRegression(reward_weights={OUTCOME: 1.0}, clip=0.2), [judged((0.0, 0.0, 0.0))])  # targets 1 1
    # 1
    _, batch = collate(result.samples)
    predictions = torch.tensor([[0.1, 0.5, 1.0]], requires_grad=True)
    totals = BatchTotals(tokens=3.0, sequences=1.0)
    loss = ValueRegression(reward_weights={OUTCOME: 1.0}, clip=0.2).loss_of(predictions, None, batch, totals)
    # past 0.2 the clipped value 0.2 has the larger error: 0.8
    assert loss.value.item() == pytest.approx(0.5 * (0.81 + 0.64 + 0.64) / 3)
    loss.value.backward()
    assert predictions.grad[0].tolist() == pytest.approx([-0.9 / 3, 0.0, 0.0])
    assert loss.sums["value_error"].item() == pytest.approx(0.9 + 0.5)


def test_needs_and_refusals():
    assert PPO(reward_weights=MIX, values="v").needs().value_policy == "v"
    critic = ValueRegression(reward_weights=MIX).needs()
    assert (critic.head, critic.on_policy, critic.reward_signals) == ("value", False, (OUTCOME, STEP))
    with refuses("E_VALUES_MISSING", names=("0 values", "'critic'")):
        credit(PPO(reward_weights={OUTCOME: 1.0}), [sampled(signals=[("outcome", 1.0)])])
    with refuses("E_OLD_VALUES_NEEDED"):
        ValueRegression(reward_weights=MIX, values=None, lam=0.9)
    with refuses("E_GAE_RANGE", names="lam 1.5"):
        PPO(reward_weights=MIX, lam=1.5)
    with refuses("E_NO_REWARD_NAMED"):
        PPO(reward_weights={})
    assert credit(PPO(reward_weights={OUTCOME: 1.0}), [sampled(signals=[])]).dropped == {"no outcome": 1}
    assert math.isfinite(credit(PPO(reward_weights={OUTCOME: 1.0}), [judged()]).metrics["advantage"])
