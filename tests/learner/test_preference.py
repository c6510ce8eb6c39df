"""Preferences by hand: slopes, which answers make a pair, and a gradient that is that of the loss."""

import math

import pytest
import torch
from torch.nn import functional as F

from cotrain.algorithms.contract import Batch, BatchTotals, MicroBatch, Sample
from cotrain.algorithms.dpo import CHOSEN, Preference, loss_slope
from cotrain.core.types import Reward
from tests.sentences import refuses


def sample(key, value, own, ref, group="g"):
    tokens = len(own)
    return Sample(
        key=key,
        prompt_ids=(1,),
        token_ids=tuple(range(tokens)),
        sampler_logprobs=torch.zeros(tokens),
        advantages=torch.zeros(tokens),
        group=group,
        rewards=(Reward(name="chosen", value=value),),
        scores={"p": torch.tensor(own), "r": torch.tensor(ref)},
    )


def learn(**settings):
    return Preference(policy="p", reference="r", **settings)


def test_slopes_by_hand():
    assert loss_slope("sigmoid", 0.0, 0.1) == pytest.approx(0.1 * (0.5 - 1.0))
    assert loss_slope("sigmoid", 2.0, 1.0) == pytest.approx(1 / (1 + math.exp(-2.0)) - 1.0)
    assert loss_slope("sigmoid", 0.0, 1.0, label=0.5) == 0.0
    assert loss_slope("sigmoid", -1e6, 1.0) == -1.0 and loss_slope("sigmoid", 1e6, 1.0) == 0.0
    assert [loss_slope("hinge", m, 0.5) for m in (1.9, 2.1)] == [-0.5, 0.0]


def test_the_best_and_the_worst_of_a_group_are_a_pair():
    group = [sample(str(i), v, [-1.0], [-1.0]) for i, v in enumerate((0.5, 0.9, 0.1, 0.9, 0.1))]
    credit, _ = learn().credit(Batch(samples=tuple(group)), {})
    assert [s.key for s in credit.samples] == ["1", "2"] and credit.dropped == {"not in the pair": 3}
    assert [float(s.advantages[0]) for s in credit.samples] == [pytest.approx(0.05), pytest.approx(-0.05)]


@pytest.mark.parametrize(("others", "dropped"), [(0, {}), (1, {"not in the pair": 1})])
def test_answers_between_the_best_and_the_worst_are_counted(others, dropped):
    group = [sample(str(i), v, [-1.0], [-1.0]) for i, v in enumerate((0.9, 0.1, *[0.5] * others))]
    credit, _ = learn().credit(Batch(samples=tuple(group)), {})
    assert [s.key for s in credit.samples] == ["0", "1"] and credit.dropped == dropped


def test_equal_values_and_lonely_answers_are_no_pair():
    lonely, twins = sample("0", 1.0, [-1.0], [-1.0], "a"), [sample(k, 1.0, [-1.0], [-1.0], "b") for k in "12"]
    credit, _ = learn().credit(Batch(samples=(lonely, *twins)), {})
    assert credit.samples == () and credit.dropped == {"no pair": 3} and credit.metrics["pairs"] == 0.0


@pytest.mark.parametrize("settings", [{}, {"loss": "hinge"}, {"soft": 3.0}, {"sft": 0.25}])
def test_the_gradient_is_that_of_the_loss(settings):
    """Against torch's own gradient of the loss as the equations have it, summed over tokens, for two pairs."""
    own = [[-1.0, -2.0, -0.5], [-3.0], [-0.2, -0.4], [-0.1, -0.1]]
    ref = [[-1.5, -2.0, -0.25], [-2.0], [-0.3, -0.4], [-1.0, -1.0]]
    values = [1.0, 0.0, 0.2, 0.9]
    by, beta = learn(betas=(0.7,), **settings), 0.7
    samples = [sample(str(i), values[i], own[i], ref[i], str(i // 2)) for i in range(4)]
    credit, _ = by.credit(Batch(samples=tuple(samples)), {})
    leaves = [torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in own]
    total = torch.zeros((), dtype=torch.float64)
    for won, lost in ((0, 1), (3, 2)):
        gain = [leaves[i].sum() - sum(ref[i]) for i in (won, lost)]
        m, gap = beta * (gain[0] - gain[1]), values[won] - values[lost]
        label = torch.sigmoid(torch.tensor(settings["soft"] * gap)) if "soft" in settings else 1.0
        pair = -label * F.logsigmoid(m) - (1 - label) * F.logsigmoid(-m)
        if settings.get("loss") == "hinge":
            pair = torch.clamp(1 - m, min=0.0)
        alpha = settings.get("sft", 0.0)
        total = total + (1 - alpha) * pair - alpha * leaves[won].mean()
    (total / 2).backward()
    for kept in credit.samples:
        n = len(kept.token_ids)
        logprobs = torch.tensor([own[int(kept.key)]], requires_grad=True)
        batch = MicroBatch(
            token_ids=torch.zeros(1, n, dtype=torch.int64),
            mask=torch.ones(1, n),
            sampler_logprobs=torch.zeros(1, n),
            advantages=kept.advantages[None],
            weights=torch.ones(1),
            reference=None,
            targets=None,
            old_values=None,
        )
        by.loss_of(logprobs, None, batch, BatchTotals(tokens=8.0, sequences=4.0)).value.backward()
        assert logprobs.grad[0].tolist() == pytest.approx(leaves[int(kept.key)].grad.tolist(), abs=1e-6), kept.key


def test_beta_changes_with_the_iteration():
    by = learn(betas=(0.1, 5.0), every=3)
    assert [by.beta_at(updates) for updates in (0, 2, 3, 100)] == [0.1, 0.1, 5.0, 5.0]


def test_what_it_refuses():
    with refuses("E_UNKNOWN_LOSS", names="'hinge'"):
        learn(loss="hing")
    for betas in ((), (0.0,), (0.1, math.inf)):
        with refuses("E_PREFERENCE_RANGE"):
            learn(betas=betas)
    with refuses("E_PREFERENCE_RANGE"):
        learn(sft=1.0)
    assert learn().needs().reward_signals == (CHOSEN,) and learn().needs().on_policy is False
