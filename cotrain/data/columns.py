r"""Rows of question and answer: the columns of public benchmarks, and a row of them with every fault named.

::

    math500        problem → question                answer → answer
    svamp          Body + Question, joined           Answer
    olympiadbench  question                          final_answer, a list

``SCHEMAS`` says for each benchmark which columns hold what, in the public release and in the common copies. Columns are
written as text: ``a|b`` is the first of the two that a row has, ``a+b`` both with a space between, ``a[]`` a list of
texts, joined by commas, ``a.b`` the field b of an object a, as in veRL's ``reward_model.ground_truth``, and
``~question`` the first usual name of a question in any spelling (``Ground Truth`` is ``ground_truth``). A question may
be the messages of a conversation with one question of a user, as TRL has them. An answer may be worked text: behind its
thought, what stands in ``<answer>…</answer>``, else N of ``#### N``, as GSM8K has it, else that of the last
``\boxed{N}``.

Every malformed row is an error with its file, row and column; ``malformed_rows.py`` has whole files. A column
``paraphrase``, a string or a list of strings, puts the same question in other words. A system text, in a column of its
own or in the prompt's messages, is said before the question. Other columns are refused or counted
(``unread_columns.py``). Parquet files have the same rows (``parquet.py``). So have ``.csv`` files with a header, and
``.json`` files of one array; all but parquet may end in ``.gz``, and capitals in an ending are as small letters. Left
out: tolerances and units.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from cotrain.core.errors import DataError, UnknownName, nearest_file, nearest_name
from cotrain.core.input_files import MOST_ROW, MOST_WHOLE, lines_of_file, text_of_file
from cotrain.data.parquet import ENDING, parquet_rows
from cotrain.data.unread_columns import (
    check_lost_parts,
    has_content,
    is_system,
    is_word_character,
    plain_spelling,
    system_text,
    unread_columns,
)
from cotrain.formats.answers import first_line, last_boxed
from cotrain.formats.solutions import behind_thoughts, blocks_of, write_solution
from cotrain.grading.notation import without_separators

MOST_WORDS = 12  # words of an answer in a column called a solution; longer ones are worked texts
BOM = b"\xef\xbb\xbf"
PACKED = {  # how files begin that are no text, and what to do with them
    b"\x1f\x8b": "packed by gzip; give the file a name that ends in .gz",
    b"BZh": "packed by bzip2; unpack it, or pack it by gzip",
    b"\xfd7zXZ": "packed by xz; unpack it, or pack it by gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it, or pack it by gzip",
    b"PK\x03\x04": "a ZIP archive, as sheets are; unpack it, or save a sheet as CSV",
    b"PAR1": "parquet; give the file a name that ends in .parquet",
}
DATA_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ENDING)  # endings of files of rows
JSON_LINES = (".jsonl", ".ndjson", ".jl")
FORMATS = {ENDING: "parquet", ".csv": "CSV with a header", ".json": "one JSON array of objects"}
_SHARD = re.compile(r"(?P<part>.+?)-(?P<number>\d{5})-of-(?P<count>\d{5})(?:-[0-9a-f]+)?")  # as the Hub numbers files
Line = bytes | dict[str, Any]  # a line as it stands in a file, or an object that was read already (parquet, the Hub)


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a benchmark with the question and the gold answer, and the place of its public release."""

    question: str
    answer: str
    hub: str = ""  # "owner/name" or "owner/name:config"


USUAL_NAMES = {  # what a column is usually called, without capitals, spaces and strokes; the first that is there
    "~question": ("question", "problem", "prompt", "query", "input", "problemstatement", "questiontext"),
    "~answer": (
        *("answer", "finalanswer", "expectedanswer", "correctanswer", "groundtruth", "goldanswer", "gold", "target"),
        *("reference", "referenceanswer", "solution", "result"),
    ),
}
ANY = Schema(  # whatever a file may call them
    "question_concat|Body+Question|body+question|question|problem|~question",
    "answer|Answer|final_answer[]|~answer|reward_model.ground_truth",
)
ALPACA = ("instruction", "input")  # a question in two parts, of which one may be empty
SCHEMAS = {
    "jsonl": ANY,
    "gsm8k": Schema("question|problem", "answer", "openai/gsm8k:main"),
    "gsm-plus": Schema("question", "answer", "qintongli/GSM-Plus"),
    "gsm-symbolic": Schema("question", "answer", "apple/GSM-Symbolic:main"),
    "svamp": Schema("question_concat|Body+Question|body+question|question", "Answer|answer|result", "ChilleD/SVAMP"),
    "asdiv": Schema("body+question|question", "answer", "EleutherAI/asdiv"),
    "mawps": Schema("question|input", "answer|result|target", "MU-NLPC/Calc-mawps"),
    "math500": Schema("problem|question", "answer", "HuggingFaceH4/MATH-500"),
    "aime": Schema("problem|question|Problem", "answer|Answer", "HuggingFaceH4/aime_2024"),
    "amc": Schema("problem|question", "answer", "math-ai/amc23"),
    "olympiadbench": Schema("problem|question", "answer|final_answer[]", "Hothan/OlympiadBench:OE_TO_maths_en_COMP"),
    "minerva": Schema("problem|question", "answer", "math-ai/minervamath"),
}


def schema_of(name: str) -> Schema:
    """Raises UnknownName for a benchmark that ``SCHEMAS`` does not have."""
    if name not in SCHEMAS:
        raise UnknownName("benchmark", name, SCHEMAS)
    return SCHEMAS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem of a file."""

    question: str
    answer: str | None  # the gold answer alone; None where the row has none and need not
    solution: str | None  # worked text in step tags, from GSM8K's format
    paraphrases: tuple[str, ...] = ()
    system: str = ""  # a text that is said before the question
    columns: tuple[str, str] = field(default=("", ""), compare=False)  # that question and answer were read from
    unread: tuple[str, ...] = field(default=(), compare=False)  # columns that have a value and were not read

    @property
    def content(self) -> list[Any]:
        """The values that must not change while a run goes on."""
        system = [self.system] if self.system else []
        return [*system, self.question, self.answer, *self.paraphrases]

    @property
    def prompt(self) -> str:
        """The question with the system text in front of it: what a role is asked."""
        return behind_system(self.system, self.question)


def behind_system(system: str, question: str) -> str:
    """A question as it is asked where a system text belongs to it."""
    return f"{system}\n\n{question}" if system else question


_KEPT = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>", "<vertical>")  # x² is not x2
_UNSEEN = frozenset(map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164, 0xFFA0)))
_UNSEEN |= frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))  # which glyph is drawn


def one_form(text: str) -> str:
    """A text in one of the forms in which Unicode may write it: letters with their accents as one sign, wide and
    no-break signs as plain ones, and nothing that is not seen, such as zero-width spaces. Raised and lowered digits
    stay what they are."""
    if text.isascii():
        return text
    plain = "".join(map(_plain_form, unicodedata.normalize("NFC", text)))
    return unicodedata.normalize("NFC", plain)


@lru_cache(maxsize=1 << 14)
def _plain_form(sign: str) -> str:
    if unicodedata.category(sign) == "Cf" or sign in _UNSEEN:
        return ""
    if unicodedata.decomposition(sign).startswith(_KEPT):
        return sign
    return unicodedata.normalize("NFKC", sign)


def normal_question(question: str) -> str:
    """A question up to case, whitespace and forms of Unicode (``one_form``): what counts as the same question when
    splits are kept apart."""
    folded = " ".join(one_form(question).split()).casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


def words_in(text: str) -> tuple[str, ...]:
    """The words of a text, without the characters between them."""
    letters = [letter if is_word_character(letter) else " " for letter in text]
    return tuple("".join(letters).split())


def lines_of(path: Path) -> Iterator[tuple[int, Line]]:
    """The lines of a file that are not blank, each with its number, for ``object_of``; of parquet the rows themselves.

    Raises DataError for a file that cannot be read, UserError for parquet without pyarrow.
    """
    if not os.path.lexists(path):
        folder = path.parent
        near = nearest_file(path.name, os.listdir(folder)) if os.path.isdir(folder) else None
        raise DataError(
            f"{path}: no such file or directory" + (f"; did you mean {near!r}?" if near else ""),
            code="E_DATA_FILE_MISSING",
        )
    if not os.path.isfile(path):
        inside = files_in(path) if os.path.isdir(path) else []
        if inside:
            raise DataError(
                f"{path}: a directory; name one of its files, such as {inside[0]}", code="E_DATA_IS_DIRECTORY"
            )
        kind = "a directory" if os.path.isdir(path) else "not a regular file, or no file there"
        raise DataError(f"{path}: {kind}; expected a file of {format_of(path)}", code="E_DATA_FILE_KIND")
    ending = _file_ending(path)
    if ending == ENDING:
        yield from parquet_rows(path)
    elif ending == ".csv":
        yield from _csv_rows(path)
    elif ending == ".json":
        yield from _json_array_rows(path)
    else:
        lines = lines_of_file(path)
        for number, line in enumerate(lines, start=1):
            if number == 1 and ending not in (*JSON_LINES, ""):
                _check_begins_as_rows(path, ending, line)
            row = (line.removeprefix(BOM) if number == 1 else line).removesuffix(b"\n")
            if row.strip():
                yield number, row


def _check_begins_as_rows(path: Path, ending: str, line: bytes) -> None:
    """Raise DataError for a file of another kind, such as .md, which does not begin as JSON lines do either."""
    begin = line.removeprefix(BOM).lstrip()
    has_own_advice = begin.startswith((*PACKED, b"\xff\xfe", b"\xfe\xff"))
    if begin and not begin.startswith(b"{") and not has_own_advice:
        raise DataError(
            f"{path}: not a data file ({ending}); expected JSON lines (.jsonl), a JSON array (.json), CSV with a "
            "header (.csv), or parquet",
            code="E_DATA_FILE_KIND",
        )


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of CSV with a header; an empty cell is a field that the row does not have."""
    size = at = 0  # bytes of this row so far, and in front of this line

    def lines() -> Iterator[str]:
        nonlocal size, at
        for line in lines_of_file(path):
            size += len(line)
            if size > MOST_ROW:
                raise DataError(
                    f"{path}: a row of more than {MOST_ROW} bytes; shorten it, or close the quote that is open",
                    code="E_ROW_TOO_LARGE",
                )
            if b"\x00" in line:
                raise DataError(
                    f"{path}: a NUL at byte {at + line.index(0)}; save the file as UTF-8", code="E_NUL_BYTE"
                )
            text = (line.removeprefix(BOM) if at == 0 else line).decode("utf-8")
            at += len(line)
            yield from io.StringIO(text, newline="") if "\r" in text else (text,)

    csv.field_size_limit(MOST_ROW)  # for the whole process; the usual 131,072 is less than a worked text may have
    table = csv.DictReader(lines(), strict=True)
    try:
        names = table.fieldnames or ()
        for name, count in Counter(names).items():
            if name and count > 1:
                raise DataError(f"{path}: two columns are called {name!r}; rename one", code="E_TWO_COLUMNS_ALIKE")
        if len(names) == 1:
            for sign in ";\t|":
                if sign in names[0]:
                    raise DataError(
                        f"{path}: its columns are parted by {sign!r}; save it with commas", code="E_CSV_DELIMITER"
                    )
        size = 0
        for number, row in enumerate(table, start=1):
            if None in row:
                raise DataError(
                    f"{path}, row {number}: more cells than the header has names", code="E_ROW_TOO_MANY_CELLS"
                )
            yield number, {name: value for name, value in row.items() if value not in (None, "")}
            size = 0
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {at + error.start}; save the file as UTF-8", code="E_TEXT_ENCODING"
        ) from error
    except csv.Error as error:
        raise DataError(
            f"{path}: cannot be read ({error}); expected {format_of(path)}", code="E_DATA_UNREADABLE"
        ) from error


def _json_array_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of one JSON array."""
    text = text_of_file(path, MOST_WHOLE)
    try:
        rows = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); expected {format_of(path)}", code="E_DATA_UNREADABLE"
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(
            f"{path}: expected one JSON array of objects; a file with an object a line ends in .jsonl",
            code="E_DATA_NOT_ARRAY",
        )
    yield from enumerate(rows, start=1)


def _file_ending(path: Path) -> str:
    """The ending of a file's name, in small letters and without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def files_in(folder: Path) -> list[Path]:
    """The files of rows in a directory, by name; those of its folder ``data`` where it has none itself, as snapshots of
    the Hub are. Other ``.json`` files than splits describe a data set."""
    files = sorted(file for file in folder.iterdir() if has_rows(file))
    inside = folder / "data"
    return files if files or not inside.is_dir() else sorted(file for file in inside.iterdir() if has_rows(file))


def has_rows(file: Path) -> bool:
    ending = _file_ending(file)
    return ending in (".jsonl", ".csv", ENDING) or (
        ending == ".json" and part_of(file) in ("train", "validation", "test")
    )


def part_of(file: Path) -> str:
    """The part of a data set that a file holds, by its name: "train" for train.jsonl.gz and for
    train-00000-of-00002.parquet, "validation" also for dev.jsonl."""
    shard = _SHARD.fullmatch(_stem_of(file))
    name = shard["part"] if shard else _stem_of(file)
    return "validation" if name in ("valid", "val", "dev") else name


def _stem_of(file: Path) -> str:
    """A file's name without its endings."""
    name = file.name[:-3] if file.name.lower().endswith(".gz") else file.name
    return Path(name).stem


def files_by_part(folder: Path) -> dict[str, list[Path]]:
    """The files of each part of a data set in a directory. Raises DataError where a part has a file twice, in two
    formats, or not all of its numbered ones."""
    parts: dict[str, list[Path]] = {}
    for file in files_in(folder):
        parts.setdefault(part_of(file), []).append(file)
    for name, files in parts.items():
        numbers = [_SHARD.fullmatch(file.name.partition(".")[0]) for file in files]
        if len(files) > 1 and not all(numbers):
            raise DataError(
                f"{folder}: the split {name} is in {files[0].name} and in {files[1].name}; keep one of them",
                code="E_SPLIT_TWICE",
            )
        places = [(int(shard["number"]), int(shard["count"])) for shard in numbers if shard]
        if places and places != [(number, places[0][1]) for number in range(places[0][1])]:
            raise DataError(
                f"{folder}: of the split {name}, {', '.join(file.name for file in files)}; expected every one of "
                f"{places[0][1]} files, once",
                code="E_SPLIT_FILES_MISSING",
            )
    return parts


def format_of(path: Path) -> str:
    return FORMATS.get(_file_ending(path), "JSON lines")


def object_of(line: Line, where: str) -> dict[str, Any]:
    """The JSON object of a line; a row of parquet is one. Raises DataError that begins with ``where``."""
    if _size_above(line, MOST_ROW):
        raise DataError(
            f"{where}: more than {MOST_ROW} bytes in one row; shorten it, or part it into several rows",
            code="E_ROW_TOO_LARGE",
        )
    if isinstance(line, dict):
        return line
    if (begun := next((start for start in PACKED if line.startswith(start)), None)) is not None:
        raise DataError(f"{where}: {PACKED[begun]}", code="E_DATA_PACKED")
    if b"\x00" in line or line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{where}, column {max(line.find(0), 0) + 1}: a NUL byte; save the file as UTF-8, not UTF-16",
            code="E_NUL_BYTE",
        )
    try:
        row = json.loads(line.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}, column {error.start + 1}: not UTF-8; save the file as UTF-8", code="E_TEXT_ENCODING"
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}, column {error.colno}: broken JSON ({error.msg}); expected one object on one line",
            code="E_ROW_NOT_JSON",
        ) from error
    except RecursionError as error:
        raise DataError(f"{where}: JSON nested too deeply; expected a flat object", code="E_ROW_TOO_DEEP") from error
    except ValueError as error:
        raise DataError(f"{where}: {str(error).partition('; use sys')[0]}", code="E_ROW_NOT_JSON") from error
    if not isinstance(row, dict):
        raise DataError(
            f'{where}: expected an object such as {{"question": …}}, found {kind_of(row)}', code="E_ROW_NOT_OBJECT"
        )
    return row


def _size_above(line: Line, most: int) -> bool:
    """Whether a line, or the texts and values of an object, take more room than that."""
    if isinstance(line, bytes):
        return len(line) > most
    size = 0
    due = deque[Any]([line])
    while due and size <= most:
        value = due.popleft()
        if isinstance(value, str):
            size += len(value)
        else:
            size += 1
            due.extend(chain.from_iterable(value.items()) if isinstance(value, dict) else ())
            due.extend(value if isinstance(value, list) else ())
    return size > most


def row_of(row: dict[str, Any], question: str, answer: str, where: str, unanswered: bool = False) -> Row:
    """Question and answer of an object, by the columns that hold them; the answer may be missing, or null, where
    ``unanswered`` says so. Raises DataError that begins with ``where``."""
    _check_no_talk(row, question, answer, where)
    question_column, question_text = field_of(row, question, where, numbers=False)
    column = ""
    answer_text = None
    if _has_value(row, answer) or not unanswered:
        column, answer_text = field_of(row, answer, where, numbers=True)

    read = [*question_column.split("+"), *_all_names(row, question), *_all_names(row, answer), "paraphrase"]
    unread = unread_columns(row, read)
    is_whole = "|" not in question or question_column == "question_concat"  # the user has said so, or the data set
    if not is_whole:
        check_lost_parts(row, read, where, flag=True)

    gold = None
    solution = None
    if answer_text is not None:
        gold, work = _gold_in(answer_text, column.rpartition(".")[2], f"{where}, field {column!r}")
        stripped = [without_calculator(line).strip() for line in work.split("\n")]
        lines = [line for line in stripped if line]
        solution = write_solution(lines, gold) if lines else None
    return Row(
        question=question_text,
        answer=gold,
        solution=solution,
        paraphrases=_read_paraphrases(row, question_text, f"{where}, field 'paraphrase'"),
        system=system_of(row, question_column, where),
        columns=(question_column, column),
        unread=tuple(name for name in unread if not is_system(name)),
    )


def system_of(row: Mapping[str, Any], asked: str, where: str) -> str:
    """The system text of a row: of a column of its own, or of the messages in the column ``asked``; "" for none.
    Raises DataError where there are two."""
    beside = "" if is_system(asked) else system_text(row, where)
    messages = value_at(row, asked)
    if not isinstance(messages, list):
        return beside
    said = [text_of(message["content"], where, numbers=False) for message in messages if message.get("role") != "user"]
    if len(said) > 1 or (said and beside and said[0] != beside):
        raise DataError(f"{where}, field {asked!r}: two system texts; keep one of them", code="E_TWO_SYSTEM_TEXTS")
    return said[0] if said else beside


def _gold_in(text: str, column: str, where: str) -> tuple[str, str]:
    """The answer that a text of this column is or ends on, and GSM8K's work in front of it; "" where there is none."""
    text = behind_thoughts(text) or ""
    if blocks := blocks_of(text, "answer"):
        work = ""
        gold = blocks[-1].text.strip()
    elif "####" in text:
        work, _, gold = text.rpartition("####")
        gold = without_separators(first_line(gold))
    elif "\\boxed" in text or "\\fbox" in text:
        work = ""
        gold = last_boxed(text) or ""
    else:
        work = ""
        gold = text.strip()
        if column.lower() == "solution" and len(gold.split()) > MOST_WORDS:
            raise DataError(
                f"{where}: a worked text without \\boxed{{…}} or ####; name the column that has the answer alone, as "
                "in --answer-column NAME",
                code="E_NO_FINAL_ANSWER",
            )
    if not gold:
        mark = next((repr(mark) for mark in ("<answer>", "####", "\\boxed") if mark in text), "thought")
        raise DataError(
            f"{where}: nothing after the last {mark}; expected the final answer there", code="E_MARK_WITHOUT_ANSWER"
        )
    return gold, work


TALK = {  # column → layout
    "messages": "messages",
    "conversations": "ShareGPT",
    "completion": "prompt and completion",
    "rejected": "chosen and rejected",
}
SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
SPEAKERS |= {"developer": "system"}  # as OpenAI calls it now


def _check_no_talk(row: dict[str, Any], question: str, answer: str, where: str) -> None:
    """Raise DataError for a row of worked text, as fine-tuning wants it, where problems with answers are expected."""
    column = next((name for name in TALK if name in row), None)
    if column is None or any(_names_in(row, choice) for choice in answer.split("|")):
        return
    wanted = [plain_name(columns) for columns in (question, answer)]
    how = (
        "worked solutions: `cotrain teach solver --data FILE`; conversations: `cotrain sft --data FILE`, or "
        "`cotrain run spin --tasks chats --data FILE`"
    )
    if column == "rejected":
        how = "preferences: `cotrain run dpo --data FILE`"
    raise DataError(
        f"{where}: the layout is {TALK[column]}; a run wants a problem and its answer alone, in the columns "
        f"{wanted[0]!r} and {wanted[1]!r}; to learn {how}",
        code="E_DATA_LAYOUT_NOT_PLAIN",
    )


def field_of(row: dict[str, Any], columns: str, where: str, *, numbers: bool) -> tuple[str, str]:
    """The columns that a row has of those in ``columns`` ("a|b", "a+b", "a[]", "a.b", "~question"), and their text."""
    for choice in columns.split("|"):
        if names := _names_in(row, choice):
            texts = [_column_text(row, name, where, numbers=numbers) for name in names]
            gap = "\n\n" if choice in USUAL_NAMES else " "
            return "+".join(names), gap.join(texts)

    first = plain_name(columns)
    guessed = next((name[1:] for name in USUAL_NAMES if name in columns), None)
    there = [*row, *_paths_in(row)]
    near = nearest_name(first, there) or next(iter(_usual_paths(row, guessed)), None)
    hint = f"; did you mean {near!r}?" if near else ""
    more = f"; name the column, as in --{guessed}-column {near or 'NAME'!r}" if guessed and row else ""
    if more and not near and guessed == "answer":
        more += (
            ", or with `cotrain run` say where answers are: --labelled answers (in some rows, or in none where a judge "
            "or a vote pays), --labelled FILE"
        )
    raise DataError(
        f"{where}: no field {first!r}{hint} (there are: {', '.join(map(repr, there)) or 'none'}){more}",
        code="E_FIELD_MISSING",
    )


def _paths_in(row: Mapping[str, Any]) -> list[str]:
    """The fields of the objects in a row, as "reward_model.ground_truth"."""
    objects = {name: value for name, value in row.items() if isinstance(value, Mapping)}
    return [path for name, value in objects.items() for path in _paths_below(name, value, 3)]


def _paths_below(path: str, value: Mapping[str, Any], depth: int) -> list[str]:
    paths: list[str] = []
    for name, inner in value.items():
        paths.append(f"{path}.{name}")
        if isinstance(inner, Mapping) and depth > 1:
            paths += _paths_below(f"{path}.{name}", inner, depth - 1)
    return paths


def _usual_paths(row: Mapping[str, Any], guessed: str | None) -> list[str]:
    """The fields inside of objects that are called as questions or answers usually are."""
    usual = USUAL_NAMES.get(f"~{guessed}", ())
    return [path for path in _paths_in(row) if plain_spelling(path.rpartition(".")[2]) in usual]


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column or, where no column has this name, of the field of an object: "a.b" is b of a. None
    where there is neither."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_there(row: Mapping[str, Any], name: str) -> bool:
    if name in row:
        return True
    parent, dot, field_name = name.rpartition(".")
    inside = value_at(row, parent) if dot else None
    return isinstance(inside, Mapping) and field_name in inside


def _names_in(row: Mapping[str, Any], choice: str) -> list[str]:
    """The columns that one choice of ``columns`` means in this row; none where it does not have them all."""
    if choice in USUAL_NAMES:
        spelled = {plain_spelling(name): name for name in [*row][::-1]}
        if choice == "~question" and "instruction" in spelled and not _usual_beside_input(spelled):
            return _parts_said(row, [spelled[part] for part in ALPACA if part in spelled])
        return next(([spelled[name]] for name in USUAL_NAMES[choice] if name in spelled), [])
    names = choice.split("+")
    return names if all(_is_there(row, name.removesuffix("[]")) for name in names) else []


def _usual_beside_input(spelled: Mapping[str, str]) -> bool:
    """Whether a row has a question under a usual name, so that "instruction" is none."""
    return any(name in spelled for name in USUAL_NAMES["~question"] if name != "input")


def _parts_said(row: Mapping[str, Any], parts: list[str]) -> list[str]:
    """The parts of a question that say something; where none does, the first, which is refused as blank."""
    return [name for name in parts if has_content(row[name])] or parts[:1]


def _all_names(row: Mapping[str, Any], columns: str) -> list[str]:
    """The columns that are read for ``columns``, without the marks of lists."""
    for choice in columns.split("|"):
        names = _names_in(row, choice)
        if names:
            return [name.removesuffix("[]") for name in names]
    return []


def _has_value(row: Mapping[str, Any], columns: str) -> bool:
    """Whether a row has one of these columns, and something in it."""
    for name in _all_names(row, columns):
        value = value_at(row, name)
        if isinstance(value, str):
            value = value.strip()
        if value not in (None, [], ""):
            return True
    return False


def plain_name(columns: str) -> str:
    """The name of the column in a sentence."""
    guessed = next((name[1:] for name in USUAL_NAMES if name in columns), None)
    return guessed or columns.split("|")[0].split("+")[0].removesuffix("[]")


def _column_text(row: dict[str, Any], name: str, where: str, *, numbers: bool) -> str:
    plain = name.removesuffix("[]")
    value = value_at(row, plain)
    where = f"{where}, field {plain!r}"
    if not numbers and isinstance(value, list):
        return _asked_in(value, where)
    if plain == name or not isinstance(value, list):
        return text_of(value, where, numbers=numbers)
    if not value:
        raise DataError(f"{where}: expected at least one text, found an empty list", code="E_TEXT_LIST_EMPTY")
    return ", ".join(text_of(one, where, numbers=numbers) for one in value)


def _asked_in(messages: list[Any], where: str) -> str:
    """The question of a conversation: what its one message of a user says."""
    texts = []
    for message in messages:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise DataError(
                f"{where}: expected text, or messages of {{role, content}}, found {kind_of(messages)}",
                code="E_FIELD_NOT_MESSAGES",
            )
        if message["role"] == "user":
            texts.append(message["content"])
        elif SPEAKERS.get(str(message["role"])) != "system":
            raise DataError(
                f"{where}: a message of {message['role']!r}, which is not asked; a problem is a user's alone",
                code="E_MESSAGE_ROLE",
            )
    if len(texts) != 1 or messages[-1].get("role") != "user":
        raise DataError(
            f"{where}: {len(texts)} messages of a user; a problem is one, the last; earlier turns are lost",
            code="E_TWO_USER_MESSAGES",
        )
    return text_of(texts[0], where, numbers=False)


def _read_paraphrases(row: dict[str, Any], question: str, where: str) -> tuple[str, ...]:
    """The optional column ``paraphrase``, without those that repeat the question."""
    value = row.get("paraphrase", [])
    if not isinstance(value, str | list):
        raise DataError(
            f"{where}: expected text or a list of texts, found {kind_of(value)}; leave it out where there is none",
            code="E_FIELD_NOT_TEXTS",
        )
    if isinstance(value, str):
        value = [value]
    texts = [text_of(text, where, numbers=False) for text in value]
    return tuple(text for text in texts if normal_question(text) != normal_question(question))


def without_calculator(line: str) -> str:
    """A line of GSM8K's worked text without its calculator marks: "48/2 = <<48/2=24>>24" → "48/2 = 24"."""
    kept = []
    at = 0
    while True:
        start = line.find("<<", at)
        end = line.find(">>", start)
        if start < 0 or end < 0:
            break
        kept.append(line[at:start])
        at = end + 2
    return "".join(kept) + line[at:]


def text_of(value: Any, where: str, *, numbers: bool) -> str:
    """A text that is not blank, or with ``numbers`` a number as text. Raises DataError that begins with ``where``."""
    if numbers and type(value) is int:
        return str(value)
    if numbers and isinstance(value, float | Decimal) and math.isfinite(value):
        return f"{Decimal(str(value)):f}"  # 0.00001, where str says 1e-05
    if not isinstance(value, str):
        raise DataError(
            f"{where}: expected text{' or a number' if numbers else ''}, found {kind_of(value)}",
            code="E_FIELD_NOT_TEXT",
        )
    if all(char.isspace() or unicodedata.category(char) == "Cf" for char in value):
        raise DataError(f"{where}: expected text, found a blank string", code="E_FIELD_BLANK")
    return whole_text(value, where)


def whole_text(value: str, where: str) -> str:
    """The text, if it can be written. Raises DataError that begins with ``where`` for half of a surrogate pair."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}, character {error.start + 1}: half of a surrogate pair, which is no text", code="E_HALF_SURROGATE"
        ) from error
    return value


def kind_of(value: Any) -> str:
    """Describe in words the kind of a JSON value."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    names |= dict.fromkeys((int, float, Decimal), "a number")
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity"
    return names.get(type(value), f"a value of the type {type(value).__name__}")  # the rest is parquet's


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
