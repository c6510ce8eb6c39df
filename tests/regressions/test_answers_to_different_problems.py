"""Four members of a group, each with a problem of its own, were compared as answers to one problem."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from cotrain.config.schedule import constant_schedule
from cotrain.core.signals import OUTCOME, gives
from cotrain.recipes.grpo import grpo
from cotrain.rollout.event_loop import gather
from cotrain.runs import run as loop
from cotrain.storage.ledger import Ledger
from tests.helpers import EASY, TINY
from tests.sentences import refuses

ROOM = {"model": TINY, "tasks_per_step": 1, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-3, "kl": 0.0, "steps": 1}


def trained(protocol, out, **options):
    made = grpo(tasks=EASY, **ROOM)
    measured = replace(made.evaluation, group_size=1, greedy=False, splits=())
    loop.start_run(
        replace(made, evaluation=measured, schedule=constant_schedule(partial(protocol, **options), "generator")), out
    )
    with Ledger(out / "episodes") as ledger:
        return sorted({trace.group for episode in ledger.read(0) for trace in episode.traces})


@gives(OUTCOME.to("solver"))
async def of_its_own(task, roles, *, named="", paid=(0, 1)):
    """Two problems, two answers to each, of which those of the problems in ``paid`` are rewarded."""
    solver = roles.solver
    problems = [f"{task.prompt} Case {n}." for n in (1, 2)]
    groups = {"": [None, None], "each": ["0/1", "0/2"], "whole": [solver.whole_group] * 2}[named]
    asked = [solver.many(2, problem=text, group=group) for text, group in zip(problems, groups, strict=True)]
    for problem, turns in enumerate(await gather(asked)):
        for place, turn in enumerate(turns):
            if problem in paid:
                turn.reward(OUTCOME, float(place))


@pytest.mark.whole
def test_they_are_refused_in_one_line_that_says_what_to_name(tmp_path):
    names = ("objective 'generator'", "role 'solver'", "roles.solver(group=…)", "group=roles.solver.whole_group")
    with refuses("E_ANSWERS_NOT_COMPARABLE", names=names) as refused:
        trained(of_its_own, tmp_path / "run")
    assert "\n" not in str(refused.value)


@gives(OUTCOME.to("solver"))
async def differing_in_step_2(task, roles):
    """Two answers, which in the second step alone are to two problems."""
    first = await roles.solver(problem=task.prompt)
    case = " Case 2." if first.address.step == 1 else ""
    second = await roles.solver(problem=task.prompt + case)
    first.reward(OUTCOME, 0.0)
    second.reward(OUTCOME, 1.0)


@pytest.mark.whole
@pytest.mark.parametrize("async_steps", [0, 1])
def test_a_resumed_run_is_refused_as_it_was_before(async_steps, tmp_path):
    """With ``async_steps`` a checkpoint has batches that are not due yet, and nothing by which they could be
    checked."""
    made = grpo(tasks=EASY, **ROOM | {"steps": 3})
    measured = replace(made.evaluation, group_size=1, greedy=False, splits=())
    refused = replace(made, evaluation=measured, schedule=constant_schedule(differing_in_step_2, "generator"))
    with refuses("E_ANSWERS_NOT_COMPARABLE"):
        loop.start_run(refused, tmp_path / "run", checkpoint_every=1, async_steps=async_steps)
    with refuses("E_ANSWERS_NOT_COMPARABLE"):
        loop.resume_run(refused, tmp_path / "run")


@pytest.mark.whole
def test_a_protocol_may_name_its_groups(tmp_path):
    assert trained(of_its_own, tmp_path / "each", named="each") == ["0/1", "0/2"]
    assert trained(of_its_own, tmp_path / "whole", named="whole") == ["0:solver"]


@pytest.mark.whole
def test_what_is_not_rewarded_is_not_compared(tmp_path):
    assert trained(of_its_own, tmp_path / "run", paid=(0,)) == ["0:solver"]


@pytest.mark.whole
def test_a_conversation_that_goes_on_differently_answers_one_prompt(tmp_path):
    @gives(OUTCOME.to("solver"))
    async def asks_again(task, roles):
        chat = roles.solver.begin(problem=task.prompt)
        turn = await chat.say()
        chat.user(f"You said {len(turn.text)} letters.")
        await chat.say()
        chat.reward(OUTCOME, float(len(turn.text)))

    assert trained(asks_again, tmp_path / "run") == ["0:solver"]
