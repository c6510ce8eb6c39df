"""A reward of the user's own, called as it wants to be: for one answer or for all, and awaited where it is ``async``.

::

    def short(task, answer, correct): ...                     once for each answer
    async def asked(task, answer, correct): ...               the same; the answers are waited for at the same time
    def ranked(tasks, answers, corrects): ...                 once for all answers of a step, in lists; one number each
    async def ranked_elsewhere(tasks, answers, corrects): ... the same, awaited

What wants all answers says so by the name of its first parameter, ``tasks``. Such a call waits until no answer can come
any more before it: the models have said all that does not wait for a reward. The lists are in the order of the problems
and of their answers, whichever was written first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from cotrain.core.types import Task
from cotrain.rollout.event_loop import in_one_call
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

FOR_ALL = "tasks"  # the first parameter of a function that wants all answers


class Answer(NamedTuple):
    """An answer that is to be paid."""

    task: Task
    turn: Turn
    correct: bool


def wants_all(reward: Callable[..., Any]) -> bool:
    """Whether a reward is called once for all answers of a step."""
    try:
        names = list(inspect.signature(reward).parameters)
    except (TypeError, ValueError):  # a callable that does not say what it takes
        return False
    return names[:1] == [FOR_ALL]


async def pay(reward: Callable[..., Any], task: Task, roles: Roles, answer: Turn, correct: bool) -> Any:
    """Return the result of the user's function for this answer. Raises what it raises, and ValueError where it gives
    another number of values than there are answers."""
    if wants_all(reward):
        return await in_one_call(partial(_pay_all, reward), reward, Answer(task, answer, correct))
    value = reward(task, answer, correct)
    if not inspect.isawaitable(value):
        return value
    async with roles.busy():
        return await value


async def _pay_all(reward: Callable[..., Any], answers: Sequence[Answer]) -> list[Any]:
    """The values of these answers, in their order."""
    # The function gets them in the order of their addresses, whichever was written first.
    order = sorted(range(len(answers)), key=lambda place: answers[place].turn.address)
    tasks = [answers[place].task for place in order]
    turns = [answers[place].turn for place in order]
    corrects = [answers[place].correct for place in order]
    values = reward(tasks, turns, corrects)
    if inspect.isawaitable(values):
        values = await values
    values = list(values)
    if len(values) != len(answers):
        name = getattr(reward, "__name__", "the reward")
        raise ValueError(f"{name} gave {len(values)} values for {len(answers)} answers; expected one for each")

    value_by_place = dict(zip(order, values, strict=True))
    return [value_by_place[place] for place in range(len(answers))]
