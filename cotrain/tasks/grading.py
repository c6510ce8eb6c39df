r"""Is an answer right? Plain numbers and equal texts at once, everything else by math-verify in a disposable process.

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
import re
import threading
from collections.abc import Sequence
from decimal import Decimal

from cotrain.core.errors import ConfigError
from cotrain.core.types import Grade, StepVerdicts, Task
from cotrain.tasks.cells import Kind
from cotrain.tasks.grade_process import DIED, MATHEMATICS, Worker
from cotrain.tasks.sizes import too_large
from cotrain.text.parsers import final_answer, last_boxed

MAX_ANSWER = 10_000  # characters; a longer text is not an answer, unless it equals the gold answer
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
    not math-verify. ``memory``: bytes of address space of each. ``cell``: where answers are programs, what they run in
    (``isolation.py``).

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
        cell: Kind | None = None,
    ) -> None:
        if workers < 1 or deadline_s <= 0:
            raise ConfigError(f"a grading pool needs workers >= 1 and deadline_s > 0, not {workers} and {deadline_s}")
        self.deadline_s = deadline_s
        self._start = (memory, tuple(judging), cell)
        self._first_s = deadline_s / FIRST if judging[0] == MATHEMATICS else None
        self._tries, self._counting = float(TRIES), threading.Lock()
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
        if (quick := quick_grade(gold, answer_text)) is not None:
            return quick
        gold, answer = _core(gold), _core(answer_text)
        if len(answer) > LONG + 10 * len(gold) or too_large(answer):
            return Grade(value=None, reason="too large")
        return self.ask(gold, answer)

    def ask(self, gold: str, answer: str) -> Grade:
        """The grade of a process, without a shortcut; limits and errors as ``grade``."""
        if self._first_s is None:
            return self._ask(gold, answer, self.deadline_s)
        grade = self._ask(gold, answer, self._first_s)
        if grade.reason == "timeout" and self._count(-1.0):
            grade = self._ask(gold, answer, self.deadline_s)
            if grade.value is not None:
                self._count(1.0)
        if grade.value is not None:
            self._count(SAVED)
        return grade

    def _count(self, tries: float) -> bool:
        """Change the number of tries; False where there are too few."""
        with self._counting:
            if self._tries + tries < 0:
                return False
            self._tries = min(self._tries + tries, float(TRIES))
            return True

    def _ask(self, gold: str, answer: str, deadline_s: float) -> Grade:
        if self._closed:
            raise RuntimeError("this grading pool is closed")
        worker = self._idle.get()
        try:
            worker = worker or Worker(*self._start)
            grade = worker.ask(gold, answer, deadline_s)
            if grade.reason == DIED:
                worker.kill()
                worker = Worker(*self._start)
                grade = worker.ask(gold, answer, deadline_s)
        except BaseException:
            if worker is not None:  # its answer may still be under way
                worker.kill()
            self._idle.put(None)
            raise
        if worker.killed:
            worker = None if self._closed else Worker(*self._start)  # loads while others work
        self._idle.put(worker)
        return grade

    async def agrade(self, gold: str, answer_text: str) -> Grade:
        """``grade``, in a thread of the running loop's executor where it needs a process."""
        if (quick := quick_grade(gold, answer_text)) is not None:
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
        """Compare the answer that a text ends on (``parsers.final_answer``) with the gold one; no answer is False."""
        assert task.answer is not None
        answer = final_answer(text)
        return Grade(value=False) if answer is None else self._pool.grade(task.answer, answer)

    async def agrade(self, task: Task, text: str) -> Grade:
        """``grade``, while others go on."""
        assert task.answer is not None
        answer = final_answer(text)
        return Grade(value=False) if answer is None else await self._pool.agrade(task.answer, answer)

    async def _in_thread(self, task: Task, text: str) -> Grade:
        return await asyncio.get_running_loop().run_in_executor(None, self.grade, task, text)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        """None: there is no oracle."""
        return None

    def close(self) -> None:
        """End the grading processes."""
        self._pool.close()


async def grade_outside(task: Task, text: str) -> Grade:
    """The ``grader`` of an executor: many answers at once where the task's grader has processes for it, else
    ``task.grade``.

    The executor keeps its engine waiting meanwhile, so that how long a grade takes decides no batch.
    """
    return await task.grader.agrade(task, text) if isinstance(task.grader, AnswerGrader) else task.grade(text)


# -- without a process


def vote_key(answer: str) -> str:
    """What an answer is counted under in a vote: plain numbers by value, without units; other texts without case and
    spaces."""
    number = plain_number(core := _core(answer))
    return "".join(core.split()).casefold() if number is None else str(number[0].normalize() + 0)


def quick_grade(gold: str, answer: str) -> Grade | None:
    """The grade where it needs no algebra: blank, overlong or equal texts, plain numbers, plain words; else None.

    Numbers are compared exactly as decimals, without currency signs, thousands separators and trailing zeros.
    "%" is dropped only if the numbers are then equal and not below 1, and a unit only where the other side has none.
    """
    gold, answer = _core(gold), _core(answer)
    if not gold:
        return Grade(value=None, reason="gold not readable")
    if not answer:
        return Grade(value=False)
    if gold == answer:
        return Grade(value=True)
    if len(answer) > MAX_ANSWER or not _balanced(answer):
        return Grade(value=False)
    if _is_words(gold) and _is_words(answer):
        return Grade(value=gold.casefold().split() == answer.casefold().split())
    if (number := plain_number(gold)) is None or (other := plain_number(answer)) is None:
        return None
    (value, unit), (other_value, other_unit) = number, other
    if unit != other_unit and unit and other_unit:  # two units: perhaps the same quantity
        return None if value == other_value or _MEASURES.issuperset((unit, other_unit)) else Grade(value=False)
    if value == other_value and (abs(value) >= 1 or not value or (unit == "%") == (other_unit == "%")):
        return Grade(value=True)  # 50 may be 50 %, but 0.5 is not 0.5 %
    return None if "%" in (unit, other_unit) and unit != other_unit else Grade(value=False)


def _core(text: str) -> str:
    r"""An answer without its wrapping: ``\boxed{…}``, ``$…$``, ``\(…\)``, ``\text{…}``, a full stop."""
    text = text.strip()
    if "\\boxed{" in text:
        text = (last_boxed(text) or text).strip()
    text = text.removesuffix(".").rstrip().replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    for left, right in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}")):
        inside = text[len(left) : -len(right)]
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right) and left not in inside:
            if left == "\\text{" and not _balanced(inside):
                continue
            text = inside.strip()
    return text


def _balanced(text: str) -> bool:
    r"""Whether the braces of a text pair up, so that it can stand inside of ``\boxed{…}``; ``\{`` is no brace."""
    depth, escaped = 0, False
    for char in text:
        if not escaped:
            depth += (char == "{") - (char == "}")
            if depth < 0:
                return False
        escaped = char == "\\" and not escaped
    return depth == 0 and not escaped


def _is_words(text: str) -> bool:
    """Whether a text is ordinary words ("Monday"), and not mathematics such as ``xy``."""
    words = text.split()
    return all(word.isalpha() for word in words) and any(len(word) > 3 for word in words)


# Words behind a number that change its value, or that are no unit.
_VALUE_WORDS = """hundred thousand million billion trillion dozen half halves third thirds quarter quarters percent per
mod and or not sin cos tan log exp sqrt factorial squared cubed times plus minus over"""
_NO_UNITS = frozenset(_VALUE_WORDS.split())
# Units that convert into others.
_MEASURE_WORDS = """% mm cm dm km meter meters metre metres inch inches foot feet yard yards mile miles sec second
seconds min minute minutes hour hours day days week weeks month months year years gram grams kilogram kilograms kg ton
tons ounce ounces pound pounds lbs liter liters litre litres ml milliliter milliliters cup cups pint pints quart quarts
gallon gallons cent cents dollar dollars penny pennies nickel nickels dime dimes degree degrees radian radians dozens
kilometers kilometres centimeters centimetres"""
_MEASURES = frozenset(_MEASURE_WORDS.split())
_SCIENTIFIC = re.compile(r"\s*\\(?:times|cdot)\s*10\^(?:\{\s*(-?\d{1,3})\s*\}|(\d))")


def plain_number(text: str) -> tuple[Decimal, str] | None:
    """A plain number and its unit: "-$1,234.50" → (-1234.5, ""), "50\\%" → (50, "%"), "9 (apples)" → (9, "apples")."""
    text = text.replace("\\!", "").replace("{,}", ",").replace("−", "-")
    sign = "-" if text.startswith("-") else ""
    text = text.removeprefix("-") if sign else text.removeprefix("+")
    text = text.removeprefix("\\").lstrip("$€£").lstrip()
    end = next((i for i, char in enumerate(text) if char not in "0123456789.,"), len(text))
    digits, rest = text[:end], text[end:]
    whole, point, fraction = digits.partition(".")
    head, *groups = whole.split(",")
    if groups and (not 1 <= len(head) <= 3 or any(len(group) != 3 for group in groups)):
        return None
    if not (whole or fraction) or not (fraction + "0").isdigit():
        return None
    power = _SCIENTIFIC.match(rest)
    unit = _unit(rest if power is None else rest[power.end() :])
    if unit is None:
        return None
    exponent = "" if power is None else f"e{power[1] or power[2]}"
    return Decimal(sign + whole.replace(",", "") + point + fraction + exponent), unit


def _unit(rest: str) -> str | None:
    """What stands behind a number, if that is nothing, a per cent sign or one to three words; else None."""
    if rest.strip() in ("", "%", "\\%"):
        return rest.strip().removeprefix("\\")
    if not rest[0].isspace():
        return None
    words = rest.replace("(", " ").replace(")", " ").casefold().split()
    if not 1 <= len(words) <= 3 or not all(word.isalpha() and word not in _NO_UNITS for word in words):
        return None
    return " ".join(words) if len(words[0]) > 2 else None
