"""Answers that are too long: left out of the loss, or paid less."""

from dataclasses import replace

import pytest
import torch
from learn_makers import credit, sampled, trace

from cotrain.algorithms.advantage_edits import LengthPenalty, OverlongPenalty, mask_truncated, with_length_options
from cotrain.algorithms.contract import Sample
from cotrain.algorithms.grpo import mean_baseline
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.algorithms.samples import token_limit
from cotrain.algorithms.sft import SFT
from cotrain.config.schedule import constant_schedule
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import TurnRange
from cotrain.recipes.grpo import grpo as grpo_recipe
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

PLAIN = PolicyGradient(reward_weights={OUTCOME: 1.0}, advantage=mean_baseline)


def answers(*pairs: tuple[int, float], limit: int = 10) -> list[Sample]:
    """Of one group: (tokens, reward) each; those of ``limit`` tokens were cut."""
    made = [sampled(length=n, signals=[("outcome", r)], call=i) for i, (n, r) in enumerate(pairs)]
    return [replace(s, limit=limit, truncated=len(s.token_ids) >= limit) for s in made]


def test_a_penalty_rises_over_the_last_tokens():
    changed, dropped = OverlongPenalty(OUTCOME, 4)(answers((6, 1.0), (7, 1.0), (9, 0.0), (10, 1.0)))
    assert [s.rewards[0].value for s in changed] == [1.0, 0.75, -0.75, 0.0] and dropped == {}


def test_a_penalty_is_at_most_1():
    changed, _ = OverlongPenalty(OUTCOME, 4)(answers((25, 1.0)))
    assert changed[0].rewards[0].value == 0.0


def test_what_an_answer_could_have_is_counted_for_each_that_ended():
    """Turns between which nothing ends a message, as calls of tools, are one answer with one allowance."""
    whole = replace(trace(length=12), token_ids=(1, 2, 9, 3, 4, 5, 6, 7, 8, 9, 3, 2))
    ranges = tuple(TurnRange(start=start, end=end, finish="stop") for start, end in ((0, 3), (4, 6), (7, 8), (10, 12)))
    assert token_limit(whole, 20, (9,)) == 20
    assert token_limit(replace(whole, turns=ranges), 20, (9,)) == 60  # 2 9 │ 3,  5 │ 6,  7 │ 8 9
    assert token_limit(replace(whole, turns=ranges), 20, (0,)) == 20


@gives(OUTCOME.to("solver"))
async def talk(task, roles):
    chat = roles.solver.begin(problem=task.prompt)
    for _ in range(3):
        await chat.say()
        chat.user("Go on.")
    chat.reward(OUTCOME, 1.0)


@pytest.mark.whole
def test_answers_of_several_turns_are_held_against_what_all_turns_could_have():
    made = grpo_recipe(model=TINY, tasks=EASY, tasks_per_step=1, group_size=2, kl=0.0, steps=1, overlong_tokens=4)
    solver = made.roles["solver"]
    short = {"solver": replace(solver, sampling=replace(solver.sampling, max_tokens=6))}
    trainer = CoTrainer(replace(made, roles=short, schedule=constant_schedule(talk, "generator")))
    row = trainer.step().row
    trainer.close()
    assert row["solver/tokens"] == 2 * 3 * 6 and row["generator/credit/reward/outcome"] == 0.0  # 1, and −1 at the end


def test_shorter_answers_of_a_group_earn_more_and_wrong_ones_nothing_for_being_short():
    changed, _ = LengthPenalty(OUTCOME, 0.5)(answers((2, 1.0), (4, 1.0), (6, 1.0), (2, 0.0), (6, 0.0)))
    assert [s.rewards[0].value for s in changed] == [1.25, 1.0, 0.75, 0.0, -0.25]
    alike, _ = LengthPenalty(OUTCOME, 0.5)(answers((3, 1.0), (3, 0.0)))
    assert [s.rewards[0].value for s in alike] == [1.0, 0.0]


def test_what_was_cut_is_compared_and_not_learned_from():
    by = with_length_options(PLAIN, True, 0, 0.0)
    kept = credit(by, answers((4, 1.0), (10, 0.0)))
    assert [len(s.token_ids) for s in kept.samples] == [4] and kept.dropped == {"truncated": 1}
    assert kept.samples[0].advantages.tolist() == [0.5] * 4  # against the mean of both


def test_advantages_are_those_of_the_changed_rewards():
    by = with_length_options(PLAIN, False, 4, 0.5)
    assert (
        by.edit_before == (LengthPenalty(OUTCOME, 0.5), OverlongPenalty(OUTCOME, 4))
        and by.edit_after == PLAIN.edit_after
    )
    first, second = credit(by, answers((4, 1.0), (8, 1.0))).samples  # 1 + 0.25 and 1 − 0.5 − 0.25
    assert torch.allclose(first.advantages, torch.tensor(0.5)) and torch.allclose(second.advantages, torch.tensor(-0.5))


def test_a_right_answer_near_its_end_is_still_a_right_one():
    by = with_length_options(PLAIN, False, 4, 0.5)
    first, second = credit(by, answers((8, 1.0), (9, 1.0))).samples  # 1 + 0.25 − 0.5 and 1 − 0.25 − 0.75
    assert torch.allclose(first.advantages, torch.tensor(0.375)) and torch.allclose(
        -second.advantages, torch.tensor(0.375)
    )


def test_recipes_take_them_for_their_first_objective_alone():
    by = {name: o.algorithm for name, o in tango(overlong_tokens=16, mask_truncated=True).objectives.items()}
    assert by["generator"].edit_before[0].tokens == 16 and by["generator"].edit_after[-1] is mask_truncated
    assert by["verifier"].edit_before == () and mask_truncated not in by["verifier"].edit_after
    assert (
        grpo_recipe().objectives["generator"].algorithm
        == grpo_recipe(length_penalty=0.0).objectives["generator"].algorithm
    )
    with refuses("E_REWARD_EDITS_RANGE", names="-1"):
        grpo_recipe(overlong_tokens=-1)
    for lengths in ({"overlong_tokens": 8}, {"length_penalty": 0.1}):  # which give rewards below 0
        with refuses("E_MAXRL_WITH_REWARD_EDITS"):
            grpo_recipe(estimator="maxrl", **lengths)
    assert (
        grpo_recipe(estimator="maxrl", mask_truncated=True).objectives["generator"].algorithm.edit_after[-1]
        is mask_truncated
    )
    with refuses("E_REWARD_EDITS_UNUSED"):
        with_length_options(SFT(), True, 0, 0.0)
