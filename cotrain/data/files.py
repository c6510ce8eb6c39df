"""Problems from a local file, a directory, or a data set of the Hub: one row a problem, with a question and an answer.

Accepted rows: ``{"question": …, "answer": …}`` under their usual names, such as ``Prompt`` and ``Ground Truth`` or
TRL's ``prompt`` of messages and ``solution``, and GSM8K's, whose answer is worked text that ends in ``#### N``. Columns
of other names are given as ``question=`` and ``answer=``; ``columns.py`` has those of public benchmarks and the
format's details. What else a row holds is asked with the question, refused, or counted (``unread_columns.py``).

One file is cut into splits by a hash of each question: 80 % train, 10 % validation, 10 % test. So a split never depends
on the order of rows, rows added later move nothing, and a question that occurs twice lies in one split. Of a file with
fewer than ``FEW_QUESTIONS`` questions the hash says only the order, and exactly a tenth of them, at least one, is
tested on: chance would leave some such files without a test problem. A directory
with ``train.jsonl`` and ``test.jsonl`` (or ``.jsonl.gz``, ``.parquet`` …), a snapshot of the Hub with
``data/train-00000-of-00001.parquet`` and its like, and a data set with these splits keep their own test split;
validation is cut from train, unless there is one. Training rows that ask a held-out question, be it in a paraphrase,
are left out and counted.

Left out: step labels (``grade_steps`` is None: there is no oracle).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cotrain.core.errors import DataError, UnknownName
from cotrain.core.input_files import absolute_path
from cotrain.core.seeding import seed_of
from cotrain.core.types import UNLABELLED, Task
from cotrain.core.verbosity import count_of
from cotrain.data.columns import SCHEMAS, Row, schema_of, solution_note, with_system_text
from cotrain.data.few_problems import FEW_QUESTIONS
from cotrain.data.hub import hub_rows, is_hub_name
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.question_text import normal_question
from cotrain.data.read_rows import RowReader, parse_rows, read_rows, row_reader
from cotrain.data.row_files import files_by_split, files_in, has_rows, split_named_by
from cotrain.data.unread_columns import columns_note, count_columns
from cotrain.grading.pool import DEADLINE_S, WORKERS, AnswerGrader

SPLITS = ("train", "validation", "test")
T = TypeVar("T")


class JsonlTasks:
    """A task source over a file, a directory of files or a data set of the Hub, read and checked whole when built.

    ``left_out``: training rows that were dropped because they ask a validation or test question.
    """

    def __init__(
        self,
        path: str | Path,
        question: str = SCHEMAS["jsonl"].question,
        answer: str = SCHEMAS["jsonl"].answer,
        name: str = "jsonl",
        workers: int = WORKERS,
        deadline_s: float = DEADLINE_S,
        digest: str | None = None,
        lenient: bool = False,
        unanswered: bool = False,
    ) -> None:
        """Args:
            question, answer: columns, see ``columns.py``.
            workers: grading processes.
            deadline_s: seconds for one answer to be graded.
            digest: from ``describe``; other data are then an error.
            lenient: set malformed rows aside, in ``quarantine``; without it the first one is an error.
            unanswered: rows may lack an answer; these are the split "unlabelled", and rows of all other splits have
                one.

        Raises DataError, see ``read_rows``.
        """
        self.name = name
        self.quarantine = Quarantine()
        self._lenient = lenient
        self._unanswered = unanswered
        self.path = str(path) if is_hub_name(str(path)) else str(absolute_path(path))
        self._columns = (question, answer)
        self.grader = AnswerGrader(workers=workers, deadline_s=deadline_s)
        self._limits = (workers, deadline_s)
        self.left_out = 0
        self._unread_splits: dict[str, int] = {}  # split of a data set of the Hub that is not read → its rows
        aside = self.quarantine if lenient else None
        parts = read_splits(self.path, self._reader(), aside, self._unread_splits)
        rows_without_answer: list[Row] = []
        rows_with_answer = {}
        for split, rows in parts.items():
            rows_without_answer += [row for row in rows if row.answer is None]
            rows_with_answer[split] = [row for row in rows if row.answer is not None]
        self._rows = self._arrange_splits(rows_with_answer)
        if unanswered:
            self._rows[UNLABELLED] = tuple(rows_without_answer)
        self.quarantine.check_share(self.path)
        self._keep_paraphrases_apart()
        if not any(self._rows.get(split) for split in ("train", UNLABELLED)):
            raise DataError(
                f"{self.path}: too few questions, none falls into the training split; give at least 20",
                code="E_TOO_FEW_QUESTIONS",
            )
        self._digest = _digest_of(self._rows)
        if digest is not None and digest != self._digest:
            raise DataError(
                f"{self.path}: its rows have changed since they were recorded; restore the file, or start anew",
                code="E_DATA_CHANGED",
            )

    @property
    def notes(self) -> list[str]:
        """The notes that are printed as a run begins: the columns from which its problems are read, where these were
        guessed; how many problems have no answer; and what was made of other columns."""
        unanswered = self._rows.get(UNLABELLED, ())
        question, answer = next(rows[0].columns for rows in self._rows.values() if rows)
        notes: list[str] = []
        if unanswered:
            answered = self.size("train")
            others = f"; {answered} of those with one are for training" if answered else ""
            notes.append(f"{len(unanswered)} problems have no answer{others}")
        if (question, answer) not in (("question", "answer"), ("question", ""), self._columns):
            notes.append(f"the question is read from {question!r}, the answer from {answer or 'none'!r}")
        return [f"note: {self.path}: {note}" for note in [*notes, *self._file_notes(), *self._column_notes()]]

    def _file_notes(self) -> list[str]:
        """How many rows are left out; and what belongs to no split and is not read: files of a directory, or splits of
        a data set of the Hub."""
        notes = []
        if self.left_out:
            all_rows = sum(map(len, self._rows.values())) + self.left_out
            notes.append(f"left out, as they ask a question of another split: {self.left_out} of {all_rows} rows")
        return [*notes, *self._unread_files()]

    def _unread_files(self) -> list[str]:
        if self._unread_splits:
            counts = ", ".join(f"{split} ({count_of(rows, 'row')})" for split, rows in self._unread_splits.items())
            return [f"splits not read: {counts}"]
        folder = Path(self.path)
        if is_hub_name(self.path) or not folder.is_dir():
            return []
        read = set[Path]().union(*_files_of_splits(folder).values())
        place = files_in(folder)[0].parent  # the directory, or its folder data
        others: dict[str, list[Path]] = {}  # part of a data set, or a folder → its files
        for file in [*files_in(folder), *_files_of_other_folders(folder, place)]:
            name = split_named_by(file) if file.parent == place else f"{file.parent.name}/"
            if file not in read:
                others.setdefault(name, []).append(file)

        texts = []
        for name, files in others.items():
            if len(files) == 1 and not name.endswith("/"):
                texts.append(files[0].name)
            else:
                texts.append(f"{name} ({count_of(len(files), 'file')})")
        return [f"files not read: {', '.join(texts)}"] if texts else []

    def _column_notes(self) -> list[str]:
        """Notes on the other columns: system texts that are put in front of questions, worked solutions, and columns
        that are not read."""
        rows: list[Row] = []
        for of_split in self._rows.values():
            rows += of_split
        notes = []
        with_system = sum(bool(row.system) for row in rows)
        if with_system:
            notes.append(f"a system text is asked in front of the question in {with_system} of {len(rows)} rows")
        solved = solution_note([row.solution_column for row in rows])
        if solved:
            notes.append(solved)
        unread = columns_note(count_columns(row.unread for row in rows))
        if unread:
            notes.append(unread)
        return notes

    def get(self, split: str, index: int) -> Task:
        """Row ``index`` of a split. Raises UnknownName, and IndexError outside of 0 <= index < size."""
        rows = self._rows_in(split)
        if not 0 <= index < len(rows):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {len(rows)}")
        return self._task_of(rows[index], f"{self.name}/{split}/{index}")

    def size(self, split: str) -> int:
        return len(self._rows_in(split))

    def describe(self) -> dict[str, Any]:
        """``JsonlTasks(**source.describe()["settings"])`` is this source, as long as the file is the same."""
        question, answer = self._columns
        workers, deadline_s = self._limits
        settings = {
            "path": self.path,
            "question": question,
            "answer": answer,
            "name": self.name,
            "workers": workers,
            "deadline_s": deadline_s,
            "digest": self._digest,
        }
        if self._lenient:
            settings["lenient"] = True
        if self._unanswered:
            settings["unanswered"] = True
        return {"kind": "jsonl", "settings": settings}

    def close(self) -> None:
        """End the grading processes."""
        self.grader.close()

    def _reader(self) -> RowReader:
        return row_reader(*self._columns, self._unanswered)

    def _task_of(self, row: Row, task_id: str) -> Task:
        return task_of(row, task_id, self.grader)

    def _rows_in(self, split: str) -> tuple[Row, ...]:
        if split not in self._rows:
            raise UnknownName("split", split, self._rows)
        return self._rows[split]

    def _arrange_splits(self, parts: Mapping[str, list[Row]]) -> dict[str, tuple[Row, ...]]:
        """The rows in three splits; what is left out is counted."""
        arranged = arrange_splits(parts, _question_of)
        self.left_out = sum(map(len, parts.values())) - sum(map(len, arranged.values()))
        return arranged

    def _keep_paraphrases_apart(self) -> None:
        """Leave out training rows that ask a held-out question, or of which a paraphrase does."""
        held_out = {normal_question(row.question) for row in (*self._rows["validation"], *self._rows["test"])}

        def asks_held_out(row: Row) -> bool:
            wordings = (row.question, *row.paraphrases)
            return any(normal_question(wording) in held_out for wording in wordings)

        for split in ("train", UNLABELLED):
            rows = self._rows.get(split)
            if rows is None:
                continue
            self._rows[split] = tuple(row for row in rows if not asks_held_out(row))
            self.left_out += len(rows) - len(self._rows[split])


def benchmark_tasks(name: str, path: str | Path, *, lenient: bool = False, unanswered: bool = False) -> JsonlTasks:
    """A benchmark of ``SCHEMAS`` from a file, a directory or the Hub. Raises UnknownName, DataError."""
    schema = schema_of(name)
    return JsonlTasks(path, schema.question, schema.answer, name=name, lenient=lenient, unanswered=unanswered)


def task_of(row: Row, task_id: str, grader: AnswerGrader) -> Task:
    """One row as a task."""
    return Task(
        id=task_id,
        prompt=row.prompt,
        gold=row.answer,
        solution=row.solution,
        difficulty=0.0,
        grader=grader,
        paraphrases=tuple(with_system_text(row.system, text) for text in row.paraphrases),
        labelled=row.answer is not None,
        gradable=row.answer is not None,
    )


def read_splits(
    path: str, reader: RowReader, aside: Quarantine | None = None, unread: dict[str, int] | None = None
) -> dict[str, list[Row]]:
    """Return the rows at ``path`` (a file, a directory, a name on the Hub) by split: one part under any name, or
    "train", "test" and, where there is one, "validation". ``unread`` is filled with the other splits of a data set of
    the Hub, and how many rows each has. Raises DataError, see ``read_rows``."""
    if is_hub_name(path):
        hub_splits = hub_rows(path)
        parts = _splits_of_hub(path, hub_splits)
        if unread is not None:
            read = [id(rows) for rows in parts.values()]
            unread.update({split: len(rows) for split, rows in hub_splits.items() if id(rows) not in read})
        parsed = {}
        for split, rows in parts.items():
            located = [(f"{path}, {split}, row {n}", row) for n, row in enumerate(rows, start=1)]
            parsed[split] = parse_rows(located, reader.read, aside)
        return parsed

    folder = Path(path)
    if not folder.is_dir():
        return {"all": read_rows(folder, reader, aside)}
    rows_by_split: dict[str, list[Row]] = {}
    for split, files in _files_of_splits(folder).items():
        rows_by_split[split] = []
        for file in files:
            rows_by_split[split] += read_rows(file, reader, aside)
    return rows_by_split


def _splits_of_hub(path: str, hub_splits: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The splits that are read of a data set of the Hub. Raises DataError where it has several, and not train and
    test."""
    parts = _preferred_file(hub_splits)
    if len(parts) == 1:
        return parts
    if {"train", "test"} <= parts.keys():
        return {split: parts[split] for split in SPLITS if split in parts}
    raise DataError(
        f"{path}: expected one split, or train and test; it has {', '.join(parts) or 'none'}", code="E_SPLITS_MISSING"
    )


def _files_of_other_folders(folder: Path, place: Path) -> list[Path]:
    """The files of rows in the folders of a directory other than ``place``, such as further configurations."""
    files: list[Path] = []
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and inner != place:
            files += [file for file in sorted(inner.iterdir()) if file.is_file() and has_rows(file)]
    return files


def _files_of_splits(folder: Path) -> dict[str, list[Path]]:
    """The files of each split in a directory: of train and test, and perhaps validation, or of the one split that a
    snapshot of the Hub has. Raises DataError for another directory."""
    parts = _preferred_file(files_by_split(folder))
    if {"train", "test"} <= parts.keys():
        return {split: parts[split] for split in SPLITS if split in parts}
    names = [file.name for files in parts.values() for file in files]
    if len(parts) == 1 and split_named_by(Path(names[0])) != names[0].partition(".")[0]:  # numbered, as on the Hub
        return parts
    below = [inner.name for inner in sorted(folder.iterdir()) if inner.is_dir() and files_in(inner)]
    hint = f"; name one of its folders, such as {folder / below[0]}" if below and not parts else ""
    raise DataError(
        f"{folder}: a data directory needs train.jsonl and test.jsonl; it has {names or 'neither'}{hint}",
        code="E_SPLITS_MISSING",
    )


def _preferred_file(parts: Mapping[str, T]) -> dict[str, T]:
    """The parts of a data set; where some are called train_prefs, those alone, as train."""
    preferences = {name.removesuffix("_prefs"): part for name, part in parts.items() if name.endswith("_prefs")}
    return preferences or dict(parts)


def arrange_splits(parts: Mapping[str, Sequence[T]], question: Callable[[T], str]) -> dict[str, tuple[T, ...]]:
    """Rows in three splits that share no question: cut by a hash of it where there is one part only, else kept apart as
    they are, "train" and "test" and perhaps "validation", without the training rows that ask a held-out question."""
    if len(parts) == 1:
        (rows,) = parts.values()
        places = cut_into_splits([question(row) for row in rows])
        splits: dict[str, list[T]] = {split: [] for split in SPLITS}
        for row, place in zip(rows, places, strict=True):
            splits[place].append(row)
        return {split: tuple(rows) for split, rows in splits.items()}

    test = {normal_question(question(row)) for row in parts["test"]}
    if "validation" in parts:
        held_out = test | {normal_question(question(row)) for row in parts["validation"]}
        validation = [row for row in parts["validation"] if normal_question(question(row)) not in test]
        train = [row for row in parts["train"] if normal_question(question(row)) not in held_out]
    else:
        not_in_test = [row for row in parts["train"] if normal_question(question(row)) not in test]
        places = cut_into_splits([question(row) for row in not_in_test])
        validation = [row for row, place in zip(not_in_test, places, strict=True) if place == "validation"]
        train = [row for row, place in zip(not_in_test, places, strict=True) if place != "validation"]
    return {"train": tuple(train), "validation": tuple(validation), "test": tuple(parts["test"])}


def _question_of(row: Row) -> str:
    return row.question


def split_of(question: str) -> str:
    """The split of a question: 8 of 10 hash buckets are train, one is validation, one is test."""
    bucket = seed_of("split", normal_question(question)) % 10
    if bucket == 9:
        return "test"
    if bucket == 8:
        return "validation"
    return "train"


def cut_into_splits(questions: Sequence[str]) -> list[str]:
    """The split of each question, in their order; the same question is always in one.

    Of at least ``FEW_QUESTIONS`` different ones each is where its hash says. Of fewer exactly a tenth is test and a
    tenth validation, rounded, with a test question wherever there are two and a validation question wherever there are
    three: those that the hash would put there come first.
    """
    different = {normal_question(question) for question in questions}
    if len(different) >= FEW_QUESTIONS:
        return [split_of(question) for question in questions]

    by_hash = sorted(different, key=_place_in_hash)
    tenth = max(1, round(len(by_hash) / 10))
    tested = tenth if len(by_hash) >= 2 else 0
    validated = tenth if len(by_hash) >= 3 else 0
    split_of_question = dict.fromkeys(by_hash, "train")
    split_of_question |= dict.fromkeys(by_hash[:tested], "test")
    split_of_question |= dict.fromkeys(by_hash[tested : tested + validated], "validation")
    return [split_of_question[normal_question(question)] for question in questions]


def _place_in_hash(question: str) -> tuple[int, int, str]:
    """The test bucket first, then the one for validation, then those for training."""
    number = seed_of("split", question)
    return -(number % 10), number, question


def _digest_of(rows: dict[str, tuple[Row, ...]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for split, of_split in rows.items():
        for row in of_split:
            digest.update(json.dumps([split, *row.content]).encode())
    return digest.hexdigest()
