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
import functools
import queue
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from cotrain.core.errors import ConfigError
from cotrain.core.types import Grade, StepVerdicts, Task
from cotrain.formats.answers import final_answer, last_boxed, without_alignment
from cotrain.grading.grade_process import DIED, MATHEMATICS, Worker
from cotrain.grading.members import assigned_values, write_both_signs
from cotrain.grading.notation import has_adjacent_numbers, parts_of, plain_signs, write_tex
from cotrain.grading.quantities import PERCENT, Quantity, is_base, parse_quantity, unit_ratio
from cotrain.grading.sandbox import Kind
from cotrain.grading.sizes import too_large

MAX_ANSWER = 10_000  # characters; a longer text is not an answer, unless it equals the gold answer
LONG = 500  # characters, and ten times the gold answer's: a longer one is too large for math-verify
MEMORY_BYTES = 3 << 30  # address space of a worker
DEADLINE_S = 2.0  # CPU time of a grade
FIRST = 16  # part of the deadline for the first try of a comparison of mathematics
TRIES = 3  # full deadlines that fail before there must be savings for another
SAVED = 2.5e-4  # deadlines that are saved with every grade that is given
APART = Fraction(1, 10_000)  # a decimal and a fraction that are nearer are left to math-verify, which knows rounding
LAYERS = 8  # most layers of wrapping around an answer
CACHED_ANSWERS = 1024  # answers that are kept as they were read
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
        self._start = (memory, tuple(judging), sandbox)
        self._first_s = deadline_s / FIRST if judging[0] == MATHEMATICS else None
        self._tries = float(TRIES)
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
        compared = _compare_texts(gold, answer_text)
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
        assert task.gold is not None
        answer = final_answer(text)
        return Grade(value=False) if answer is None else self._pool.grade(task.gold, answer)

    async def agrade(self, task: Task, text: str) -> Grade:
        """``grade``, while others go on."""
        assert task.gold is not None
        answer = final_answer(text)
        return Grade(value=False) if answer is None else await self._pool.agrade(task.gold, answer)

    async def _in_thread(self, task: Task, text: str) -> Grade:
        return await asyncio.get_running_loop().run_in_executor(None, self.grade, task, text)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        """None: there is no oracle."""
        return None

    def close(self) -> None:
        """End the grading processes."""
        self._pool.close()


# -- without a process


def vote_key(answer: str) -> str:
    """Return what an answer is counted under in a vote: plain numbers by value, without units; other texts without case
    and spaces."""
    read = Quantity(tex=answer) if len(answer) > MAX_ANSWER else read_answer(answer)
    if read.value is None:
        return _SPACES.sub("", read.tex).casefold()
    top, bottom = read.value.as_integer_ratio()
    bottom *= 100 if read.unit is PERCENT and -1 < read.value < 1 else 1
    return f"{top:x}/{bottom:x}" if bottom > 1 else f"{top:x}"


def quick_grade(gold: str, answer: str) -> Grade | None:
    """The grade where it needs no algebra: blank, overlong or equal texts, plain numbers, plain words; else None.

    Numbers are compared exactly, without currency signs, thousands separators and trailing zeros. "%" is dropped only
    if the numbers are then equal and not below 1, and a unit only where the other side has none.
    """
    compared = _compare_texts(gold, answer)
    return compared if isinstance(compared, Grade) else None


def _compare_texts(gold: str, answer: str) -> Grade | tuple[str, str]:
    """The grade, or the two formulas that math-verify has to compare."""
    gold = gold.strip()
    answer = answer.strip()
    if len(answer) > MAX_ANSWER and gold != answer:
        return Grade(value=False)

    gold_read = read_answer(gold)
    answer_read = read_answer(answer)
    right = _with_attached_unit(gold_read, answer_read)
    answer_read = _with_attached_unit(answer_read, gold_read)
    answer_read = _with_other_marks(answer_read, right)
    if not right.tex:
        same = gold == answer and bool(gold.strip(". "))
        return Grade(value=True) if same else Grade(value=None, reason="gold not readable")
    if not answer_read.tex:
        return Grade(value=False)
    if right == answer_read:
        return Grade(value=True)
    if not _has_balanced_braces(answer_read.tex) or has_adjacent_numbers(answer_read.tex):
        return Grade(value=False)
    if has_adjacent_numbers(right.tex):
        return Grade(value=None, reason="gold not readable")

    # Words, and letters of a multiple choice.
    if _is_words(right.tex) and all(word.isalpha() for word in _words_in(answer_read.tex)):
        return Grade(value=_words_in(right.tex) == _words_in(answer_read.tex))
    if not (right.unit or answer_read.unit or right.letter) and right.tex.casefold() == answer_read.tex.casefold():
        return Grade(value=True)  # "YES" and "yes", as formulas are compared
    choice = _CHOSEN.match(answer_read.tex)
    if choice and _CHOICE.fullmatch(right.tex):
        names_another = _OTHER_CHOICE.search(answer_read.tex[choice.end(1) + 1 :])
        return Grade(value=choice[1] == right.tex and not names_another)

    if answer_read.unit is not None and is_base(answer_read.unit) and (right.unit is None or not is_base(right.unit)):
        return Grade(value=False)  # 12 is 12 in base ten
    if (right.letter or answer_read.letter) and (right.value is None or answer_read.value is None):
        return _with_letter(right), _with_letter(answer_read)  # 6 m is 6 metres, and six times m
    return _compare_amounts(right, answer_read)


def _compare_amounts(right: Quantity, answer_read: Quantity) -> Grade | tuple[str, str]:
    """``_compare_texts`` for numbers and formulas, with or without units."""
    in_percent = right.unit is PERCENT
    answer_in_percent = answer_read.unit is PERCENT
    by = Fraction(1)  # the answer's unit in the gold one's
    if right.unit is not None and answer_read.unit is not None:
        ratio = unit_ratio(answer_read.unit, right.unit)
        if ratio is None:
            return Grade(value=False)
        by = ratio

    # Dates, ranges and times of day, part by part.
    parts = parts_of(right.tex)
    answer_parts = parts_of(answer_read.tex)
    if parts and answer_parts:
        for answer_part in answer_parts:
            if tuple(part * by for part in answer_part) in parts:
                return Grade(value=True)
        return Grade(value=False)
    alone = right.tex if parts else answer_read.tex
    if (parts or answer_parts) and (":0" in alone or not alone.replace(":", "").isdigit()):  # 7:30 may be a ratio
        return Grade(value=False)

    # x = 1 and y = 2 as the point (1, 2), where the other one is no assignment.
    right_assigned = assigned_values(right.tex)
    answer_assigned = assigned_values(answer_read.tex)
    if bool(right_assigned) != bool(answer_assigned):
        right = _as_point(right, right_assigned)
        answer_read = _as_point(answer_read, answer_assigned)
    right_members = _MEMBERS.fullmatch(right.tex)
    answer_members = _MEMBERS.fullmatch(answer_read.tex)
    if right_members and answer_members and {right_members[1], answer_members[1]} == {"(", "\\{"}:
        return Grade(value=False)  # a set is no point
    if right.value is not None and answer_read.value is not None:
        value = right.value
        answer_value = answer_read.value if by == 1 else Fraction(answer_read.value) * by
        if value == answer_value and (not -1 < value < 1 or not value or in_percent == answer_in_percent):
            return Grade(value=True)  # 50 may be 50 %, but 0.5 is not 0.5 %
        if in_percent and not answer_in_percent:
            value = Fraction(value) / 100
        if answer_in_percent and not in_percent:
            answer_value = Fraction(answer_value) / 100
        if value == answer_value:
            return Grade(value=True)
        same_kind = isinstance(value, Fraction) == isinstance(answer_value, Fraction)
        if same_kind or abs(Fraction(value) - Fraction(answer_value)) > APART:
            return Grade(value=False)  # a rounded decimal may be near enough to a fraction

    if by == 1:
        return write_both_signs(right.tex), write_both_signs(answer_read.tex)
    amount = answer_read.tex.rpartition("=")[2]  # of v = 36 km/h
    return right.tex, f"\\frac{{{by.numerator}}}{{{by.denominator}}} \\cdot ({amount})"


def _with_attached_unit(read: Quantity, other: Quantity) -> Quantity:
    r"""An answer such as "2h" or "5 \mu m": 2 hours if the other one has a measure, else two times h."""
    measured = other.unit is not None and bool(other.unit.dimensions) and not other.letter
    if read.unit is not None or not measured or not (match := _ATTACHED.fullmatch(read.tex)):
        return read
    return parse_quantity(f"{match[1]} {'micro' if match[2] else ''}{match[3]}{'ohm' if match[4] else ''}".rstrip())


def _with_other_marks(read: Quantity, right: Quantity) -> Quantity:
    """An answer that is a number with the marks of another country or a letter for its size, "1.234,5", "12,34,567",
    "1.5M", if the gold answer is this number; all else may be a list or a product."""
    if right.value is None or read.value is not None or len(read.tex) > LONGEST_NUMBER:
        return read
    body = read.tex.removesuffix("\\%")
    numbers = []
    if _DECIMAL_COMMA.fullmatch(body):
        numbers.append(Decimal(body.replace(".", "").replace(",", ".")))
    if _OTHER_GROUPS.fullmatch(body):
        numbers.append(Decimal(body.replace(",", "")))
    if sized := _SIZED.fullmatch(body):
        numbers.append(Decimal(sized[1]) * 1000 ** ("kmb".index(sized[2].casefold()) + 1))
    if right.value not in numbers:
        return read
    return replace(read, tex=f"{right.value}" + read.tex[len(body) :], value=right.value, letter="")


def _as_point(read: Quantity, assigned: dict[str, str]) -> Quantity:
    """A point of the values of letters: x = 1, y = 2 is (1, 2); an answer without letters as it is."""
    return replace(read, tex=f"({', '.join(assigned.values())})") if assigned else read


def _with_letter(read: Quantity) -> str:
    """An expression whose letter behind a space is a variable."""
    return f"{read.tex[:-1].rstrip()} {{{read.letter}}}" if read.letter else read.tex


@functools.lru_cache(maxsize=CACHED_ANSWERS)
def read_answer(text: str) -> Quantity:
    """An answer in one notation (``notation.py``), without its wrapping, with its unit and number apart."""
    if _NUMBER.fullmatch(text):  # most answers
        return Quantity(tex=text, value=Decimal(text))
    unwrapped = _unwrap_answer(plain_signs(text))
    text = write_tex(unwrapped)
    text = " ".join((text if text == unwrapped else _unwrap_answer(text)).split())
    if choice := _BRACKETED.fullmatch(text):
        text = choice[1]
    return parse_quantity(text)


def _unwrap_answer(text: str) -> str:
    r"""An answer without what stands around it: ``\boxed{…}``, ``$…$``, ``**…**``, ``\text{…}``, "The answer is",
    ``\approx``, a full stop."""
    text = without_alignment(last_boxed(text) or text).strip()
    for _ in range(LAYERS):
        before = text
        if not text.endswith(".."):
            text = text.rstrip(".,;: \n\\")
        if "**" in text or "<" in text:
            text = _BOLD.sub(r"\1", text)
        text = _PREFIX.sub("", text)
        label = _LABEL.match(text)
        if label and _PREFIX.fullmatch(label[1].strip() + " "):
            text = text[label.end() :]
        if fence := _FENCE.fullmatch(text):
            text = fence[1].strip()
        if text.count("$") - text.count("\\$") in (2, 4, 6, 8, 10, 12, 14, 16):
            text = _DOLLAR.sub("", text).strip()
        for left, right in _AROUND if text[-1:] in _ENDINGS else ():
            inside = text[len(left) : -len(right)].strip()
            if text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right):
                if left[-1] == "{" and not _has_balanced_braces(inside):
                    continue
                if left not in inside or left[-1] == "{":
                    text = inside

        if text == before:
            break
    return text


_STYLES = """text mathbf textbf underline fbox mathrm textit emph boldsymbol bm mathit textrm mbox textnormal ensuremath
mathsf mathtt texttt textsf hbox uline"""
_AROUND = (
    *((f"\\{style}{{", "}") for style in _STYLES.split()),
    *(("\\(", "\\)"), ("\\[", "\\]"), ("{", "}"), *((mark, mark) for mark in ("```", "``", "`", '"', "'"))),
    *((mark, mark) for mark in ("__", "_", "***", "*")),
)
_ENDINGS = frozenset(right[-1] for _, right in _AROUND)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_MEMBERS = re.compile(r"(\(|\\\{)[^(),]+,[^()]+(?:\)|\\\})")
_ATTACHED = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(\\mu\s*)?(?=[a-zA-Z\\])([a-zA-Z]{0,3})(\\Omega)?")
_DOLLAR = re.compile(r"(?<!\\)\$")
_BOLD = re.compile(r"(?<![\w)\]}*])\*\*([^*\s](?:[^*]*[^*\s])?)\*\*(?![\w(\[{\\*])|</?(?:b|strong|i|em|code|u)>")
LONGEST_NUMBER = 60
_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+")
_OTHER_GROUPS = re.compile(r"[-+]?(?:\d{1,2}(?:,\d{2})*,\d{3}(?:\.\d+)?|\d{1,4}(?:,\d{4})+(?:\.\d+)?)")
_SIZED = re.compile(r"([-+]?\d+(?:\.\d+)?) ?(k|K|M|B)")
_PREFIX = re.compile(
    r"^(?::?=>?|->|~|#{1,6}(?=\s)|\\(?:approx|simeq|sim|cong|equiv|therefore|implies|to|(?:R|r|Longr|longr)ightarrow|displaystyle|bf|rm|[lL]arge|[hH]uge)(?![a-zA-Z])"
    r"|\\(?:text)?color(?:box)?\s*\{[^{}]*\}|(?i:about|approximately|approx\.?|roughly|around|exactly|precisely)\s"
    r"|(?i:option|choice)\s*(?=\(?[A-Z]\b)"
    r"|(?i:[*_]{0,3}(?:so|thus|therefore|hence)?,?\s*(?:(?:the|my|our)\s+)?(?:final\s+|correct\s+)?"
    r"(?:answer|result|ans)\b\.?(?:\s+(?:is|was|would\s+be)\b)?"
    r"\s*[:=]?[*_]{0,3}))\s*"
)
_LABEL = re.compile(r"\\(?:text\w*|mbox|mathrm)\s*\{([^{}]*)\}\s*(?=\S)")  # \text{The answer is } 42
_FENCE = re.compile(r"```\w*\n(.*)```", re.S)
_BRACKETED = re.compile(r"[(\[]?\s*(?:\\text\s*\{\s*)?[(\[]?([A-Z])[)\]]?\s*\}?\s*[)\]]?")
_CHOICE = re.compile(r"[A-J]")
_CHOSEN = re.compile(r"(?:\\(?:text\w*|mathbf|mathrm)\s*\{\s*)?\(?([A-J])(?:\)|[.:](?=[\s}]))\s*\}?\s*\S")
_OTHER_CHOICE = re.compile(  # in what follows a choice: "or C", "(C)", "C. five", and not the article of "A cat"
    r"\A(?![\s).]*[A-J]\s+\w)(?:\W++|(?:or|and|but|also|maybe|else|option|choice|text\w*)\b)*+[A-HJ](?!\w)"
    r"|(?<![\w(])(?:\([A-J]\)|[A-J](?:\)|[.:](?=[\s}]|\Z)))"
)
_MARKS = re.compile(r"(?<=[^\W\d_])[.'-](?=[^\W\d_]|\s|$)")  # within words
_SPACES = re.compile(r"\s+(?!\d)|(?<!\d)\s+")


def _has_balanced_braces(text: str) -> bool:
    r"""Whether the braces of a text pair up, so that it can stand inside of ``\boxed{…}``; ``\{`` is no brace."""
    depth = 0
    escaped = False
    for char in text:
        if not escaped:
            depth += (char == "{") - (char == "}")
            if depth < 0:
                return False
        escaped = char == "\\" and not escaped
    return depth == 0 and not escaped


def _is_words(text: str) -> bool:
    """Whether a text is ordinary words ("Monday", "Mrs. Hilt's class", "北京"), and not mathematics such as ``xy``."""
    words = _words_in(text)
    return all(word.isalpha() for word in words) and any(len(word) > 3 or not word.isascii() for word in words)


def _words_in(text: str) -> list[str]:
    """Without case, and without dots and apostrophes."""
    return _MARKS.sub("", text).casefold().split()
