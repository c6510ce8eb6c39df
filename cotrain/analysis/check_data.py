r"""Finds faults in a data file: ``cotrain check data FILE [--against FILE …]``.

Errors: malformed rows, each with row and column or field; questions that another file (``against``) asks too. Warnings:
questions that repeat, the same question with two answers, questions that share 13 words in a row with another file's,
gold answers that the grader cannot read, by reason, and rows without an answer where at least a quarter has none. With
``--labelled answers``, or a file of solved problems, as a run has it, these are problems without a label and no fault.
Columns that a run would not read are listed, each with its number of rows.

Two questions are the same when they have the same letters and digits, and the same signs of arithmetic and brackets:
"3+4" is not "3-4". Where letters and digits are many, only signs count that typesetting leaves as they are: plus, less,
greater, and a minus in front of a number, a variable or a formula. Two answers differ when neither their texts nor the
grader says otherwise. The 13-grams are those of GPT-3 (arXiv 2005.14165, appendix C), over words without case and
punctuation; questions of fewer words have none.

With ``--answer-format FORMAT`` the worked texts of the file (completions, solutions, or answers that hold more than
themselves) are read as a solver's texts would be (``formats/answers.py``), and those in which nothing is found, or
another answer than the gold one, are warnings.

Left out: whether a gold answer is true; whether a paraphrase says the same; answers that math-verify reads only in
part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cotrain.config.run_config import RunConfig
from cotrain.core.errors import DataError
from cotrain.core.statistics import FEW_TESTED
from cotrain.core.types import UNLABELLED, ParseFailure, has_split
from cotrain.core.verbosity import ProgressPrinter
from cotrain.data.columns import ANY, Schema, row_of, solution_note
from cotrain.data.few_problems import few_test_rows_text
from cotrain.data.files import SPLITS, JsonlTasks, cut_into_splits
from cotrain.data.labels import with_labels
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.processbench import solution_of_row
from cotrain.data.programs import ROW_READERS
from cotrain.data.question_text import is_word_character, normal_question, words_in
from cotrain.data.read_rows import numbered_lines, parse_rows
from cotrain.data.row_files import DATA_ENDINGS, format_of, split_named_by
from cotrain.data.sources import allows_unanswered
from cotrain.data.unread_columns import columns_note, count_columns
from cotrain.formats.answers import free_solution
from cotrain.formats.solutions import TAGS, tagged_solution
from cotrain.grading.compare_texts import vote_key
from cotrain.grading.pool import DEADLINE_S, WORKERS, GradingPool

GRAM = 13
CODE = {"mbpp": "test_list", "humaneval": "entry_point"}  # layout of tasks of code → a column that no other has
HALF_ANSWERED = 0.25  # share of rows without an answer from which on that is meant, and no fault of single rows
FEW = "few"  # kind of the faults of a file that is too small
SHOWN = 5  # examples of each finding in the human report; JSON has them all
SHORT = 40  # letters and digits; in a longer question some signs of arithmetic differ by typesetting alone
_SIGNS = frozenset("-+*/=<>^()")


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFault:
    """One kind of fault and where it is."""

    level: str  # "error" or "warning"
    kind: str
    meaning: str
    where: tuple[str, ...]  # one line for each row; none for a fault of the whole file

    @property
    def count(self) -> int:
        return max(1, len(self.where))

    def report_lines(self) -> list[str]:
        if not self.where:
            return [f"{self.level}: {self.kind}: {self.meaning}"]

        lines = [f"{self.level}: {self.kind}: {_count_text(len(self.where), 'row')}: {self.meaning}"]
        places_by_fault: dict[str, list[str]] = {}
        for place in self.where:
            _, _, fault = place.partition(": ")
            places_by_fault.setdefault(fault or place, []).append(place)

        n_shown = 0
        for places in [*places_by_fault.values()][:SHOWN]:
            line = f"    {places[0]}"
            if len(places) > 1:
                line += f" (and {_count_text(len(places) - 1, 'other row')})"
            lines.append(line)
            n_shown += len(places)
        if n_shown < len(self.where):
            lines.append(f"    … and {len(self.where) - n_shown} more")
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """All that was found in one file."""

    path: str
    rows: int  # that are not blank, malformed ones included
    findings: tuple[DataFault, ...]
    lengths: dict[str, int] = field(default_factory=dict)  # words of a question: min, median, p95, max
    histogram: dict[str, int] = field(default_factory=dict)  # "8-15" words → questions
    # With --answer-format: texts, how many were read, how many are right.
    read: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)  # what a run would see: columns, splits, the first problem
    code: dict[str, Any] = field(default_factory=dict)  # for tasks of code: the --tasks of a run, and their splits
    solved: str | None = None  # the column of worked solutions, and how many rows have one
    unread: dict[str, int] = field(default_factory=dict)  # column that is not read → rows that have it
    labelled: LintReport | None = None  # report on the file of solved problems that --labelled names
    aside: Quarantine = field(default_factory=Quarantine)  # the malformed rows themselves

    def count_rows(self, level: str) -> int:
        """Rows with findings of this level, a row once for each finding."""
        own = sum(f.count for f in self.findings if f.level == level)
        return own if self.labelled is None else own + self.labelled.count_rows(level)

    def json(self) -> dict[str, Any]:
        plain = {name: value for name, value in asdict(self).items() if name not in ("aside", "labelled")}
        if self.labelled is not None:
            plain["labelled"] = self.labelled.json()
        return {**plain, "errors": self.count_rows("error"), "warnings": self.count_rows("warning")}

    def report_lines(self) -> list[str]:
        out = [f"{self.path}: {_count_text(self.rows, 'row')}"]
        for finding in self.findings:
            out += finding.report_lines()
        if self.labelled is not None:
            out.append(f"--labelled {self.labelled.path}: {_count_text(self.labelled.rows, 'row')}")
            out += [line for finding in self.labelled.findings for line in finding.report_lines()]
        if self.seen:
            splits = ", ".join(f"{count} {split}" for split, count in self.seen["splits"].items())
            question, answer = (_quoted_columns(self.seen[name]) for name in ("question", "answer"))
            out.append(f"a run sees: question from {question}, answer from {answer}; {splits}")
            first_answer = self.seen["first_answer"]
            shown_answer = "none" if first_answer is None else f"{first_answer!r:.60}"
            out.append(f"    {self.seen['first_question']!r:.160} → {shown_answer}")
            if empty := [split for split in self.seen["needed"] if not self.seen["splits"][split]]:
                out.append(
                    f"    a run on this file alone is refused, since no row falls to {' and '.join(empty)}: bring more "
                    "rows, or a directory with train.jsonl and test.jsonl"
                )

        if self.code:
            splits = ", ".join(f"{count} {split}" for split, count in self.code["splits"].items())
            out.append(f"tasks of code with unit tests: a run reads them with --tasks {self.code['tasks']}; {splits}")
        if self.solved:
            out.append(self.solved)
        if note := columns_note(self.unread):
            out.append(note)
        if self.read:
            counts = "{texts} worked texts: {read} are read, {right} of them as the gold answer".format(**self.read)
            out.append(f"--answer-format {self.read['answer']}: {counts}")
        if self.lengths:
            out.append("words of a question: " + ", ".join(f"{name} {n}" for name, n in self.lengths.items()))
            widest = max(self.histogram.values())
            out += [f"{r:>12s} {n:6d} {'#' * -(-40 * n // widest)}" for r, n in self.histogram.items()]
        return [*out, ", ".join(_count_text(self.count_rows(level), level) for level in ("error", "warning"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    number: int  # row in its file, from 1
    text: str
    key: str  # the same for the same question
    row: str  # the same for the same row: of ProcessBench, where one problem has many solutions, with the solution
    answer: str | None
    words: tuple[str, ...]
    worked: str = ""  # the text in which an answer is looked for, with ``--answer-format``
    columns: tuple[str, str] = ("", "")  # that question and answer were read from
    solution_column: str = ""  # that a worked solution beside the answer was read from
    kind: str = "problem"  # with an answer; or a solution for "review", or code with tests: "mbpp", "humaneval"
    asked_text: str = ""  # as it is asked: behind its system text
    unread: tuple[str, ...] = ()  # columns that are not read


def _quoted_columns(columns: str) -> str:
    """``instruction+input`` → 'instruction' and 'input'."""
    return " and ".join(map(repr, columns.split("+"))) if columns else "none"


def check_file(
    path: str | Path,
    against: Sequence[str | Path] = (),
    *,
    schema: Schema = ANY,
    workers: int = WORKERS,
    deadline_s: float = DEADLINE_S,
    answer: str | None = None,
    labelled: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> LintReport:
    """Check one file of JSON lines, a JSON array, CSV or parquet, of questions and answers, of tasks of code with unit
    tests (MBPP's and HumanEval's layouts) or of ProcessBench.

    ``answer``: how worked texts are read. ``labelled``: as ``--labelled`` of a run: which problems have a label, and
    whether rows may lack an answer. A file that it names is checked too, and its problems are counted.
    ``say`` hears of what takes long. Raises DataError where a file is missing, unreadable or empty; every other fault
    is a finding.
    """
    questions, aside = _read_questions(Path(path), schema, unanswered=True)
    if labelled is None or not allows_unanswered(labelled):
        questions, aside, unanswered = _part_unanswered(questions, aside, path, schema)
    else:
        unanswered = []
    malformed = tuple(one.reason.removeprefix(f"{path}, ") for one in aside.refused)
    faults = [
        DataFault(level="error", kind="malformed", meaning="unreadable, and left out of what follows", where=malformed)
    ]
    faults.append(
        DataFault(
            level="warning",
            kind="no answer",
            meaning="a run takes them with --labelled answers, as problems without a label, and else refuses them",
            where=tuple(f"row {question.number}: {question.text!r:.80}" for question in unanswered),
        )
    )
    with GradingPool(workers=workers, deadline_s=deadline_s) as pool:
        faults += _find_repeats(questions, pool)
        for other_path in against:
            faults += _find_overlaps(questions, Path(other_path), schema)
        faults += _find_unreadable(questions, pool, workers, say)
        answer_counts = {} if answer is None else _check_worked_texts(questions, answer, pool, faults, say)

    lengths, histogram = _length_statistics(questions)
    seen = _view_of_run(questions, bool(unanswered)) | _view_of_labels(path, schema, labelled)
    code = _code_of_run(questions)
    is_split = split_named_by(Path(path)) in SPLITS  # a file of a directory is used with its other files
    whole_file = [] if is_split else _find_few_problems((seen or code).get("splits", {}))
    return LintReport(
        path=str(path),
        rows=aside.read + len(aside.refused),
        findings=(*(f for f in faults if f.where), *whole_file),
        lengths=lengths,
        histogram=histogram,
        read=answer_counts,
        labelled=_check_labelled_file(labelled, workers, deadline_s),
        seen=seen,
        code=code,
        solved=solution_note([question.solution_column for question in questions]),
        unread=count_columns(question.unread for question in questions),
        aside=aside,
    )


def _part_unanswered(
    questions: list[_Question], aside: Quarantine, path: str | Path, schema: Schema
) -> tuple[list[_Question], Quarantine, list[_Question]]:
    """All questions, what is malformed, and the questions without an answer. Where few rows or all have none, it is
    forgotten or its column has another name: such rows are malformed."""
    problems = [question for question in questions if question.kind == "problem"]
    unanswered = [problem for problem in problems if problem.answer is None]
    is_layout = HALF_ANSWERED * len(problems) <= len(unanswered) < len(problems)
    if unanswered and not is_layout:
        return (*_read_questions(Path(path), schema, unanswered=False), [])
    return questions, aside, unanswered


def _read_questions(path: Path, schema: Schema, *, unanswered: bool) -> tuple[list[_Question], Quarantine]:
    """The questions that can be read, and what is wrong with the other rows. ``unanswered``: a question may have no
    answer."""
    aside = Quarantine()

    def read_question(row: dict[str, Any], where: str) -> _Question:
        code = next((kind for kind, mark in CODE.items() if mark in row), None)
        solution_column = ""
        if "steps" in row and "label" in row:
            sample = solution_of_row(row, where, "")
            question = sample.problem
            answer = None
            solution = " ".join(sample.steps)
            columns = ("", "")
            asked_text = sample.problem
            unread = sample.unread
            kind = "review"
        elif code is not None:
            program = ROW_READERS[code](row, where)
            question = program.bare_question
            answer = None
            solution = ""
            columns = ("", "")
            asked_text = program.question
            unread = program.unread
            kind = code
        else:
            question_row = row_of(row, schema.question, schema.answer, where, unanswered)
            question = question_row.question
            answer = question_row.answer
            solution = ""
            columns = question_row.columns
            asked_text = question_row.prompt
            solution_column = question_row.solution_column
            unread = question_row.unread
            kind = "problem"

        words = words_in(normal_question(question))
        key = question_key(question)
        whole = f"{key} {question_key(solution)}" if solution else key
        number = int(where.rpartition(" ")[2])
        worked = _worked_text(row)
        return _Question(
            number=number,
            text=question,
            key=key,
            row=whole,
            answer=answer,
            words=words,
            worked=worked,
            columns=columns,
            solution_column=solution_column,
            asked_text=asked_text,
            unread=unread,
            kind=kind,
        )

    questions = parse_rows(numbered_lines(path), read_question, aside)
    if not questions and not aside.refused:
        raise DataError(f"{path}: no rows; expected {format_of(path)}", code="E_DATA_EMPTY")
    return questions, aside


def _view_of_run(questions: Sequence[_Question], labelled: bool) -> dict[str, Any]:
    """The columns, splits and first question that ``cotrain run --data`` makes of these rows, before it leaves out
    held-out ones; {} for reviews. ``labelled``: with ``--labelled``, where rows without an answer are a split of their
    own."""
    problems = [question for question in questions if question.kind == "problem"]
    if not problems:
        return {}
    answered = [question for question in problems if question.answer is not None]
    first = (answered or problems)[0]
    counts = Counter(cut_into_splits([question.text for question in answered]))
    splits = {split: counts[split] for split in SPLITS}
    if labelled:
        splits[UNLABELLED] = len(problems) - len(answered)
    return {
        **dict(zip(("question", "answer"), first.columns, strict=True)),
        "splits": splits,
        "needed": [] if not answered else ["train", "test"],
        "first_question": first.asked_text,
        "first_answer": first.answer,
    }


def _find_few_problems(splits: Mapping[str, Any]) -> list[DataFault]:
    """Whether a run of these splits has enough problems to be tested on, and to fill a step with."""
    faults: list[DataFault] = []

    tested = splits.get("test")
    if isinstance(tested, int) and 0 < tested < FEW_TESTED:
        faults.append(DataFault(level="warning", kind=FEW, meaning=few_test_rows_text(tested), where=()))

    trained = splits.get("train")
    drawn = RunConfig().tasks_per_step
    if UNLABELLED not in splits and isinstance(trained, int) and 0 < trained < drawn:
        meaning = (
            f"{_count_text(trained, 'problem')} to train on: a run, whose steps draw {drawn}, refuses the file; give "
            f"it --tasks-per-step {trained}, or more rows"
        )
        faults.append(DataFault(level="warning", kind=FEW, meaning=meaning, where=()))
    return faults


def _view_of_labels(path: str | Path, schema: Schema, labelled: str | None) -> dict[str, Any]:
    """The splits that ``cotrain run --data FILE --labelled WHICH`` makes, by the sources of a run; {} without
    ``--labelled``, or where rows are malformed, which is a finding. Raises ConfigError as a run does."""
    if labelled is None:
        return {}
    unanswered = allows_unanswered(labelled)
    try:
        targets = JsonlTasks(path, schema.question, schema.answer, lenient=True, unanswered=unanswered)
        source = with_labels(targets, labelled, seed=0)
    except DataError:
        return {}

    splits: dict[str, int | str] = {}
    for split in (*SPLITS, UNLABELLED):
        if has_split(source, split):
            size = source.size(split)
            splits[split] = "no end of" if size is None else size
    return {"splits": splits, "needed": ["test"]}


def _check_labelled_file(labelled: str | None, workers: int, deadline_s: float) -> LintReport | None:
    """The faults of the file of solved problems that ``--labelled`` names; None where it names none."""
    if labelled is None or not labelled.lower().endswith(DATA_ENDINGS):
        return None
    report = check_file(labelled, workers=workers, deadline_s=deadline_s)
    about_rows = tuple(fault for fault in report.findings if fault.kind != FEW)  # their number is printed above
    return replace(report, findings=about_rows)


def _code_of_run(questions: Sequence[_Question]) -> dict[str, Any]:
    """The ``--tasks`` that reads these tasks of code, and their splits; {} where there are none."""
    tasks = [question for question in questions if question.kind in CODE]
    if not tasks:
        return {}
    counts = Counter(cut_into_splits([task.text for task in tasks]))
    return {"tasks": tasks[0].kind, "splits": {split: counts[split] for split in SPLITS}}


def _worked_text(row: Mapping[str, Any]) -> str:
    """The longest text of a row that may hold a worked answer."""
    texts = [str(row[name]) for name in ("completion", "solution", "response", "answer", "text") if row.get(name)]
    return max(texts, key=len, default="")


def _check_worked_texts(
    questions: Sequence[_Question], answer: str, pool: GradingPool, faults: list[DataFault], say: Callable[[str], None]
) -> dict[str, Any]:
    """How many worked texts the format ``answer`` reads, and reads as the gold answer; ``faults`` takes the others."""
    texts = [question for question in questions if question.worked and question.worked != question.answer]
    unread = []
    wrong = []
    pace = ProgressPrinter(len(texts), "{} worked texts compared with their answers", say)
    for question in texts:
        pace.add()
        if answer == TAGS:
            solution = tagged_solution(question.worked)
        else:
            solution = free_solution(question.worked, answer)
        if isinstance(solution, ParseFailure):
            unread.append(f"row {question.number}: {solution.reason}: …{' '.join(question.worked.split())[-80:]!r}")
        elif question.answer is not None and not _same_answer(solution.answer, question.answer, pool):
            wrong.append(f"row {question.number}: {solution.answer!r}, gold {question.answer!r}"[:200])

    faults.append(
        DataFault(
            level="warning", kind="unread", meaning=f"--answer-format {answer} finds no answer", where=tuple(unread)
        )
    )
    faults.append(
        DataFault(level="warning", kind="other", meaning=f"--answer-format {answer} finds another", where=tuple(wrong))
    )
    read_count = len(texts) - len(unread)
    return {"answer": answer, "texts": len(texts), "read": read_count, "right": read_count - len(wrong)}


def _same_answer(said: str, gold: str, pool: GradingPool) -> bool:
    return said == gold or vote_key(said) == vote_key(gold) or pool.grade(gold, said).value is True


def question_key(question: str) -> str:
    """Return a key that two askings of one question share."""
    text = normal_question(question)
    plain = "".join(filter(is_word_character, text))
    if len(plain) < SHORT:
        return "".join(char for char in text if char in _SIGNS or is_word_character(char))
    return f"{plain} {''.join(_OPERATION.findall(text.translate(_DASHES)))}"


_DASHES = str.maketrans("−–—‐", "----")
_OPERATION = re.compile(r"[+<>]|-(?=\s*(?:\d|[^\W\d_](?![^\W_])|[\\({\[]))")


def _find_repeats(questions: Sequence[_Question], pool: GradingPool) -> list[DataFault]:
    first: dict[str, _Question] = {}
    same, differing = [], []
    for question in questions:
        earlier = first.setdefault(question.row, question)
        if earlier is question:
            continue
        exact = ", word for word" if " ".join(earlier.text.split()) == " ".join(question.text.split()) else ""
        same.append(f"row {question.number} asks what row {earlier.number} asks{exact}")
        if question.answer is not None and earlier.answer is not None:
            same_text = vote_key(question.answer) == vote_key(earlier.answer)
            # "\\frac13" is "\\frac{1}{3}" only to a grader
            if not same_text and pool.grade(earlier.answer, question.answer).value is not True:
                differing.append(
                    f"rows {earlier.number} and {question.number}: {earlier.answer!r}, {question.answer!r}"[:200]
                )
    return [
        DataFault(level="warning", kind="duplicate", meaning="the question was asked before", where=tuple(same)),
        DataFault(
            level="warning", kind="two answers", meaning="asked before, with another answer", where=tuple(differing)
        ),
    ]


def _find_overlaps(questions: Sequence[_Question], other: Path, schema: Schema) -> list[DataFault]:
    other_questions, aside = _read_questions(other, schema, unanswered=True)
    if not other_questions:
        raise DataError(f"{other}: no row can be read; the first: {aside.refused[0].reason}", code="E_NO_ROW_READABLE")
    row_of_question = {question.key: question.number for question in reversed(other_questions)}
    grams = {gram: question.number for question in reversed(other_questions) for gram in _word_grams(question.words)}
    exact, partly = [], []
    for question in questions:
        if question.key in row_of_question:
            exact.append(f"row {question.number} asks what its row {row_of_question[question.key]} asks")
        elif (shared := next((g for g in _word_grams(question.words) if g in grams), None)) is not None:
            partly.append(f"row {question.number} and its row {grams[shared]}: {' '.join(shared)}"[:200])
    return [
        DataFault(level="error", kind="overlap", meaning=f"{other} asks the same", where=tuple(exact)),
        DataFault(
            level="warning",
            kind=f"{GRAM}-gram",
            meaning=f"shares {GRAM} words in a row with {other}",
            where=tuple(partly),
        ),
    ]


def _word_grams(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [words[i : i + GRAM] for i in range(len(words) - GRAM + 1)]


def _find_unreadable(
    questions: Sequence[_Question], pool: GradingPool, workers: int, say: Callable[[str], None]
) -> list[DataFault]:
    """Gold answers that give no grade, each compared once with an answer that every grader can read."""
    rows: dict[str, list[int]] = {}
    for question in questions:
        if question.answer is not None:
            rows.setdefault(question.answer, []).append(question.number)
    with ThreadPoolExecutor(workers) as threads:
        pace = ProgressPrinter(len(rows), "{} gold answers tried", say)
        grades = []
        for grade in threads.map(lambda gold: pool.grade(gold, "0"), rows):
            grades.append(grade)
            pace.add()

    where: dict[str, list[tuple[int, str]]] = {}
    for (gold, numbers), grade in zip(rows.items(), grades, strict=True):
        if grade.value is None:
            where.setdefault(grade.reason or "ungraded", []).extend((n, gold) for n in numbers)

    faults = []
    for reason, places in sorted(where.items()):
        lines = [f"row {n}: {gold!r}"[:200] for n, gold in sorted(places)]
        faults.append(
            DataFault(
                level="warning",
                kind=f"answer: {reason}",
                meaning="the grader makes nothing of the gold answer; an answer of the same text is right, others give "
                "no reward",
                where=tuple(lines),
            )
        )
    return faults


def _length_statistics(questions: Sequence[_Question]) -> tuple[dict[str, int], dict[str, int]]:
    sizes = sorted(len(question.text.split()) for question in questions)
    if not sizes:
        return {}, {}
    last = len(sizes) - 1
    named = {"min": sizes[0], "median": sizes[last // 2], "p95": sizes[round(0.95 * last)], "max": sizes[-1]}
    powers = Counter(size.bit_length() for size in sizes)
    ranges = range(min(powers), max(powers) + 1)
    return named, {f"{1 << (b - 1)}-{(1 << b) - 1}": powers[b] for b in ranges}
