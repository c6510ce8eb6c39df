"""Who knows what a proposed text is: whether it is a problem, its answer, and which other problem it is the same as.

    word problems       the package's program reads them and works them out (``data/word_problems/reader.py``)
    any other source    a program of the user's does, ``--gate my_file.py:check``, or nobody

``check(problem: str) -> str | None`` gives the answer, or None for a text that is no problem. An async one is awaited
while the engine goes on; any other runs in a process that can be killed (``grading/check_worker.py``), for ``LIMIT_S``
of CPU time. The answer that it gives is compared with those of solvers as the answers of the source are.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Protocol

from cotrain.core.arguments import check_called_with
from cotrain.core.errors import ConfigError
from cotrain.core.types import ParseFailure, Task, TaskSource, has_split
from cotrain.core.user_code import function_target
from cotrain.data.columns import normal_question
from cotrain.data.word_problems.reader import operation_string, problem_signature, read_problem, task_of
from cotrain.data.word_problems.source import BUCKETS, WordProblems, text_bucket
from cotrain.grading.check_worker import verdict_of
from cotrain.grading.pool import AnswerGrader, GradingPool
from cotrain.rollout.event_loop import engine_paused
from cotrain.rollout.tools.search import AskFailed, ask_function

Check = Callable[[str], Awaitable[str | None] | str | None]
LIMIT_S = 5.0  # CPU time in which a check works a problem out; of an async one, seconds by the clock
HELD_OUT = ("validation", "test", "ood_length", "ood_template")
ENDLESS = 256  # problems for each seed that are compared with, of a held-out split without end


class Reader(Protocol):
    """Reads the problems that are proposed for one source."""

    @property
    def works_out(self) -> bool:
        """Whether there is a program that works problems out."""
        ...

    async def read(self, text: str, task: Task) -> Task | ParseFailure | None:
        """The problem that a text is, with its answer, or why it is none; None where nobody knows. ``task``: the one
        that it was proposed for. Raises AskFailed where the program fails."""
        ...

    def recall(self, text: str, answer: str, task: Task) -> Task | None:
        """A problem of the pool with the answer that it entered with; None where that is unknown."""
        ...

    def signature_of(self, text: str) -> str:
        """What makes two problems one."""
        ...

    def shape_of(self, text: str) -> str:
        """What problems have in common that differ in details."""
        ...

    def is_held_out(self, text: str) -> bool:
        """Whether a problem may be one of those that runs are tested on."""
        ...


def is_held_out(text: str) -> bool:
    """Whether a word problem may be one of those that runs are tested on."""
    return text_bucket(text) not in BUCKETS["train"]


@lru_cache(maxsize=4096)
def _word_names(text: str) -> tuple[str, str]:
    """Signature and shape; the text itself where it is no problem."""
    read = read_problem(text)
    return (text, text) if isinstance(read, ParseFailure) else (problem_signature(read), operation_string(read))


@dataclass(frozen=True, slots=True)
class WordReader:
    """Of word problems. Fails closed, with a reason that is counted."""

    works_out = True

    async def read(self, text: str, task: Task) -> Task | ParseFailure:
        read = read_problem(text)
        return read if isinstance(read, ParseFailure) else task_of(read, f"{task.id}/proposed")

    def recall(self, text: str, answer: str, task: Task) -> Task | None:
        read = read_problem(text)
        return None if isinstance(read, ParseFailure) else task_of(read, f"{task.id}/proposed")

    def signature_of(self, text: str) -> str:
        return _word_names(text)[0]

    def shape_of(self, text: str) -> str:
        return _word_names(text)[1]

    def is_held_out(self, text: str) -> bool:
        return is_held_out(text)


WORDS = WordReader()


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Of any other source. Problems are one where their texts are, up to case and space; of one shape where they differ
    in numbers alone; held out where a held-out problem of ``source``, or a paraphrase, has the text."""

    source: TaskSource = field(repr=False)
    check: Check | None = None  # works problems out
    seed: int = 0  # of the run, whose held-out problems are these

    @property
    def works_out(self) -> bool:
        return self.check is not None

    async def read(self, text: str, task: Task) -> Task | ParseFailure | None:
        if self.check is None:
            return None
        if not text:
            return ParseFailure(reason="no problem")
        if inspect.iscoroutinefunction(self.check):
            value, said = verdict_of(await ask_function(self.check, text, "gate", LIMIT_S))
        else:
            pool = _check_pool(function_target(self.check))
            async with engine_paused():
                grade = await asyncio.get_running_loop().run_in_executor(None, pool.grade_in_process, "", text)
            value = grade.value
            said = grade.reason
        if value is None:
            raise AskFailed(f"gate: {said}")
        return self.recall(text, said or "", task) or ParseFailure(reason="no problem")

    def recall(self, text: str, answer: str, task: Task) -> Task | None:
        if not answer:
            return None
        grader = task.grader if type(task.grader) is AnswerGrader else _answer_grader()
        return Task(id=f"{task.id}/proposed", prompt=text, gold=answer, solution=None, difficulty=0.0, grader=grader)

    def signature_of(self, text: str) -> str:
        return normal_question(text)

    def shape_of(self, text: str) -> str:
        return re.sub(r"\d+", "0", normal_question(text))

    def is_held_out(self, text: str) -> bool:
        return normal_question(text) in self._held_out

    @cached_property
    def _held_out(self) -> frozenset[str]:
        found = set[str]()
        for split in (split for split in HELD_OUT if has_split(self.source, split)):
            size = self.source.size(split)
            for place in range((self.seed + 1) * ENDLESS if size is None else size):
                task = self.source.get(split, place)
                found |= {normal_question(text) for text in (task.prompt, *task.paraphrases)}
        return frozenset(found)


@cache
def _check_pool(target: str) -> GradingPool:
    """The processes of one check; they start when first needed and end with this one."""
    return GradingPool(workers=2, deadline_s=LIMIT_S, judging=("cotrain.grading.check_worker:load_check", target))


@cache
def _answer_grader() -> AnswerGrader:
    """For sources whose own grader knows their own problems alone."""
    return AnswerGrader()


def reader_of(source: TaskSource, check: Check | None, method: str, seed: int) -> Reader:
    """Who reads the problems that are proposed for a source. Raises ConfigError for a check that cannot be used."""
    if isinstance(source, WordProblems):
        if check is not None:
            raise ConfigError(
                f"gate of {method}: word problems are read by the package's own program; leave it out",
                code="E_GATE_NOT_NEEDED",
            )
        return WORDS
    if check is not None and not inspect.iscoroutinefunction(check) and ":" not in function_target(check):
        name = getattr(check, "__qualname__", check)
        raise ConfigError(
            f"gate of {method}: {name!r} stands in no file; expected path/to/file.py:function", code="E_GATE_PLACE"
        )
    if check is not None:
        check_called_with(f"gate of {method}", check, "problem")
    return TextReader(source=source, check=check, seed=seed)
