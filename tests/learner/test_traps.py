"""Mistakes that released code of self-play methods makes, each as a test that they are not made here.

More of them stand with what they are about: aligned and crossed credit (``methods/test_joint.py``), the threshold
that ends a game (``methods/test_magrpo.py``), constant sums (``methods/test_debate.py``), gates and replays
(``methods/test_proposer_solver.py``).
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from cotrain.algorithms.contract import Batch, Sample
from cotrain.algorithms.grpo import GRPO, RLOO, DrGRPO, ReinforcePP
from cotrain.algorithms.sft import SFT
from cotrain.config.recipe import Objective
from cotrain.core.signals import OUTCOME
from cotrain.core.types import Reward
from cotrain.recipes.grpo import grpo as plain
from cotrain.recipes.proposer_solver import proposer_solver
from cotrain.recipes.self_verify import self_verify
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "group_size": 4, "lr": 1e-3}


def sample(key, value, tokens=3, group="g", role="solver"):
    return Sample(
        key=key,
        prompt_ids=(1,),
        token_ids=tuple(range(tokens)),
        sampler_logprobs=torch.zeros(tokens),
        advantages=torch.zeros(tokens),
        group=group,
        role=role,
        rewards=(Reward(name="outcome", value=value),),
    )


def credit(by, *samples):
    return by(reward_weights={OUTCOME: 1.0}, edit_after=()).credit(Batch(samples=samples), {})[0].samples


@pytest.mark.parametrize("by", [GRPO, DrGRPO, RLOO])
def test_a_group_of_one_has_no_advantage(by):
    assert credit(by, sample("0", 1.0))[0].advantages.tolist() == [0.0] * 3


@pytest.mark.parametrize("by", [GRPO, DrGRPO, RLOO])
def test_a_group_without_variance_has_no_advantage(by):
    third = 0.1 + 0.2  # a mean that rounds
    found = credit(by, *(sample(str(i), third) for i in range(3)))
    assert all(s.advantages.tolist() == [0.0] * 3 for s in found)


def test_a_reward_reaches_its_own_sample_whatever_the_lengths():
    """Rewards stand on the last token of their own answer, also where an algorithm looks at single tokens."""
    samples = [sample("0", 1.0, 2, "a"), sample("1", 0.0, 5, "b"), sample("2", 1.0, 1, "c")]
    found = credit(ReinforcePP, *samples)
    assert [len(s.advantages) for s in found] == [2, 5, 1]
    assert [bool((s.advantages > 0).all()) for s in found] == [True, False, True]
    assert all(len(set(s.advantages.tolist())) == 1 for s in found)


def test_roles_are_whitened_apart():
    """Two objectives: the same rewards in each, far apart from one another, are worth the same."""
    low = credit(ReinforcePP, sample("0", 0.0), sample("1", 0.1))
    high = credit(ReinforcePP, sample("2", 90.0, role="b"), sample("3", 100.0, role="b"))
    for one, other in zip(low, high, strict=True):
        assert one.advantages.tolist() == pytest.approx(other.advantages.tolist(), abs=1e-4)


@pytest.mark.whole
def test_metrics_of_roles_survive_their_common_update():
    trainer = CoTrainer(self_verify(mode="joint", reviews=4, steps=1, **SMALL))
    result = trainer.step()
    for role in ("solver", "verifier"):
        traces = [t for e in result.episodes for t in e.traces if t.role == role]
        assert result.row[f"{role}/traces"] == len(traces)
        assert result.row[f"{role}/tokens"] == sum(t.sampled_count for t in traces)


@pytest.mark.whole
def test_a_role_that_learns_second_has_the_log_probabilities_it_was_sampled_with():
    """The first objective moves the weights; the ratio of the second is that of the new weights to the sampler's."""
    made = plain(steps=1, kl=0.0, **SMALL)
    first, phase = made.objectives["generator"], made.schedule.phases[0]
    second = Objective(policy="generator", role="solver", algorithm=first.algorithm)
    both = {"generator": first, "again": second}
    phase = replace(phase, objectives=tuple(both), in_turn=tuple(both))
    made = replace(made, objectives=both, schedule=replace(made.schedule, phases=(phase,)))
    row = CoTrainer(made).step().row
    assert row["generator/generator/sampler_trainer_diff"] < 1e-4
    assert row["generator/again/sampler_trainer_diff"] > 10 * row["generator/generator/sampler_trainer_diff"]


@pytest.mark.whole
def test_a_policy_that_one_of_two_in_turn_has_updated_was_not_skipped():
    made = plain(steps=1, kl=0.0, reward=lambda task, answer, correct: float(len(answer.text)), **SMALL)
    phase, nothing = (
        made.schedule.phases[0],
        Objective(policy="generator", role="solver", algorithm=SFT(where=OUTCOME, at_least=2.0)),
    )
    both = {"generator": made.objectives["generator"], "nothing": nothing}
    phase = replace(phase, objectives=tuple(both), in_turn=tuple(both))
    row = CoTrainer(replace(made, objectives=both, schedule=replace(made.schedule, phases=(phase,)))).step().row
    assert row["generator/updates"] == 1 and row["nothing/credit/samples"] == 0
    assert row["generator/skipped"] == 0


@pytest.mark.whole
def test_log_probabilities_are_taken_at_the_temperature_of_the_sampler():
    for temperature in (0.6, 1.4):
        trainer = CoTrainer(plain(steps=6, temperature=temperature, **SMALL))
        rows = (trainer.step().row for _ in range(6))
        row = next(row for row in rows if "generator/generator/sampler_trainer_diff" in row)
        assert row["generator/generator/sampler_trainer_diff"] < 1e-4
        assert row["generator/generator/ratio"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.whole
def test_no_rendered_prompt_of_a_solver_holds_the_gold_answer():
    canary = "31337042"
    trainer = CoTrainer(proposer_solver(steps=1, **SMALL))
    phase = next(p for p in trainer.recipe.schedule.phases if p.name == "solve")
    tasks = [replace(EASY.get("train", i), gold=canary, solution=canary) for i in range(3)]
    episodes = trainer.runner.collect(partial(phase.protocol, pool=trainer.stores["pool"]), tasks, step=0, group_size=1)
    shown = [trainer.policies.renderers[t.policy].decode(t.prompt_ids) for e in episodes for t in e.traces]
    assert shown and not any(canary in text for text in shown)
