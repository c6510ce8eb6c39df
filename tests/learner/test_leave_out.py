"""Tokens that are left out of learning: context, and nothing else."""

from dataclasses import replace

import pytest
import torch
from learn_makers import credit, plain_logprobs, sampled, tiny_model

from cotrain.algorithms.advantage_edits import LeaveOut
from cotrain.algorithms.contract import LossTerm
from cotrain.algorithms.grpo import GRPO
from cotrain.algorithms.policy_gradient import drop_flat_groups
from cotrain.core.signals import OUTCOME, Signal
from cotrain.core.types import Reward
from cotrain.learner.learner import TorchLearner
from tests.sentences import refuses

OWN = Signal("own", per="span")
LEARN = GRPO(reward_weights={OUTCOME: 1.0}, edit_after=(drop_flat_groups, LeaveOut(OWN)))


def pair(*spans, length=6):
    """A right and a wrong answer of one group; the right one holds these spans."""
    own = [("own", 1.0, span) for span in spans]
    return [
        sampled(length=length, signals=[("outcome", 1.0), *own], call=0),
        sampled(length=length, signals=[("outcome", 0.0)], call=1),
    ]


def test_tokens_of_a_span_become_what_was_given_between_the_others():
    right, wrong = credit(LEARN, pair((1, 3), (4, 5))).samples
    assert right.token_ids == (3, 6, 8)  # of 3 4 5 6 7 8
    assert right.context_tokens == ((1, (4, 5)), (2, (7,))) and wrong.context_tokens == ()
    assert right.sampler_logprobs.shape == right.advantages.shape == (3,) and wrong.token_ids == (4, 5, 6, 7, 8, 9)
    assert right.advantages.tolist() == pytest.approx([0.5**0.5] * 3, abs=1e-3)  # as before
    assert [reward.name for reward in right.rewards] == ["outcome"]


def test_a_beginning_joins_the_prompt_and_an_end_is_gone():
    right, _ = credit(LEARN, pair((0, 2), (5, 6))).samples
    assert (right.prompt_ids, right.token_ids, right.context_tokens) == ((1, 2, 3, 4), (5, 6, 7), ())


def test_what_was_given_before_stays_in_its_place():
    first, second = pair((1, 2), (3, 4))
    before = replace(first, context_tokens=((1, (20,)), (3, (21, 22)), (5, (23,))))
    right, _ = credit(LEARN, [before, second]).samples
    assert right.token_ids == (3, 5, 7, 8)  # 3 |20 4| 5 |21 22 6| 7 |23| 8
    assert right.context_tokens == ((1, (20, 4)), (2, (21, 22, 6)), (3, (23,)))


def test_an_answer_of_nothing_else_is_dropped_and_counted():
    found = credit(LEARN, pair((0, 6)))
    assert len(found.samples) == 1 and found.dropped == {"all left out": 1}


def test_samples_that_two_edits_leave_out_for_one_reason_are_all_counted():
    other = Signal("other", per="span")
    learn = replace(LEARN, edit_after=(LeaveOut(OWN), LeaveOut(other)))
    first, second = pair((0, 6))
    second = replace(second, rewards=(*second.rewards, Reward(name="other", value=1.0, tokens=(0, 6))))
    found = credit(learn, [first, second])
    assert found.samples == () and found.dropped == {"all left out": 2}


def test_a_signal_of_whole_answers_cannot_say_which_tokens():
    with refuses("E_SIGNAL_NOT_PER_SPAN", names="'outcome'"):
        LeaveOut(OUTCOME)


def test_the_update_is_that_of_a_plain_loop_with_a_mask():
    """The loss of the other tokens, each given all before it, what is left out included; and its own total of
    tokens."""
    samples = pair((1, 3))
    model, plain = tiny_model(), tiny_model()
    found = credit(LEARN, samples).samples
    TorchLearner(model, lr=1e-2, clip_norm=None).update([LossTerm(name="x", algorithm=LEARN, samples=found)])
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    mask = torch.tensor([1.0, 0, 0, 1, 1, 1])
    loss = torch.zeros((), dtype=torch.float64)
    for sample, kept, side in ((samples[0], mask, 1.0), (samples[1], torch.ones(6), -1.0)):
        ratio = (plain_logprobs(plain, sample) - sample.sampler_logprobs).exp()
        advantage = side * float(found[0].advantages[0])
        loss = loss - (torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * kept).sum() / 10
    loss.backward()
    optimizer.step()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
