"""Problems from a local JSON-lines file: one object a line with a question and an answer.

Accepted rows: ``{"question": …, "answer": …}``, ``{"problem": …, "answer": …}``, and GSM8K's, whose answer is worked
text that ends in ``#### N``. Other names are given as ``question=`` and ``answer=``. A column ``paraphrase``, a string or a
list of strings, puts the same question in other words. Further columns are ignored.

One file is cut into splits by a hash of each question: 80 % train, 10 % validation, 10 % test. So a split never depends
on the order of rows, rows added later move nothing, and a question that occurs twice lies in one split. A directory
with ``train.jsonl`` and ``test.jsonl`` keeps its own test split; validation is cut from train, unless there is a
``validation.jsonl``. Training rows that ask a held-out question, be it in a paraphrase, are left out and counted.

Every malformed row is an error with its file, row and column; nothing is skipped. Left out: downloading, compressed
files, and step labels (``judge_steps`` is None: there is no oracle).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cotrain.core.address import seed_of
from cotrain.core.errors import DataError, UnknownName
from cotrain.core.types import Grade, StepJudgement, Task
from cotrain.tasks.grading import GradingPool
from cotrain.text.parsers import final_answer, write_solution

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem of a file."""

    question: str
    answer: str  # the gold answer alone
    solution: str | None  # worked text in step tags, from GSM8K's format
    paraphrases: tuple[str, ...] = ()


class JsonlTasks:
    """A task source over a file or a directory of ``.jsonl`` files, read and checked whole when it is built.

    ``left_out``: training rows dropped because they ask a validation or test question.
    ``digest`` (from ``describe``) makes a changed file an error. Raises DataError, see ``read_rows``.
    """

    def __init__(
        self,
        path: str | Path,
        question: str = "question",
        answer: str = "answer",
        name: str = "jsonl",
        workers: int = 1,
        deadline_s: float = 5.0,
        digest: str | None = None,
    ) -> None:
        self.name = name
        self.path = Path(path).expanduser().resolve()
        self._columns = (question, answer)
        self._pool = GradingPool(workers=workers, deadline_s=deadline_s)
        self._limits = (workers, deadline_s)
        self.left_out = 0
        self._rows = self._read_directory() if self.path.is_dir() else self._cut(read_rows(self.path, question, answer))
        self._keep_paraphrases_apart()
        if not self._rows["train"]:
            raise DataError(f"{self.path}: too few questions, none falls into the training split; give at least 20")
        self._digest = _digest_of(self._rows)
        if digest is not None and digest != self._digest:
            raise DataError(
                f"{self.path}: its rows have changed since they were recorded; restore the file, or start anew"
            )

    def get(self, split: str, index: int) -> Task:
        """Row ``index`` of a split. Raises UnknownName, and IndexError outside of 0 <= index < size."""
        rows = self._split(split)
        if not 0 <= index < len(rows):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {len(rows)}")
        row = rows[index]
        return Task(
            id=f"{self.name}/{split}/{index}",
            prompt=row.question,
            answer=row.answer,
            solution=row.solution,
            difficulty=0.0,
            judge=self,
            paraphrases=row.paraphrases,
        )

    def size(self, split: str) -> int:
        return len(self._split(split))

    def describe(self) -> dict[str, Any]:
        """``JsonlTasks(**source.describe()["settings"])`` is this source, as long as the file is the same."""
        question, answer = self._columns
        workers, deadline_s = self._limits
        settings = {"path": str(self.path), "question": question, "answer": answer, "name": self.name}
        return {
            "kind": "jsonl",
            "settings": {**settings, "workers": workers, "deadline_s": deadline_s, "digest": self._digest},
        }

    def grade(self, task: Task, text: str) -> Grade:
        """Compare the answer that a text ends on (``parsers.final_answer``) with the gold one; no answer is False."""
        assert task.answer is not None
        answer = final_answer(text)
        return Grade(value=False) if answer is None else self._pool.grade(task.answer, answer)

    def judge_steps(self, task: Task, steps: tuple[str, ...]) -> StepJudgement | None:
        """None: such files say nothing about steps."""
        return None

    def close(self) -> None:
        """End the grading processes."""
        self._pool.close()

    def _split(self, split: str) -> tuple[Row, ...]:
        if split not in self._rows:
            raise UnknownName("split", split, self._rows)
        return self._rows[split]

    def _cut(self, rows: Iterable[Row]) -> dict[str, tuple[Row, ...]]:
        cut: dict[str, list[Row]] = {split: [] for split in SPLITS}
        for row in rows:
            cut[split_of(row.question)].append(row)
        return {split: tuple(rows) for split, rows in cut.items()}

    def _keep_paraphrases_apart(self) -> None:
        """Leave out training rows of which a paraphrase is a held-out question."""
        held_out = {normal(row.question) for split in ("validation", "test") for row in self._rows[split]}
        train = self._rows["train"]
        self._rows["train"] = tuple(r for r in train if held_out.isdisjoint(map(normal, r.paraphrases)))
        self.left_out += len(train) - len(self._rows["train"])

    def _read_directory(self) -> dict[str, tuple[Row, ...]]:
        files = {split: self.path / f"{split}.jsonl" for split in SPLITS}
        found = sorted(p.name for p in self.path.glob("*.jsonl"))
        for split in ("train", "test"):
            if not files[split].is_file():
                raise DataError(
                    f"{self.path}: a data directory needs train.jsonl and test.jsonl; it has {found or 'neither'}"
                )
        read = {split: read_rows(file, *self._columns) for split, file in files.items() if file.is_file()}
        test = {normal(row.question) for row in read["test"]}
        if "validation" in read:
            held_out = test | {normal(row.question) for row in read["validation"]}
            validation = [row for row in read["validation"] if normal(row.question) not in test]
            train = [row for row in read["train"] if normal(row.question) not in held_out]
        else:
            kept = [row for row in read["train"] if normal(row.question) not in test]
            validation = [row for row in kept if split_of(row.question) == "validation"]
            train = [row for row in kept if split_of(row.question) != "validation"]
        self.left_out = sum(map(len, read.values())) - len(train) - len(validation) - len(read["test"])
        return {"train": tuple(train), "validation": tuple(validation), "test": tuple(read["test"])}


def gsm8k(path: str | Path) -> JsonlTasks:
    """GSM8K (arXiv 2110.14168) from a file or directory in its published format."""
    return JsonlTasks(path, name="gsm8k")


def normal(question: str) -> str:
    """A question up to case and whitespace: what counts as the same question."""
    return " ".join(question.split()).casefold()


def split_of(question: str) -> str:
    """The split of a question: 8 of 10 hash buckets are train, one is validation, one is test."""
    bucket = seed_of("split", normal(question)) % 10
    return "train" if bucket < 8 else "validation" if bucket == 8 else "test"


# -- reading


def read_rows(path: Path, question: str, answer: str) -> list[Row]:
    """Read and check a file. Blank lines are allowed, and so is a byte order mark.

    Raises DataError with file, row (counted from 1) and, for broken JSON, column: no such file, not a file, empty, not
    UTF-8, a NUL, broken JSON, a row that is no object, a field that is missing or of the wrong type.
    """
    if not path.exists():
        near = (
            get_close_matches(path.name, [p.name for p in path.parent.glob("*")], n=1) if path.parent.is_dir() else []
        )
        raise DataError(f"{path}: no such file or directory" + (f"; did you mean {near[0]!r}?" if near else ""))
    if not path.is_file():
        raise DataError(f"{path}: not a regular file; expected JSON lines, one object a line")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    rows = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            rows.append(_row(_object(line, path, number), (question, answer), path, number))
    if not rows:
        raise DataError(f"{path}: no rows; expected JSON lines with the fields {question!r} and {answer!r}")
    return rows


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    where = f"{path}, row {number}"
    if b"\x00" in line or line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{where}, column {max(line.find(0), 0) + 1}: a NUL byte; save the file as UTF-8, not UTF-16")
    try:
        row = json.loads(line.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}, column {error.start + 1}: not UTF-8; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}, column {error.colno}: broken JSON ({error.msg}); expected one object on one line"
        ) from error
    except RecursionError as error:
        raise DataError(f"{where}: JSON nested too deeply; expected a flat object") from error
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f'{where}: expected an object such as {{"question": …}}, found {_kind(row)}')
    return row


def _row(row: dict[str, Any], columns: tuple[str, str], path: Path, number: int) -> Row:
    question_column, answer_column = columns
    if question_column == "question" and "question" not in row and "problem" in row:
        question_column = "problem"
    where = f"{path}, row {number}"
    for column in (question_column, answer_column):
        if column not in row:
            near = get_close_matches(column, row, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{where}: no field {column!r}{hint} (there are: {', '.join(map(repr, row)) or 'none'})")
    question = _text(row[question_column], f"{where}, field {question_column!r}", numbers=False)
    answer = _text(row[answer_column], f"{where}, field {answer_column!r}", numbers=True)
    paraphrases = _paraphrases(row, question, f"{where}, field 'paraphrase'")
    work, mark, gold = answer.rpartition("####")
    if not mark:
        return Row(question=question, answer=answer.strip(), solution=None, paraphrases=paraphrases)
    gold = gold.strip().replace(",", "")
    if not gold:
        raise DataError(
            f"{where}, field {answer_column!r}: nothing after the last '####'; expected the final answer there"
        )
    lines = [line for line in (without_calculator(line).strip() for line in work.split("\n")) if line]
    solution = write_solution(lines, gold) if lines else None
    return Row(question=question, answer=gold, solution=solution, paraphrases=paraphrases)


def _paraphrases(row: dict[str, Any], question: str, where: str) -> tuple[str, ...]:
    """The optional column ``paraphrase``, without those that repeat the question."""
    given = row.get("paraphrase", [])
    if not isinstance(given, str | list):
        raise DataError(
            f"{where}: expected text or a list of texts, found {_kind(given)}; leave it out where there is none"
        )
    texts = [_text(text, where, numbers=False) for text in ([given] if isinstance(given, str) else given)]
    return tuple(text for text in texts if normal(text) != normal(question))


def without_calculator(line: str) -> str:
    """A line of GSM8K's worked text without its calculator marks: "48/2 = <<48/2=24>>24" → "48/2 = 24"."""
    kept, at = [], 0
    while (start := line.find("<<", at)) >= 0 and (end := line.find(">>", start)) >= 0:
        kept.append(line[at:start])
        at = end + 2
    return "".join(kept) + line[at:]


def _text(value: Any, where: str, *, numbers: bool) -> str:
    if numbers and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: expected text{' or a number' if numbers else ''}, found {_kind(value)}")
    if not value.strip():
        raise DataError(f"{where}: expected text, found a blank string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}, character {error.start + 1}: half of a surrogate pair, which is no text") from error
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"field {next(n for n in names if names.count(n) > 1)!r} twice in one object; keep one of them"
        )
    return row


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON; write a number or null")


def _digest_of(rows: dict[str, tuple[Row, ...]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for split in SPLITS:
        for row in rows[split]:
            digest.update(json.dumps([split, row.question, row.answer, *row.paraphrases]).encode())
    return digest.hexdigest()
