"""Programs that read proposed problems: is a text a problem, what is its answer, and is it the same as another one?

    word problems       are read and worked out by the package's own program (``data/word_problems/reader.py``)
    any other source    by a program of the user's, ``--gate my_file.py:check``, or by nobody

``check(problem: str) -> str | None`` returns the answer, or None for a text that is no problem. An async check is
awaited while the engine goes on. Any other runs in a process that can be killed (``grading/check_worker.py``), for
``LIMIT_S`` of CPU time. Its answer then takes the place of a gold answer, with which those of solvers are compared.
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
from cotrain.data.question_text import normal_question
from cotrain.data.word_problems.reader import operation_string, problem_signature, read_problem, task_of
from cotrain.data.word_problems.source import BUCKETS, WordProblems, text_bucket
from cotrain.grading.check_worker import verdict_of
from cotrain.grading.pool import AnswerGrader, GradingPool
from cotrain.rollout.event_loop import engine_paused
from cotrain.rollout.tools.search import AskFailed, ask_function

Check = Callable[[str], Awaitable[str | None] | str | None]
LIMIT_S = 5.0  # seconds for a check to work a problem out: of CPU time, for an async check by the clock
HELD_OUT = ("validation", "test", "ood_length", "ood_template")  # splits
ENDLESS = 256  # problems of each seed's block that are compared with, in a held-out split without end


class Reader(Protocol):
    """Reads the problems that are proposed for one source."""

    @property
    def works_out(self) -> bool:
        """Whether there is a program that finds the answers of problems."""
        ...

    async def read(self, text: str, task: Task) -> Task | ParseFailure | None:
        """The problem in a text, with its answer; a ParseFailure for a text that is no problem; None where there is no
        program to say. ``task``: the one that it was proposed for. Raises AskFailed where the program fails."""
        ...

    def recall(self, text: str, answer: str, task: Task) -> Task | None:
        """A problem of the pool as a task, with the answer that was stored with it; None where none was."""
        ...

    def signature_of(self, text: str) -> str:
        """Equal for two texts that are the same problem."""
        ...

    def shape_of(self, text: str) -> str:
        """Equal for two problems that differ in details only, such as their numbers."""
        ...

    def is_held_out(self, text: str) -> bool:
        """Whether a problem may be one of those that runs are tested on."""
        ...


def is_held_out(text: str) -> bool:
    """Whether a word problem may be one of those that runs are tested on: splits are buckets of a hash of the text."""
    return text_bucket(text) not in BUCKETS["train"]


@lru_cache(maxsize=4096)
def _signature_and_shape(text: str) -> tuple[str, str]:
    """Of a word problem; twice the text itself where it is none."""
    problem = read_problem(text)
    if isinstance(problem, ParseFailure):
        return text, text
    return problem_signature(problem), operation_string(problem)


@dataclass(frozen=True, slots=True)
class WordReader:
    """Reads word problems. Any text outside of their grammar is no problem, with a reason that is counted."""

    works_out = True

    async def read(self, text: str, task: Task) -> Task | ParseFailure:
        problem = read_problem(text)
        if isinstance(problem, ParseFailure):
            return problem
        return task_of(problem, f"{task.id}/proposed")

    def recall(self, text: str, answer: str, task: Task) -> Task | None:
        problem = read_problem(text)  # works the answer out again
        if isinstance(problem, ParseFailure):
            return None
        return task_of(problem, f"{task.id}/proposed")

    def signature_of(self, text: str) -> str:
        signature, _ = _signature_and_shape(text)
        return signature

    def shape_of(self, text: str) -> str:
        _, shape = _signature_and_shape(text)
        return shape

    def is_held_out(self, text: str) -> bool:
        return is_held_out(text)


WORDS = WordReader()


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Reads the problems of any other source.

    Two texts are the same problem where they are equal up to case and space, and have one shape where they differ in
    numbers only. A text is held out where a held-out problem of ``source``, or a paraphrase of one, has it.
    """

    source: TaskSource = field(repr=False)
    check: Check | None = None  # finds the answer of a problem
    seed: int = 0  # the run's, which chooses its held-out problems

    @property
    def works_out(self) -> bool:
        return self.check is not None

    async def read(self, text: str, task: Task) -> Task | ParseFailure | None:
        if self.check is None:
            return None
        if not text:
            return ParseFailure(reason="no problem")
        # ``said`` is the answer, "" for no problem; where ``value`` is None it is why the check failed.
        if inspect.iscoroutinefunction(self.check):
            value, said = verdict_of(await ask_function(self.check, text, "gate", LIMIT_S))
        else:
            pool = _check_pool(function_target(self.check))
            loop = asyncio.get_running_loop()
            async with engine_paused():
                grade = await loop.run_in_executor(None, pool.grade_in_process, "", text)
            value = grade.value
            said = grade.reason
        if value is None:
            raise AskFailed(f"gate: {said}")
        problem = self.recall(text, said or "", task)
        return problem or ParseFailure(reason="no problem")

    def recall(self, text: str, answer: str, task: Task) -> Task | None:
        if not answer:
            return None
        # A task's own grader may know only the problems of its source; one that compares answers fits any problem.
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
        """All held-out problems and their paraphrases. Of a split without end, those of all seeds up to this one."""
        questions: set[str] = set()
        for split in HELD_OUT:
            if not has_split(self.source, split):
                continue
            size = self.source.size(split)
            if size is None:
                size = (self.seed + 1) * ENDLESS
            for index in range(size):
                task = self.source.get(split, index)
                questions |= {normal_question(text) for text in (task.prompt, *task.paraphrases)}
        return frozenset(questions)


@cache
def _check_pool(target: str) -> GradingPool:
    """The processes in which a check runs. They start when first needed, and end with this process."""
    return GradingPool(workers=2, deadline_s=LIMIT_S, judging=("cotrain.grading.check_worker:load_check", target))


@cache
def _answer_grader() -> AnswerGrader:
    """The grader of proposed problems where a source's own grader knows only its own problems."""
    return AnswerGrader()


def require_importable(check: Check, method: str) -> None:
    """Raise ConfigError for a function that its own process, in which checks that are not async run, cannot import."""
    if ":" in function_target(check):
        return
    name = getattr(check, "__qualname__", check)
    raise ConfigError(
        f"gate of {method}: {name!r} stands in no file; expected path/to/file.py:function", code="E_GATE_PLACE"
    )


def reader_of(source: TaskSource, check: Check | None, method: str, seed: int) -> Reader:
    """The reader of problems that are proposed for a source. Raises ConfigError for a check that cannot be used."""
    if isinstance(source, WordProblems):
        if check is not None:
            raise ConfigError(
                f"gate of {method}: word problems are read by the package's own program; leave it out",
                code="E_GATE_NOT_NEEDED",
            )
        return WORDS
    if check is not None and not inspect.iscoroutinefunction(check):
        require_importable(check, method)
    if check is not None:
        check_called_with(f"gate of {method}", check, "problem")
    return TextReader(source=source, check=check, seed=seed)
