"""A reward model that never speaks is measured by the order of its sums, against the truth of held-out solutions."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cotrain.config.evaluation import ImplicitReward
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Sampling, Trace
from cotrain.recipes.prime.recipe import prime
from cotrain.rollout.role import Role
from cotrain.trainer.implicit_reward_evaluation import implicit_reward_figures
from tests.sentences import refuses

TEXT = "ab cd"  # two steps, of the tokens 0-1 and 2-4
STEPS = [(0, 2, "ab"), (3, 5, "cd")]
SOLVER = Role(policy="generator", prompt="{problem}", sampling=Sampling(max_tokens=5))


class Handle:
    """Log-probabilities as they were put down for each answer."""

    def __init__(self, table):
        self.table = table

    def logprobs(self, pairs, *, temperature):
        assert temperature == 1.0
        return [torch.tensor(self.table[ids[0]]) for _, ids in pairs]


class Policies(dict):
    @property
    def renderers(self):
        return {"generator": SimpleNamespace(offsets=lambda ids: [1, 2, 3, 4, 5])}


def solution(task, member, right, steps=None):
    name = 10 * task + member
    truth = {"correct": right} | ({"step_ok": steps} if steps else {})
    return Trace(
        address=Address(step=0, task=task, member=member, role="solver", call=0), role="solver", policy="generator",
        version=0, group=str(task), prompt_ids=(1,), token_ids=(name, 0, 0, 0, 0), logprobs=(0.0,) * 5, text=TEXT,
        finish="stop", rewards=(), findings={"steps": STEPS}, metadata=truth,
    )  # fmt: skip


def episodes(*traces):
    return [
        Episode(step=0, task=t.address.task, member=t.address.member, task_id=str(t.address.task), traces=(t,))
        for t in traces
    ]


def measured(rewards, *traces):
    policies = Policies(prm=Handle(rewards), reference=Handle({name: [0.0] * 5 for name in rewards}))
    judge = ImplicitReward(policy="prm", reference="reference")
    return implicit_reward_figures((judge,), episodes(*traces), policies, {"solver": SOLVER})


def test_pairs_of_one_problem_are_put_in_order_by_their_sums():
    rewards = {0: [1.0] * 5, 1: [0.0] * 5, 2: [1.0] * 5, 10: [9.0] * 5, 11: [9.5, 0, 0, 0, 0]}
    traces = [solution(0, 0, True), solution(0, 1, False), solution(0, 2, False)]  # one in order, one tie
    traces += [solution(1, 0, False), solution(1, 1, True)]  # out of order, though larger than all of problem 0
    found = measured(rewards, *traces)
    assert set(found) == {"prm/pair_accuracy"}
    assert found["prm/pair_accuracy"].value == pytest.approx(1.5 / 3) and found["prm/pair_accuracy"].n == 3


def test_steps_are_judged_by_the_sums_of_their_tokens():
    right, wrong = solution(0, 0, True, [True, True]), solution(0, 1, False, [True, False])
    rewards = {0: [1.0, 1.0, 0.0, 1.0, 1.0], 1: [1.0, 0.0, 0.0, 0.5, 0.0]}  # steps: 2, 2; 1, 0.5
    assert measured(rewards, right, wrong)["prm/step_pair_accuracy"].value == 1.0
    rewards[1] = [1.0, 0.0, 0.0, 1.0, 0.5]  # the wrong step above the right one before it
    assert measured(rewards, right, wrong)["prm/step_pair_accuracy"].value == pytest.approx(2 / 3)


def test_the_best_of_eight_is_the_one_with_the_largest_sum():
    traces = [solution(0, member, member == 3) for member in range(8)]
    rewards = {member: [float(member == 3)] * 5 for member in range(8)}
    assert measured(rewards, *traces)["solver/best@8"].value == 1.0
    assert measured(rewards | {5: [2.0] * 5}, *traces)["solver/best@8"].value == 0.0
    assert "solver/best@8" not in measured(rewards, *traces[:7])


def test_what_could_not_be_graded_is_left_out():
    lost = replace(solution(0, 1, False), metadata={})
    assert measured({0: [1.0] * 5, 1: [2.0] * 5}, solution(0, 0, True), lost) == {}
    assert measured({1: [2.0] * 5}, lost) == {}


def test_a_recipe_names_policies_that_there_are():
    recipe = prime()
    assert recipe.evaluation.implicit_rewards == (ImplicitReward(policy="prm", reference="reference"),)
    assert prime(prm="none").evaluation.implicit_rewards == ()
    other = replace(recipe.evaluation, implicit_rewards=(ImplicitReward(policy="nobody", reference="reference"),))
    with refuses("E_NO_SUCH_PART", names="nobody"):
        replace(recipe, evaluation=other)
