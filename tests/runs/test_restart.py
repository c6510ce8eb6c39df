"""Iterations that begin anew: the optimiser, or the weights too; and a run that is stopped anywhere in one."""

from dataclasses import replace

import pytest
import torch

from cotrain.config.policies import trainable
from cotrain.recipes.gram import gram
from cotrain.recipes.self_rewarding import self_rewarding
from cotrain.recipes.spin import spin
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "evaluation_tasks": 1, "lr": 1e-3, "lr_warmup": 3}


def made(**changes):
    return spin(steps=6, **{"iteration": 2, "mixed": False, **SMALL, **changes})


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.policies["generator"].weights()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.whole
def test_each_iteration_begins_with_an_optimiser_that_has_seen_nothing():
    """The third update, the first of the second iteration, is the first of an optimiser on the weights of then: warmed
    up anew, without moments."""
    trainer = CoTrainer(made(reset="optimiser"))
    rates = []
    for step in range(3):
        if step == 2:
            before = trainer.policies["generator"].tensors()
            assert not same(weights(trainer), weights(CoTrainer(made()))), "the weights go on"
        rates.append(trainer.step().row["generator/lr"])
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3 / 3])
    after, changed = weights(trainer), 0
    for name, tensor in after.items():
        first = before[f"model.{name}"] - tensor
        if not first.any():
            continue
        changed += 1
        # AdamW's first step of rate r is r · g / (|g| + ε): no weight moves by more
        assert first.abs().max() <= 1e-3 / 3 * 1.01
        assert first.abs().max() >= 1e-3 / 3 * 0.5, "and moments of old steps would have made it smaller or larger"
    assert changed
    moments = trainer.policies["generator"].tensors()
    assert {float(t) for name, t in moments.items() if name.endswith(":step")} == {1.0}


@pytest.mark.whole
def test_weights_go_back_when_the_next_iteration_is_played_and_not_before():
    trainer, start = CoTrainer(made(reset="weights")), weights(CoTrainer(made()))
    for _ in range(2):
        trainer.step()
    assert not same(weights(trainer), start), "what the iteration made can be measured"
    opponent = dict(trainer.policies["opponent"].weights())
    assert same(weights(trainer), {name: tensor.clone() for name, tensor in opponent.items()})
    assert trainer.policies.restart_weights_if_iteration_over() == ["generator"] and same(weights(trainer), start)
    assert trainer.policies.restart_weights_if_iteration_over() == [], "once"
    trainer.step()
    assert not same(weights(trainer), start) and trainer.policies.restart_weights_if_iteration_over() == []


@pytest.mark.whole
@pytest.mark.parametrize("reset", ["optimiser", "weights"])
def test_a_run_that_is_stopped_within_an_iteration_goes_on_the_same(reset):
    whole = CoTrainer(made(reset=reset))
    states = []
    for step in range(5):
        if step == 4:
            whole.policies.restart_weights_if_iteration_over()  # stopped while the first step of an iteration is played
            states.append((whole.state(), whole.policies.tensors()))
        whole.step()
        states.append((whole.state(), whole.policies.tensors()))
    assert len(states) == 6
    for state, tensors in states:
        again = CoTrainer(made(reset=reset))
        again.load(state, tensors)
        while again.finished_steps < whole.finished_steps:
            again.step()
        assert same(weights(again), weights(whole)) and again.state() == whole.state(), state["finished"]


def taught(**changes):
    """A judge that learns by two cross-entropies, one after the other: ``pairs`` for two steps, then ``judge``."""
    values = {"judge_lr": 1e-3, "unlabelled": 2, "warmup": 2, "pairs": 2, **SMALL, "group_size": 2}
    return gram(steps=5, generator="frozen", **values | changes)


@pytest.mark.whole
def test_a_policy_that_goes_over_to_another_objective_begins_with_a_new_optimiser():
    """Step 2 is the first after the warm-up by pairs, the cycle from step 4 on goes on with labels."""
    trainer, rates, counts = CoTrainer(taught()), [], []
    for step in range(5):
        before = {name: tensor.clone() for name, tensor in trainer.policies["judge"].weights()}
        rates.append(trainer.step().row["judge/lr"])
        tensors = trainer.policies["judge"].tensors()
        counts.append({float(t) for name, t in tensors.items() if name.endswith(":step")})
        moved = max(float((before[name] - t).abs().max()) for name, t in trainer.policies["judge"].weights())
        if step == 2:  # AdamW's first step of rate r is r · g / (|g| + ε)
            assert moved == pytest.approx(1e-3 / 3, rel=0.01), "moments of old gradients would change it"
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3 / 3, 2e-3 / 3, 1e-3])
    assert counts == [{1.0}, {2.0}, {1.0}, {2.0}, {3.0}]
    assert trainer.policies.update_counts["judge"] == 5


@pytest.mark.whole
def test_a_run_that_is_stopped_beside_the_change_of_objectives_goes_on_the_same():
    whole, states = CoTrainer(taught()), []
    for step in range(5):
        states.append((whole.state(), whole.policies.tensors()))
        if step == 2:
            whole.policies.reset_optimizers(whole.recipe.due_for_new_optimizer(step))  # stopped in its rollouts
            states.append((whole.state(), whole.policies.tensors()))
        whole.step()
    for state, tensors in states:
        again = CoTrainer(taught())
        again.load(state, tensors)
        while again.finished_steps < whole.finished_steps:
            again.step()
        one, other = ({n: t.clone() for n, t in of.policies["judge"].weights()} for of in (again, whole))
        assert same(one, other) and again.state() == whole.state(), state["finished"]


@pytest.mark.whole
def test_without_it_nothing_is_saved_that_was_not():
    state = CoTrainer(made()).state()["policies"]["generator"]
    assert "restarted" not in state
    assert self_rewarding(reset="optimiser", iteration=7, **SMALL).policies["generator"].reset_every == 7


def test_what_does_not_fit_is_refused():
    policy = trainable(TINY)
    with refuses("E_RESET_WITHOUT_EVERY"):
        replace(policy, reset_to_start=True)
    with refuses("E_POLICY_SETTING_RANGE", names=("reset_every", "-1")):
        replace(policy, reset_every=-1)
    with refuses("E_ASYNC_STEPS_WITH_RESET"):
        CoTrainer(made(reset="weights"), async_steps=1)
