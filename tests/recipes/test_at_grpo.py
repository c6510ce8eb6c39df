"""Agents in turn: what a turn earns, which candidate goes on, and whose turns are compared with each other."""

from functools import partial

import pytest

from cotrain.algorithms.contract import Batch
from cotrain.core.types import Sampling
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.at_grpo.recipe import at_grpo
from cotrain.recipes.at_grpo.turns import TURN_REWARD, take_turns
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.learner.learn_makers import sampled
from tests.sentences import refuses

TASK = EASY.get("train", 0)
RIGHT = f"<step>x</step><answer>{TASK.gold}</answer>"
WRONG = "<step>x</step><answer>-1</answer>"
YES, NO = (f"<step>x {w}</step><final>{w}</final>" for w in ("CORRECT", "INCORRECT"))
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 4, "evaluation_tasks": 2}


def played(solver=(), verifier=(), refiner=(), group_size=1, times=1, **options):
    """The traces of all episodes, by role; each role says its texts in turn. ``times``: that the problem is drawn."""
    said = {"solver": iter(solver), "verifier": iter(verifier), "refiner": iter(refiner)}
    programs = {name: lambda fields, rng, texts=texts: next(texts) for name, texts in said.items()}
    prompts = {"solver": "{problem}", "verifier": "{problem} {solution}", "refiner": "{solution} {review}"}
    roles = {
        name: Role(
            policy=name,
            prompt=prompt,
            parse=parse_review if name == "verifier" else parse_solution,
            sampling=Sampling(max_tokens=9),
        )
        for name, prompt in prompts.items()
    }
    executor = RolloutRunner(spoken(programs), dict.fromkeys(roles, ByteRenderer()), roles, 0)
    episodes = executor.collect(partial(take_turns, **options), [TASK] * times, step=0, group_size=group_size)
    assert all(e.failure is None for e in episodes), episodes
    return {name: [t for e in episodes for t in e.traces if t.role == name] for name in roles}


def earned(traces):
    return [t.rewards[0].value for t in traces]


def test_of_each_turn_the_best_candidate_goes_on():
    found = played([WRONG, RIGHT], [NO, YES], samples=2, rounds=2, alpha=2.0)
    assert earned(found["solver"]) == [1.0, 3.0]  # 2 · team + format
    assert earned(found["verifier"]) == [2.0, 3.0]  # the right one is reviewed; YES is the truth, and ends the game
    assert not found["refiner"]
    assert found["solver"][0].metadata["team"] is True and found["solver"][0].metadata["turns"] == 2.0


def test_the_first_of_equals_goes_on_and_a_revision_is_a_turn():
    found = played([WRONG, WRONG], [YES, NO], [WRONG, RIGHT], samples=2, rounds=1)
    assert earned(found["solver"]) == [1.0, 1.0] and earned(found["verifier"]) == [0.0, 1.0]
    assert earned(found["refiner"]) == [1.0, 2.0]
    assert {t.parent for t in found["refiner"]} == {str(found["solver"][0].address)}
    assert found["solver"][0].metadata["team"] is True and found["solver"][0].metadata["turns"] == 3.0


def test_an_unreadable_solution_is_not_reviewed():
    found = played(["what?"], rounds=2)
    assert not found["verifier"] and earned(found["solver"]) == [0.0] and found["solver"][0].metadata["team"] is False


def test_a_trajectory_is_paid_at_its_end_by_the_teams_answer():
    found = played([WRONG], [NO], [RIGHT], pay="end", local=0.5)
    assert earned(found["solver"]) == earned(found["verifier"]) == earned(found["refiner"]) == [1.5]
    found = played([RIGHT], [NO], [WRONG], pay="end", local=0.0)
    assert earned(found["solver"]) == earned(found["verifier"]) == earned(found["refiner"]) == [0.0]
    found = played([RIGHT], [YES], pay="end", local=0.0)
    assert earned(found["solver"]) == earned(found["verifier"]) == [1.0]


@pytest.mark.parametrize("group, pools", [("turn", 3), ("agent", 2), ("global", 1)])
def test_whose_turns_are_compared(group, pools):
    found = played([WRONG] * 2, [NO] * 2, [WRONG] * 2, group_size=2, pay="end", group=group)
    keys = {name: {t.group for t in traces} for name, traces in found.items()}
    assert len(set.union(*keys.values())) == pools and all(len(one) == 1 for one in keys.values())
    assert (keys["solver"] == keys["refiner"]) == (group != "turn")


def test_a_problem_that_is_drawn_twice_is_two():
    found = played([WRONG] * 4, [NO] * 4, [WRONG] * 4, samples=2, times=2)
    pools = [{t.group for t in found["verifier"] if t.parent == str(s.address)} for s in found["solver"][::2]]
    assert [len(pool) for pool in pools] == [1, 1] and pools[0] != pools[1]


def turns(role, group, *values):
    return [
        sampled(role=role, group=group, signals=[(TURN_REWARD.name, v)], length=1, call=i) for i, v in enumerate(values)
    ]


def second_moment(recipe, samples):
    """Of the checker's advantages."""
    credit, _ = recipe.objectives["checker"].algorithm.credit(Batch(samples=tuple(samples)), {})
    assert {s.role for s in credit.samples} == {"verifier"}
    found = [float(s.advantages[0]) ** 2 for s in credit.samples]
    return sum(found) / len(found)


def test_one_mean_and_deviation_for_all_inflates_the_second_moment():
    """Dr. MAS: (σ_k² + (μ_k − μ)²) / σ². The reasoner earns 0, 0, 0, 0, 0, 1 and the checker 1, 2: μ = 4/8 = 1/2.
    Squares about it: five times 1/4, 1/4, 1/4, 9/4 = 4, so σ² = 4/7 (n − 1). Of the checker μ_k = 3/2, σ_k² = 1/4 (n):
    (1/4 + 1) / (4/7) = 35/16. In a group of its own its advantages are ± (1/2) / √(1/2): second moment 1/2, which is
    1 times (n − 1) / n."""
    reasoner, checker = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0), (1.0, 2.0)
    globally = at_grpo(group="global", **SMALL)
    mixed = [*turns("solver", "p", *reasoner), *turns("verifier", "p", *checker)]
    assert second_moment(globally, mixed) == pytest.approx(35 / 16, rel=1e-4)
    apart = at_grpo(variant="dr_mas", **SMALL)
    assert second_moment(apart, turns("verifier", "p/checker", *checker)) == pytest.approx(1 / 2, rel=1e-4)


@pytest.mark.whole
def test_two_policies_share_one_mean_and_learn_from_their_own_turns_alone():
    recipe = at_grpo(group="global", **SMALL | {"tasks_per_step": 4})
    assert recipe.objectives["reasoner"].roles == ("solver", "refiner", "verifier")
    trainer = CoTrainer(recipe)
    row = trainer.step().row
    assert row["reasoner/updates"] == row["checker/updates"] == 1
    shared = at_grpo(group="global", weights="shared", **SMALL)
    assert set(shared.policies) == {"reasoner"} and shared.objectives["checker"].policy == "reasoner"


def test_what_it_refuses():
    with refuses("E_SETTING_RANGE"):
        at_grpo(rounds=0)
    with refuses("E_SHARED_WEIGHTS_OTHER_MODEL"):
        at_grpo(weights="shared", checker_model=TINY)
    with refuses("E_UNKNOWN_GROUPING", names="'turn'"):
        played([RIGHT], group="turns")
    with refuses("E_PAY_END_WITH_SAMPLES"):
        played([RIGHT] * 2, samples=2, pay="end")
