import math

import pytest
import torch

from cotrain.algorithms.contract import BatchTotals, MicroBatch
from cotrain.algorithms.policy_gradient import KLPenalty, PolicyLossOptions, PPOClip, kl_penalty
from cotrain.algorithms.policy_loss import GSPOClip, ScoreFunction, Shaped
from tests.sentences import refuses

TOTALS = BatchTotals(tokens=3.0, sequences=2.0)


def batch(**changes):
    fields = {
        "token_ids": torch.zeros(2, 2, dtype=torch.int64),
        "mask": torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64),
        "sampler_logprobs": torch.tensor([[-1.0, -2.0], [-1.0, 0.0]], dtype=torch.float64),
        "advantages": torch.tensor([[1.0, -2.0], [3.0, 0.0]], dtype=torch.float64),
        "weights": torch.tensor([2.0, 0.5], dtype=torch.float64),
        "reference": torch.tensor([[-1.5, -2.0], [-0.5, 0.0]], dtype=torch.float64),
        "targets": None,
        "old_values": None,
    }
    return MicroBatch(**{**fields, **changes})


def logprobs():
    return torch.tensor([[-1.0, -2.0], [-1.0, 0.0]], dtype=torch.float64).requires_grad_()


def test_on_policy_value_and_gradient_by_hand():
    x = logprobs()
    loss = PolicyLossOptions(loss=PPOClip()).loss_of(x, None, batch(), TOTALS)
    assert loss.value.item() == pytest.approx(-(2 * (1 - 2) + 0.5 * 3) / 3)
    loss.value.backward()
    assert x.grad.tolist() == [pytest.approx([-2 / 3, 4 / 3]), pytest.approx([-0.5, 0.0])]
    assert {k: v.item() for k, v in loss.sums.items()} == pytest.approx(
        {"clip_fraction": 0.0, "ratio": 3.0, "sampler_trainer_diff": 0.0, "sampler_trainer_kl": 0.0, "surprisal": 4.0}
    )


def test_weights_touch_the_policy_gradient_alone():
    entropy = torch.full((2, 2), 2.0, dtype=torch.float64)
    how = {"loss": PPOClip(), "kl": KLPenalty("reference", 0.1), "entropy": 0.01}
    value = PolicyLossOptions(**how).loss_of(logprobs(), entropy, batch(), TOTALS).value
    k3 = [math.exp(-0.5) - 1 + 0.5, 0.0, math.exp(0.5) - 1 - 0.5]
    assert value.item() == pytest.approx(-(2 * (1 - 2) + 0.5 * 3) / 3 + 0.1 * sum(k3) / 3 - 0.01 * 2.0)


def test_normalisation_reaches_every_part():
    how = {"loss": PPOClip(), "kl": KLPenalty("reference", 1.0, "k2"), "normalise": "constant", "constant": 10.0}
    value = PolicyLossOptions(**how).loss_of(logprobs(), None, batch(), TOTALS).value
    assert value.item() == pytest.approx((0.5 + 0.125 + 0.125) / 20)


def test_plain_reinforce_with_a_truncated_weight():
    x = logprobs()
    stale = batch(sampler_logprobs=x.detach() - math.log(2.0))  # true ratio 2 everywhere
    PolicyLossOptions(loss=ScoreFunction(1.5)).loss_of(x, None, stale, TOTALS).value.backward()
    assert x.grad.tolist() == [pytest.approx([1.5 * -2 / 3, 1.5 * 4 / 3]), pytest.approx([1.5 * -0.5, 0.0])]


def test_sequence_ratio_clips_whole_sequences():
    x = logprobs()
    sampler_logprobs = x.detach() - torch.tensor([[0.4, 0.0], [0.1, 0.0]], dtype=torch.float64)  # means 0.2 and 0.1
    other = batch(sampler_logprobs=sampler_logprobs, advantages=torch.ones(2, 2).double())
    loss = PolicyLossOptions(loss=GSPOClip(0.2, 0.2)).loss_of(x, None, other, TOTALS)
    assert loss.sums["clip_fraction"].item() == 2.0  # exp(0.2) > 1.2: both tokens of the first row
    assert loss.value.item() == pytest.approx(-(2 * 2 * 1.2 + 0.5 * math.exp(0.1)) / 3)


def test_what_is_missing_is_said():
    with refuses("E_REFERENCE_LOGPROBS_MISSING", names="'reference'"):
        PolicyLossOptions(loss=ScoreFunction(), kl=KLPenalty("reference")).loss_of(
            logprobs(), None, batch(reference=None), TOTALS
        )
    with refuses("E_ENTROPY_MISSING", names="0.1"):
        PolicyLossOptions(loss=ScoreFunction(), entropy=0.1).loss_of(logprobs(), None, batch(), TOTALS)
    with refuses("E_KL_GRADIENT_ZERO", names=("k1", "'k3'")):
        KLPenalty("reference", 0.1, "k1")


def test_off_policy_samples_are_shaped_and_have_no_ratio():
    x = torch.tensor([[math.log(0.1), math.log(0.4)], [-1.0, 0.0]], dtype=torch.float64).requires_grad_()
    other = batch(off_policy=torch.tensor([True, False]))
    for otherwise in (PPOClip(), ScoreFunction()):
        x.grad = None
        loss = PolicyLossOptions(loss=Shaped(0.1, otherwise)).loss_of(x, None, other, TOTALS)
        loss.value.backward()
        # first row: weight 2, A = 1 and −2, f(1 − f) with f = 1/2 and 4/5; second row: weight 1/2, A = 3
        assert x.grad.tolist() == [pytest.approx([-2 * 0.25 / 3, 4 * 0.16 / 3]), pytest.approx([-0.5, 0.0])]
        assert loss.sums["sampler_trainer_diff"].item() == 0.0 and loss.sums["ratio"].item() == 3.0
    plain = PolicyLossOptions(loss=ScoreFunction()).loss_of(x, None, other, TOTALS).value
    assert plain.item() == pytest.approx(-(2 * (math.log(0.1) - 2 * math.log(0.4)) - 0.5 * 3) / 3)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: PPOClip(1.2, 0.2), "E_LOSS_RANGE: PPOClip | 1.2 | 0.2"),
        (lambda: GSPOClip(0.2, -0.1), "E_LOSS_RANGE: GSPOClip"),
        (lambda: ScoreFunction(0.0), "E_LOSS_RANGE"),
        (lambda: Shaped(0.0), "E_LOSS_RANGE"),
    ],
)
def test_settings_that_make_no_sense(make, code):
    with refuses(code):
        make()


def test_a_pull_of_nothing_is_none():
    assert kl_penalty("reference", 0.0) is None and kl_penalty("reference", 0.5) == KLPenalty("reference", 0.5)
