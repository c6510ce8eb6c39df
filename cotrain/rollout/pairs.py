"""Pairs of a wanted and an unwanted reply to one prompt as turns, so that they can be learned from and judged.

A program says both in the tokens of a policy: ``Role(policy="teacher", …)`` of ``program(say_reply, tokens_of=…)``. Of
tasks without preferences, as the word problems are, a worked solution is wanted, and unwanted is the same with another
number written over its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, PROBLEM, SCORE
from cotrain.core.seeding import rng_of
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Task, TaskSource, Trace
from cotrain.data.preferences import ChatTask, messages_of
from cotrain.data.word_problems.corrupt import another_answer
from cotrain.metrics.clusters import Share, defined_figures, make_figure
from cotrain.metrics.heldout import Measure, traces_by_task
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle

TOO_LONG = "pair too long"


def replies_of(task: Task) -> tuple[str, str]:
    """The wanted and the unwanted reply."""
    wanted = task.solution or ""
    if isinstance(task, ChatTask):
        return wanted, task.rejected or ""
    return wanted, another_answer(wanted, task.gold or "", rng_of("unwanted", task.id))


async def reply_to(task: Task, speaker: RoleHandle, solution: str | None = None, *, group: str | None = None) -> Turn:
    """What a role says after a conversation as it stands, or, where the task is none, after the role's own prompt.
    ``solution``: what a program is to say. ``group``: as of a call."""
    chat = speaker.begin(problem=task.prompt, solution=solution, group=group)
    chat.messages = messages_of(task) or chat.messages
    return await chat.say()


async def say_replies(task: Task, speaker: RoleHandle, *, most: int) -> list[Turn]:
    """Both replies, the wanted one first, each with its truth noted. Those of a pair with one of more than ``most``
    tokens, its prompt included, fail for the reason ``TOO_LONG`` and are noted nothing."""
    turns = [await reply_to(task, speaker, reply) for reply in replies_of(task)]
    too_long = any(len(turn.prompt_ids) + turn.tokens > most for turn in turns)
    for turn, wanted in zip(turns, (True, False), strict=True):
        turn.add_finding(PROBLEM, task.prompt)
        if too_long:
            turn.fail(TOO_LONG)
        else:
            turn.add_metadata(CORRECT, wanted)
    return turns


def say_reply(fields: Mapping[str, Any], rng: Random) -> str:
    """The program that says a reply."""
    return str(fields["solution"])


def measure_pair_order(judge: str, name: str) -> Measure:
    """``{name}/pair_accuracy``: of a wanted and an unwanted reply to one prompt, how often the role ``judge`` gives the
    wanted one the higher score; equal ones count half."""

    def score_of(trace: Trace) -> float:
        return float(trace.score if trace.score is not None else SCORE.of(trace) or 0.0)

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        counts = {}
        for task, traces in traces_by_task(episodes, judge).items():
            scores = {wanted: [score_of(t) for t in traces if CORRECT.of(t) is wanted] for wanted in (True, False)}
            pairs = [(a > b) + 0.5 * (a == b) for a in scores[True] for b in scores[False]]
            counts[task] = {"ordered": float(sum(pairs)), "pairs": float(len(pairs))}
        total = sum(row["pairs"] for row in counts.values())
        return defined_figures({f"{name}/pair_accuracy": make_figure(counts, Share("ordered", "pairs"), total)})

    return measure


def check_demonstrations(method: str, tasks: TaskSource) -> bool:
    """Whether the tasks are conversations. Raises ConfigError for those that show no solution or reply to imitate."""
    first = tasks.get("train", 0)
    if first.solution is None:
        raise ConfigError(
            f"{method}: the tasks {tasks.name!r} have no worked solutions; expected tasks that have, as words, or "
            "conversations, as --tasks chats --data FILE",
            code="E_TASKS_WITHOUT_SOLUTIONS",
        )
    return isinstance(first, ChatTask)


def check_pairs(method: str, tasks: TaskSource) -> None:
    """Raise ConfigError for problems of which no pair can be made."""
    first = tasks.get("train", 0) if tasks.size("train") != 0 else None
    if first and (first.solution is None or (isinstance(first, ChatTask) and first.rejected is None)):
        raise ConfigError(
            f"{method}: the tasks {tasks.name!r} are no preferences; expected --data FILE with prompt, chosen "
            "and rejected, or tasks with worked solutions",
            code="E_TASKS_NOT_PREFERENCES",
        )
