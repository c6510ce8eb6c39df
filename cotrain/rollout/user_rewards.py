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
from typing import Any

from cotrain.core.types import Task
from cotrain.rollout.event_loop import in_one_call
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

FOR_ALL = "tasks"  # the first parameter of a function that wants all answers

Paid = tuple[Task, Turn, bool]  # the problem, the answer, whether it is right


def wants_all(reward: Callable[..., Any]) -> bool:
    """Whether a reward is called once for all answers of a step."""
    try:
        names = list(inspect.signature(reward).parameters)
    except (TypeError, ValueError):  # a callable that does not say what it takes
        return False
    return names[:1] == [FOR_ALL]


async def pay(reward: Callable[..., Any], task: Task, roles: Roles, answer: Turn, correct: bool) -> Any:
    """What the function says of this answer. Raises what it raises, and ValueError where it gives another number of
    values than there are answers."""
    if wants_all(reward):
        return await in_one_call(partial(_pay_all, reward), reward, (task, answer, correct))
    said = reward(task, answer, correct)
    if not inspect.isawaitable(said):
        return said
    async with roles.busy():
        return await said


async def _pay_all(reward: Callable[..., Any], paid: Sequence[Paid]) -> list[Any]:
    """The values of these answers, in their order."""
    order = sorted(range(len(paid)), key=lambda place: paid[place][1].address)
    tasks, answers, corrects = (list(column) for column in zip(*(paid[place] for place in order), strict=True))
    said = reward(tasks, answers, corrects)
    values = list(await said if inspect.isawaitable(said) else said)
    if len(values) != len(paid):
        name = getattr(reward, "__name__", "the reward")
        raise ValueError(f"{name} gave {len(values)} values for {len(paid)} answers; expected one for each")
    by_place = dict(zip(order, values, strict=True))
    return [by_place[place] for place in range(len(paid))]
