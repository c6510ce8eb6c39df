"""Is an answer right? Plain numbers and equal texts are compared at once (``compare_texts.py``), everything else by
math-verify in a disposable process.

A grade is three-valued. ``True`` and ``False`` are facts about the answer. ``None`` is a fact about the grader, with
its reason: "timeout", "too large", "grader died", "out of memory", "grader error", "gold not readable". The caller
masks such a sample; a grader that failed never turns into a wrong answer.

Most answers that would keep math-verify busy for ever cost milliseconds: they

- are known by their text (``sizes.py``),
- are certainly different from the gold answer (``bounds.py``), or
- are refused when a number in them begins to be large (``guards.py``, ``latex.py``).

Any other one costs a deadline. Then the fork that compares is killed, and another takes its place
(``grade_worker.py``), so that the next answer is graded as if nothing had happened. A worker that does not reply at all
is killed with its whole group and replaced. (In a pool whose tasks cannot be killed, a few such answers occupy all
workers, and from then on every right answer is graded wrong.)

Left out: several correct gold answers, tolerances.
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

LONGEST_ANSWER = 500  # characters, beside ten times those of the gold answer: a longer one is too large for math-verify
MEMORY_BYTES = 3 << 30  # address space of a worker
DEADLINE_S = 2.0  # CPU time of a grade
FIRST_TRY_DIVISOR = 16  # the first try of a comparison of mathematics has this part of the deadline
MOST_RETRIES = 3.0
RETRIES_PER_GRADE = 2.5e-4
WORKERS = 4  # processes of a task source: so many hostile answers cost one deadline together


class GradingPool:
    """Up to ``workers`` grading processes, started when first needed. Safe to use from several threads.

    A process that dies is replaced, and its answer tried once more; "grader died" is the reason of an answer on which
    two processes died.

    Mathematics is tried for a sixteenth of the deadline first, which is enough for all but three right answers in a
    thousand. What takes longer is retried with the whole deadline, from a budget of retries: ``MOST_RETRIES`` at the
    start and at most; a retry that fails uses one up, and each grade that is given adds ``RETRIES_PER_GRADE``. So a few
    slow answers have all the time they need, and many hostile ones cost little each.

    Use it as a context manager or call ``close``; processes that are forgotten end with this one.
    """

    def __init__(
        self,
        workers: int = 1,
        deadline_s: float = DEADLINE_S,
        judging: Sequence[str] = (MATHEMATICS,),
        memory: int = MEMORY_BYTES,
        sandbox: Kind | None = None,
    ) -> None:
        """
        Args:
            deadline_s: CPU time of a grade.
            judging: what the processes load to compare answers with, MODULE:FUNCTION and its argument, if it has one.
            memory: bytes of address space of each process.
            sandbox: the kind that answers run in, where they are programs (``isolation.py``).
        """
        if workers < 1 or deadline_s <= 0:
            raise ConfigError(
                f"a grading pool needs workers >= 1 and deadline_s > 0, not {workers} and {deadline_s}",
                code="E_GRADING_POOL_RANGE",
            )
        self.deadline_s = deadline_s
        self._worker_arguments = (memory, tuple(judging), sandbox)
        self._first_try_s = deadline_s / FIRST_TRY_DIVISOR if judging[0] == MATHEMATICS else None
        self._retries_left = MOST_RETRIES
        self._retries_lock = threading.Lock()
        self._closed = False
        self._idle: queue.LifoQueue[Worker | None] = queue.LifoQueue()  # None: a worker that is not started yet
        for _ in range(workers):
            self._idle.put(None)
        self._n_workers = workers

    def grade(self, gold: str, answer_text: str) -> Grade:
        """Compare an answer (the answer alone, not the text around it) with the gold answer.

        Once a worker is free and loaded, this takes ``deadline_s`` of CPU time at most, beside the first try, and
        ``PATIENCE`` times as long by the clock. Raises UserError when math-verify cannot be loaded, RuntimeError after
        ``close``.
        """
        compared = compare_texts(gold, answer_text)
        if isinstance(compared, Grade):
            return compared
        gold, answer = compared
        if len(answer) > LONGEST_ANSWER + 10 * len(gold) or too_large(answer):
            return Grade(value=None, reason="too large")
        return self.grade_in_process(gold, answer)

    def grade_in_process(self, gold: str, answer: str) -> Grade:
        """The grade of a worker, also where the texts alone would tell. Limits and errors are those of ``grade``."""
        if self._first_try_s is None:
            return self._grade_once(gold, answer, self.deadline_s)
        grade = self._grade_once(gold, answer, self._first_try_s)
        if grade.reason == "timeout" and self._change_retries(-1.0):
            grade = self._grade_once(gold, answer, self.deadline_s)
            if grade.value is not None:
                self._change_retries(1.0)
        if grade.value is not None:
            self._change_retries(RETRIES_PER_GRADE)
        return grade

    def _change_retries(self, change: float) -> bool:
        """Add to the budget of retries. False, and no change, where it would fall below 0."""
        with self._retries_lock:
            if self._retries_left + change < 0:
                return False
            self._retries_left = min(self._retries_left + change, MOST_RETRIES)
            return True

    def _grade_once(self, gold: str, answer: str, deadline_s: float) -> Grade:
        if self._closed:
            raise RuntimeError("this grading pool is closed")
        worker = self._idle.get()
        try:
            worker = worker or Worker(*self._worker_arguments)
            grade = worker.request_grade(gold, answer, deadline_s)
            if grade.reason == DIED:
                worker.kill()
                worker = Worker(*self._worker_arguments)
                grade = worker.request_grade(gold, answer, deadline_s)
        except BaseException:  # such as KeyboardInterrupt: a late reply would be taken for that of the next request
            if worker is not None:
                worker.kill()
            self._idle.put(None)
            raise
        if worker.is_killed:
            worker = None if self._closed else Worker(*self._worker_arguments)  # at once: it loads while others work
        self._idle.put(worker)
        return grade

    async def agrade(self, gold: str, answer_text: str) -> Grade:
        """``grade``, in a thread of the running loop's executor where it needs a process."""
        quick = quick_grade(gold, answer_text)
        if quick is not None:
            return quick
        return await asyncio.get_running_loop().run_in_executor(None, self.grade, gold, answer_text)

    def close(self) -> None:
        """Wait for the grades that are under way, and end all processes. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for _ in range(self._n_workers):
            worker = self._idle.get()
            if worker is not None:
                worker.kill()

    def __enter__(self) -> GradingPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AnswerGrader:
    """The grader of tasks whose answer is compared with the gold one by a pool."""

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
        """``grade`` for a running event loop, which it does not block."""
        assert task.gold is not None
        answer = final_answer(text)
        if answer is None:
            return Grade(value=False)
        return await self._pool.agrade(task.gold, answer)

    async def _in_thread(self, task: Task, text: str) -> Grade:
        """``grade`` in another thread, for subclasses whose grades always need a process."""
        return await asyncio.get_running_loop().run_in_executor(None, self.grade, task, text)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        """None: nothing is known of steps."""
        return None

    def close(self) -> None:
        """End the grading processes."""
        self._pool.close()
