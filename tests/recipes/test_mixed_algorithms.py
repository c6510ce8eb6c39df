"""Policies that learn by different algorithms from the same episodes: three at once, and two who share a solution."""

from functools import partial

import pytest
import torch

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.dpo import Preference
from cotrain.algorithms.sft import SFT
from cotrain.core.types import Sampling
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.generator_verifier_critic import generator_verifier_critic
from cotrain.recipes.two_agents_split import hand_over, two_agents_split
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.learner.learn_makers import sampled
from tests.sentences import refuses

TASK = EASY.get("train", 0)
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 2}
STEP, RIGHT, WRONG = "<step>x</step>", f"<answer>{TASK.gold}</answer>", "<answer>-1</answer>"


def credited(recipe, objective, *samples):
    credit, _ = recipe.objectives[objective].algorithm.credit(Batch(samples=samples), {})
    return credit.samples


# -- three at once


def solutions():
    """Two of two tokens and one step each: right and called right, wrong and called wrong; values are 0."""
    rewards = ([("outcome", 1.0), ("step", 1.0, (0, 1))], [("outcome", 0.0), ("step", -1.0, (0, 1))])
    return [sampled(signals=s, length=2, call=i, values=torch.zeros(2)) for i, s in enumerate(rewards)]


def test_the_generators_advantages_and_the_critics_targets_by_hand():
    """α = 1/2, λ = 1: returns 3/2, 1 and −1/2, 0, which the critic regresses. Whitened about their mean 1/2: deviations
    1, 1/2, −1, −1/2, squares 5/2, over n − 1 = 3: 0.8333, σ = 0.91287."""
    recipe = generator_verifier_critic(alpha=0.5, lam=1.0, **SMALL)
    assert [s.targets.tolist() for s in credited(recipe, "critic", *solutions())] == [[1.5, 1.0], [-0.5, 0.0]]
    found = [s.advantages.tolist() for s in credited(recipe, "generator", *solutions())]
    assert found[0] == pytest.approx([1.0 / 0.91287, 0.5 / 0.91287], rel=1e-4)
    assert found[1] == pytest.approx([-1.0 / 0.91287, -0.5 / 0.91287], rel=1e-4)


def reviews():
    said = enumerate((1.0, 0.0, 0.0))
    return [sampled(role="verifier", signals=[("agreement", v)], call=i, length=2) for i, v in said]


def test_cross_entropy_learns_the_true_verdicts_alone():
    recipe = generator_verifier_critic(**SMALL)
    assert isinstance(recipe.objectives["verifier"].algorithm, SFT)
    [kept] = credited(recipe, "verifier", *reviews())
    assert kept.key == reviews()[0].key and kept.advantages.tolist() == [1.0, 1.0]


@pytest.mark.whole
def test_all_three_learn_from_one_step():
    for by in ("ce", "grpo", "dpo"):
        row = CoTrainer(generator_verifier_critic(verifier_by=by, **SMALL | {"tasks_per_step": 4})).step().row
        assert [row[f"{name}/updates"] for name in ("generator", "critic")] == [1, 1]
    made = generator_verifier_critic(verifier_by="dpo", **SMALL)
    assert (
        isinstance(made.objectives["verifier"].algorithm, Preference)
        and made.objectives["verifier"].algorithm.reference == "judge"
    )


def test_without_a_critic_there_are_two_roles():
    made = generator_verifier_critic(critic="none", **SMALL)
    assert set(made.policies) == {"generator", "verifier"} and set(made.objectives) == {"generator", "verifier"}
    made = generator_verifier_critic(verifier="frozen", alpha=0.0, **SMALL)
    assert set(made.objectives) == {"generator", "critic"} and not made.policies["verifier"].is_trained
    sizes = generator_verifier_critic(verifier_model="shipped", critic_model="shipped-checker", **SMALL)
    assert {n: p.model for n, p in sizes.policies.items()} == {
        "generator": TINY,
        "verifier": "shipped",
        "critic": "shipped-checker",
    }


# -- a solution split


def played(starts, ends, **options):
    said = {"starter": iter(starts), "solver": iter(ends)}
    programs = {name: lambda fields, rng, texts=texts: next(texts) for name, texts in said.items()}
    roles = {
        name: Role(policy=name, prompt="{problem}", parse=parse, sampling=Sampling(max_tokens=99))
        for name, parse in (("starter", None), ("solver", parse_solution))
    }
    executor = RolloutRunner(spoken(programs), dict.fromkeys(roles, ByteRenderer()), roles, 0)
    [episode] = executor.collect(partial(hand_over, **options), [TASK], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return [[t for t in episode.traces if t.role == name] for name in roles]


def test_a_start_is_worth_the_share_of_its_finishes_that_are_right():
    starts, ends = played([STEP, STEP], [RIGHT, WRONG, WRONG, WRONG], samples=2, finishes=2)
    assert [[r.value for r in t.rewards] for t in starts] == [[0.5], [0.0]]
    assert [[r.value for r in t.rewards] for t in ends] == [[1.0], [0.0], [0.0], [0.0]]
    assert [t.group for t in ends] == [str(starts[0].address)] * 2 + [str(starts[1].address)] * 2
    assert len({t.group for t in starts}) == 1
    assert ends[0].findings["answer"] == TASK.gold and "failure" not in ends[0].findings  # read with its start
    assert all(ByteRenderer().decode(t.prompt_ids).endswith(STEP) for t in ends)  # given, and not learned


def test_from_a_start_that_is_none_nobody_goes_on():
    starts, ends = played(["so", STEP], [RIGHT], samples=2)
    assert [t.rewards[0].value for t in starts] == [0.0, 1.0] and len(ends) == 1
    assert [t.metadata["whole"] for t in starts] == [False, True]


@pytest.mark.whole
def test_several_steps_of_a_start_are_one_sequence():
    made = two_agents_split(cut=2, finishes=2, **SMALL)
    trainer = CoTrainer(made)
    traces = [t for e in trainer.step().episodes for t in e.traces]
    texts = {str(t.address): t.text for t in traces if t.role == "starter"}
    assert any(text.count("</step>") == 2 and text.endswith("</step>") for text in texts.values())
    assert all(len(t.rewards) == 1 for t in traces if t.role == "starter")


@pytest.mark.whole
def test_who_learns_and_how():
    made = two_agents_split(starter_model="shipped", **SMALL)
    assert {n: p.model for n, p in made.policies.items()} == {"generator": TINY, "starter": "shipped"}
    assert isinstance(made.objectives["generator"].algorithm, SFT) and set(made.objectives) == {"generator", "starter"}
    made = two_agents_split(train="starter", **SMALL)
    assert set(made.objectives) == {"starter"} and not made.policies["generator"].is_trained
    made = two_agents_split(weights="shared", solver_by="grpo", **SMALL)
    assert set(made.policies) == {"generator"} and {o.policy for o in made.objectives.values()} == {"generator"}
    row = CoTrainer(two_agents_split(**SMALL | {"tasks_per_step": 4})).step().row
    assert row["generator/updates"] == row["starter/updates"] == 1


def test_what_they_refuse():
    with refuses("E_SETTING_RANGE"):
        generator_verifier_critic(reviews=1, verifier_by="grpo")
    with refuses("E_CRITIC_MODEL_WITHOUT_CRITIC"):
        generator_verifier_critic(critic="none", critic_model=TINY)
    with refuses("E_SETTING_RANGE"):
        two_agents_split(finishes=1, solver_by="dpo")
    with refuses("E_SHARED_WEIGHTS_OTHER_MODEL"):
        two_agents_split(weights="shared", train="solver")


@pytest.mark.parametrize("others", [{}, {"solver_by": "dpo"}])
def test_a_pull_is_for_a_solver_that_learns_by_grpo(others):
    """They had blamed a policy `reference` that no user gave."""
    with refuses("E_KL_WITHOUT_LEARNER", names="0.2"):
        two_agents_split(kl=0.2, **others)
    made = two_agents_split(kl=0.2, solver_by="grpo")
    assert made.objectives["generator"].algorithm.kl.weight == 0.2
