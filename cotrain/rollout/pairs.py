"""Pairs of a wanted and an unwanted reply to one prompt as turns, so that they can be learned from and judged.

A program says both in the tokens of a policy: ``Role(policy="teacher", …)`` of ``program(say_reply, tokens_of=…)``.
Tasks without preferences, such as the word problems, are made into pairs: the worked solution is wanted, and the same
solution with another number written over its answer is unwanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, PROBLEM, SCORE
from cotrain.core.seeding import rng_of
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Task, TaskSource, Trace, has_split
from cotrain.data.preferences import ChatTask, messages_of
from cotrain.data.word_problems.corrupt import another_answer
from cotrain.metrics.clusters import Share, defined_figures, make_figure
from cotrain.metrics.heldout import Measure, traces_by_task, with_names
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle

TOO_LONG = "pair too long"
SPLITS = ("train", "validation", "test")  # a problem in any of them is said as a pair


def replies_of(task: Task) -> tuple[str, str]:
    """The wanted and the unwanted reply."""
    wanted = task.solution or ""
    if isinstance(task, ChatTask):
        return wanted, task.rejected or ""
    return wanted, another_answer(wanted, task.gold or "", rng_of("unwanted", task.id))


async def reply_to(task: Task, speaker: RoleHandle, solution: str | None = None, *, group: str | None = None) -> Turn:
    """Return a role's reply to a conversation as it stands or, where the task has none, to the role's own prompt.
    ``solution``: the text that a program is to reply. ``group``: as of a call."""
    chat = speaker.begin(problem=task.prompt, solution=solution, group=group)
    chat.messages = messages_of(task) or chat.messages
    return await chat.say()


async def say_replies(task: Task, speaker: RoleHandle, *, most: int) -> list[Turn]:
    """Both replies, the wanted one first, each with its truth as metadata. If one of the two has more than ``most``
    tokens, its prompt included, both fail for the reason ``TOO_LONG``, without a truth."""
    turns = [await reply_to(task, speaker, reply) for reply in replies_of(task)]
    is_too_long = any(len(turn.prompt_ids) + turn.tokens > most for turn in turns)
    for turn, is_wanted in zip(turns, (True, False), strict=True):
        turn.add_finding(PROBLEM, task.prompt)
        if is_too_long:
            turn.fail(TOO_LONG)
        else:
            turn.add_metadata(CORRECT, is_wanted)
    return turns


def say_reply(fields: Mapping[str, Any], rng: Random) -> str:
    """The program that says a reply."""
    return str(fields["solution"])


def measure_pair_order(comparer: str, name: str) -> Measure:
    """``{name}/pair_accuracy``: of a wanted and an unwanted reply to one prompt, how often the role ``judge`` gives the
    wanted one the higher score; equal ones count half."""

    def score_of(trace: Trace) -> float:
        if trace.score is not None:
            return float(trace.score)
        return float(SCORE.of(trace) or 0.0)

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        counts = {}
        for task, traces in traces_by_task(episodes, comparer).items():
            wanted = [score_of(trace) for trace in traces if CORRECT.of(trace) is True]
            unwanted = [score_of(trace) for trace in traces if CORRECT.of(trace) is False]
            ordered = 0.0
            for wanted_score in wanted:
                for unwanted_score in unwanted:
                    if wanted_score > unwanted_score:
                        ordered += 1.0
                    elif wanted_score == unwanted_score:
                        ordered += 0.5
            counts[task] = {"ordered": ordered, "pairs": float(len(wanted) * len(unwanted))}

        n_pairs = sum(count["pairs"] for count in counts.values())
        return defined_figures({f"{name}/pair_accuracy": make_figure(counts, Share("ordered", "pairs"), n_pairs)})

    return with_names(measure, roles=[comparer], figures=[f"{name}/pair_accuracy"])


def check_demonstrations(method: str, tasks: TaskSource, splits: Sequence[str] = ("train",)) -> bool:
    """Whether the tasks are conversations. Raises ConfigError where one in these splits shows no solution or reply to
    imitate."""
    shown = list(_tasks_in(tasks, splits))
    without = [task for task in shown if task.solution is None]
    if not without:
        return any(isinstance(task, ChatTask) for task in shown)
    if len(without) == len(shown):
        raise ConfigError(
            f"{method}: the tasks {tasks.name!r} have no worked solutions; expected tasks that have, as words or a "
            "file with a column 'solution', or conversations, as --tasks chats --data FILE",
            code="E_TASKS_WITHOUT_SOLUTIONS",
        )
    kind = "training tasks" if tuple(splits) == ("train",) else "tasks"
    raise ConfigError(
        f"{method}: {len(without)} of the {len(shown)} {kind} of {tasks.name!r} have no worked solution; leave out "
        "their rows",
        code="E_TASKS_WITHOUT_SOLUTIONS",
    )


def check_pairs(method: str, tasks: TaskSource) -> None:
    """Raise ConfigError where one of the problems, for training or held out, makes no pair."""
    asked = list(_tasks_in(tasks, SPLITS))
    without_pair = [task for task in asked if not _makes_pair(task)]
    if not without_pair:
        return
    if not any(map(_has_replies, asked)):
        raise ConfigError(
            f"{method}: the tasks {tasks.name!r} are no preferences; expected --data FILE with prompt, chosen "
            "and rejected, or tasks with worked solutions",
            code="E_TASKS_NOT_PREFERENCES",
        )
    first = without_pair[0]
    needs = "a worked solution that says the answer"
    if isinstance(first, ChatTask):
        needs = "a wanted and an unwanted reply, which differ"
    raise ConfigError(
        f"{method}: {len(without_pair)} of the {len(asked)} tasks of {tasks.name!r} make no pair, the first: "
        f"{first.prompt[:60]!r}; give each {needs}, or leave out their rows",
        code="E_TASKS_WITHOUT_PAIR",
    )


def _has_replies(task: Task) -> bool:
    """Whether a task has a worked solution, or a conversation both replies."""
    if isinstance(task, ChatTask) and task.rejected is None:
        return False
    return task.solution is not None


def _makes_pair(task: Task) -> bool:
    """Whether a task has a wanted reply, and an unwanted one that differs from it."""
    if not _has_replies(task):
        return False
    if isinstance(task, ChatTask):
        return task.rejected != task.solution
    if str(task.solution).rstrip().endswith(f"<answer>{task.gold}</answer>"):
        return True  # as most do, of which the slow look below would say the same
    wanted, unwanted = replies_of(task)
    return wanted != unwanted


def _tasks_in(tasks: TaskSource, splits: Sequence[str]) -> Iterator[Task]:
    """The tasks of these splits. Of a split without end it is the first one, as all others are like it."""
    for split in splits:
        size = tasks.size(split) if has_split(tasks, split) else 0
        for index in range(1 if size is None else size):
            yield tasks.get(split, index)
