"""What engine and learner see differently: measured at every token, left out by whole answers."""

import math
from dataclasses import replace

import pytest
import torch

from cotrain.algorithms.contract import BatchTotals, MicroBatch, Sample
from cotrain.algorithms.policy_gradient import PolicyLossOptions, PPOClip
from cotrain.algorithms.policy_loss import LOOSE, outside_bounds, with_ratio_bounds
from cotrain.distributed.local import LocalBackend
from cotrain.learner.batching import collate
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY

TOTALS = BatchTotals(tokens=3.0, sequences=2.0)


def batch(**changes):
    fields = {
        "token_ids": torch.zeros(2, 2, dtype=torch.int64),
        "mask": torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
        "sampler_logprobs": torch.tensor([[-1.0, -2.0], [-1.0, 0.0]]),
        "advantages": torch.tensor([[1.0, -2.0], [3.0, 0.0]]),
        "weights": torch.tensor([1.0, 1.0]),
        "reference": None,
        "targets": None,
        "old_values": None,
        "bounds": torch.tensor([LOOSE, LOOSE]),
    }
    return MicroBatch(**{**fields, **changes})


def test_the_mean_of_an_answer_decides_by_hand():
    """First answer: log r = 1.2 and 0, mean 0.6 < log 2. Second: log r = −0.8 < −log 2, left out."""
    found = outside_bounds(torch.tensor([[0.2, -2.0], [-1.8, 5.0]]), batch())
    assert found.tolist() == [False, True]
    assert outside_bounds(torch.tensor([[0.4, -2.0], [-1.6, 5.0]]), batch()).tolist() == [True, False]  # 0.7 and −0.6
    assert outside_bounds(torch.tensor([[0.2, -2.0], [-1.8, 5.0]]), batch(bounds=None)) is None
    elsewhere = batch(off_policy=torch.tensor([False, True]))
    assert outside_bounds(torch.tensor([[0.2, -2.0], [-1.8, 5.0]]), elsewhere).tolist() == [False, False]


def test_what_is_left_out_has_no_gradient_and_still_counts_below():
    x = torch.tensor([[-1.0, -2.0], [-200.0, 0.0]], requires_grad=True)
    loss = PolicyLossOptions(loss=PPOClip()).loss_of(x, None, batch(), TOTALS)
    assert loss.value.item() == pytest.approx(-(1.0 - 2.0) / 3)
    loss.value.backward()
    assert x.grad.tolist() == [pytest.approx([-1 / 3, 2 / 3]), [0.0, 0.0]]
    assert loss.sums["mismatch_masked"].item() == 1.0  # of three tokens
    assert loss.sums["sampler_trainer_diff"].item() == pytest.approx(199.0)


def test_an_answer_that_is_far_too_likely_does_not_spoil_the_others():
    x = torch.tensor([[-1.0, -2.0], [-1.0, 0.0]], requires_grad=True)
    far = batch(sampler_logprobs=torch.tensor([[-1.0, -2.0], [-500.0, 0.0]]), advantages=-batch().advantages)
    PolicyLossOptions(loss=PPOClip()).loss_of(x, None, far, TOTALS).value.backward()
    assert x.grad.isfinite().all() and x.grad[1].tolist() == [0.0, 0.0] and x.grad[0, 0] != 0


def test_k3_by_hand():
    x = torch.tensor([[-0.5, -2.0], [-1.0, 0.0]])
    loss = PolicyLossOptions(loss=PPOClip()).loss_of(x, None, batch(bounds=None), TOTALS)
    assert loss.sums["sampler_trainer_kl"].item() == pytest.approx(math.exp(0.5) - 1 - 0.5, rel=1e-5)
    assert "mismatch_masked" not in loss.sums


def test_bounds_travel_with_samples():
    sample = Sample(
        key="a", prompt_ids=(1,), token_ids=(2, 3), sampler_logprobs=torch.zeros(2), advantages=torch.zeros(2)
    )
    assert collate([sample])[1].bounds is None
    both = (replace(sample, bounds=(0.5, 2.0)), sample)
    assert collate(both)[1].bounds.tolist() == [[0.5, 2.0], [0.0, math.inf]]
    assert with_ratio_bounds([sample], None) == (sample,) and with_ratio_bounds([sample], LOOSE)[0].bounds == LOOSE


@pytest.mark.whole
def test_a_backend_whose_engine_holds_weights_of_its_own_masks():
    torch.set_num_threads(1)
    recipe = tango(
        model=TINY, steps=1, tasks_per_step=1, group_size=2, reviews=2, simultaneous=True, warmup=0, tasks=EASY
    )
    for bounds, expected in ((None, None), (LOOSE, 0.0), ((1.5, 2.0), 1.0)):
        trainer = CoTrainer(recipe, backend=LocalBackend(bounds=bounds))
        row = trainer.step().row
        trainer.close()
        assert row.get("generator/generator/mismatch_masked") == expected
        assert 0.0 <= row["generator/generator/sampler_trainer_kl"] < 1e-6
