"""Is an answer right? Plain numbers and equal texts at once (``compare_texts.py``), everything else by math-verify in a
disposable process.

A grade is three-valued. ``True`` and ``False`` are facts about the answer. ``None`` is a fact about the grader, with
its reason: "timeout", "too large", "grader died", "out of memory", "grader error", "gold not readable". The caller
masks such a sample; a grader that failed never turns into a wrong answer.

Most answers that would keep math-verify busy for ever are seen by their text (``sizes.py``), are certainly different
from the gold answer (``bounds.py``), or are refused when they begin to be large (``guards.py``, ``latex.py``), in
milliseconds. Of the rest each costs a deadline: the fork that does the work is killed and another takes its place
(``grade_worker.py``), so that the next answer is graded as if nothing had happened; a process that does not even say so
is killed with its whole group and replaced. (Pools whose tasks cannot be killed fail here: a few such answers occupy
all workers, and from then on every right answer is graded wrong.)

Left out: several correct gold answers, tolerances, units that need converting.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence

from cotrain.core.errors import ConfigError
from cotrain.core.types import Grade, StepVerdicts, Task
from cotrain.formats.answers import final_answer
from cotrain.grading.compare_texts import compare_texts, quick_grade
from cotrain.grading.grade_process import DIED, MATHEMATICS, Worker
from cotrain.grading.sandbox import Kind
from cotrain.grading.sizes import too_large

LONG = 500  # characters, and ten times the gold answer's: a longer one is too large for math-verify
MEMORY_BYTES = 3 << 30  # address space of a worker
DEADLINE_S = 2.0  # CPU time of a grade
FIRST = 16  # part of the deadline for the first try of a comparison of mathematics
TRIES = 3  # full deadlines that fail before there must be savings for another
SAVED = 2.5e-4  # deadlines that are saved with every grade that is given
WORKERS = 4  # processes of a task source: so many hostile answers cost one deadline together


class GradingPool:
    """Up to ``workers`` grading processes, started when first needed. Safe to use from several threads.

    ``judging``: what the processes load to compare answers with, ``module:function`` and its argument, where that is
    not math-verify. ``memory``: bytes of address space of each. ``sandbox``: where answers are programs, what they run
    in (``isolation.py``).

    A process that dies is replaced, and its answer tried once more; "grader died" is the reason of one that ended two
    of them.

    Mathematics is tried for a ``FIRST`` part of the deadline, which is enough for all but three right answers in a
    thousand; what takes longer is tried again for all of it, as long as there are ``TRIES`` left: one is lost where
    that fails too, and ``SAVED`` of one comes back with each grade that is given. So a few slow answers have all the
    time they need, and many of them cost little each. Use it as a context manager or call ``close``; forgotten
    processes end with this one.
    """

    def __init__(
        self,
        workers: int = 1,
        deadline_s: float = DEADLINE_S,
        judging: Sequence[str] = (MATHEMATICS,),
        memory: int = MEMORY_BYTES,
        sandbox: Kind | None = None,
    ) -> None:
        if workers < 1 or deadline_s <= 0:
            raise ConfigError(
                f"a grading pool needs workers >= 1 and deadline_s > 0, not {workers} and {deadline_s}",
                code="E_GRADING_POOL_RANGE",
            )
        self.deadline_s = deadline_s
        self._start = (memory, tuple(judging), sandbox)  # arguments of a Worker
        self._first_s = deadline_s / FIRST if judging[0] == MATHEMATICS else None
        self._tries = float(TRIES)  # full deadlines that may still be lost
        self._counting = threading.Lock()
        self._closed = False
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()  # None: a place whose process is not started
        for _ in range(workers):
            self._idle.put(None)
        self._places = workers

    def grade(self, gold: str, answer_text: str) -> Grade:
        """Compare an answer (the answer alone, not the text around it) with the gold answer.

        Takes ``deadline_s`` of CPU time at most after the first try, and ``PATIENCE`` times as long by the clock, once
        a worker is free and loaded. Raises UserError when math-verify cannot be loaded, RuntimeError after ``close``.
        """
        compared = compare_texts(gold, answer_text)
        if isinstance(compared, Grade):
            return compared
        gold, answer = compared
        if len(answer) > LONG + 10 * len(gold) or too_large(answer):
            return Grade(value=None, reason="too large")
        return self.grade_in_process(gold, answer)

    def grade_in_process(self, gold: str, answer: str) -> Grade:
        """The grade of a process, without a shortcut; limits and errors as ``grade``."""
        if self._first_s is None:
            return self._grade_once(gold, answer, self.deadline_s)
        grade = self._grade_once(gold, answer, self._first_s)
        if grade.reason == "timeout" and self._change_tries(-1.0):
            grade = self._grade_once(gold, answer, self.deadline_s)
            if grade.value is not None:
                self._change_tries(1.0)
        if grade.value is not None:
            self._change_tries(SAVED)
        return grade

    def _change_tries(self, tries: float) -> bool:
        """Change the number of tries; False where there are too few."""
        with self._counting:
            if self._tries + tries < 0:
                return False
            self._tries = min(self._tries + tries, float(TRIES))
            return True

    def _grade_once(self, gold: str, answer: str, deadline_s: float) -> Grade:
        if self._closed:
            raise RuntimeError("this grading pool is closed")
        worker = self._idle.get()
        try:
            worker = worker or Worker(*self._start)
            grade = worker.request_grade(gold, answer, deadline_s)
            if grade.reason == DIED:
                worker.kill()
                worker = Worker(*self._start)
                grade = worker.request_grade(gold, answer, deadline_s)
        except BaseException:
            if worker is not None:  # its answer may still be under way
                worker.kill()
            self._idle.put(None)
            raise
        if worker.is_killed:
            worker = None if self._closed else Worker(*self._start)  # loads while others work
        self._idle.put(worker)
        return grade

    async def agrade(self, gold: str, answer_text: str) -> Grade:
        """``grade``, in a thread of the running loop's executor where it needs a process."""
        quick = quick_grade(gold, answer_text)
        if quick is not None:
            return quick
        return await asyncio.get_running_loop().run_in_executor(None, self.grade, gold, answer_text)

    def close(self) -> None:
        """End all processes, waiting for grades under way. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for _ in range(self._places):
            worker = self._idle.get()
            if worker is not None:
                worker.kill()

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AnswerGrader:
    """The grader of tasks whose answer is compared by a pool; knows nothing of steps."""

    def __init__(self, workers: int = WORKERS, deadline_s: float = DEADLINE_S) -> None:
        self._pool = GradingPool(workers=workers, deadline_s=deadline_s)

    def grade(self, task: Task, text: str) -> Grade:
        """Compare the answer that a text ends on (``formats/answers.py: final_answer``) with the gold one; no answer is
        False."""
        assert task.gold is not None
        answer = final_answer(text)
        if answer is None:
            return Grade(value=False)
        return self._pool.grade(task.gold, answer)

    async def agrade(self, task: Task, text: str) -> Grade:
        """``grade``, while others go on."""
        assert task.gold is not None
        answer = final_answer(text)
        if answer is None:
            return Grade(value=False)
        return await self._pool.agrade(task.gold, answer)

    async def _in_thread(self, task: Task, text: str) -> Grade:
        return await asyncio.get_running_loop().run_in_executor(None, self.grade, task, text)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        """None: there is no oracle."""
        return None

    def close(self) -> None:
        """End the grading processes."""
        self._pool.close()
