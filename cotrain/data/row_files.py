"""Files of rows in any of their formats, and the values in a row. Whatever cannot be read is an error of one line with
its file, its row and its column.

::

    .jsonl .ndjson .jl    JSON lines; also a file without an ending
    .json                 one JSON array of objects
    .csv                  with a header; an empty cell is a field that the row does not have
    .parquet              read by pyarrow (``parquet.py``)

All but parquet may end in ``.gz``. Capitals in an ending are as good as small letters. A directory may hold a file for
each split, or several numbered ones, as data sets of the Hub do (``files_by_split``).

Left out: what the columns of a row mean (``columns.py``), and reading on after a malformed row (``malformed_rows.py``).
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
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from cotrain.core.errors import DataError
from cotrain.core.input_files import MOST_ROW, MOST_WHOLE, lines_of_file, text_of_file
from cotrain.core.nearest_names import nearest_file
from cotrain.data.parquet import PARQUET, parquet_rows

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
OTHER_FILES = {  # first bytes of files that are not text → what to do with them
    b"\x1f\x8b": "packed by gzip; give the file a name that ends in .gz",
    b"BZh": "packed by bzip2; unpack it, or pack it by gzip",
    b"\xfd7zXZ": "packed by xz; unpack it, or pack it by gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unpack it, or pack it by gzip",
    b"PK\x03\x04": "a ZIP archive, as sheets are; unpack it, or save a sheet as CSV",
    b"PAR1": "parquet; give the file a name that ends in .parquet",
}
DATA_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", PARQUET)
LINE_ENDINGS = (".jsonl", ".ndjson", ".jl", "")  # endings of names of JSON lines
FORMATS = {PARQUET: "parquet", ".csv": "CSV with a header", ".json": "one JSON array of objects"}
CSV_DELIMITERS = ";\t|"  # other than the comma
_SHARD = re.compile(  # train-00000-of-00002, as the Hub numbers the files of a split
    r"(?P<split>.+?)-(?P<number>\d{5})-of-(?P<count>\d{5})(?:-[0-9a-f]+)?"
)

RawRow = bytes | dict[str, Any]  # a line of a file, or an object where the format has objects: ``object_of`` reads both


# -- A file.


def lines_of(path: Path) -> Iterator[tuple[int, RawRow]]:
    """The rows of a file, each with its number from 1: lines as they stand in a file of JSON lines, without blank ones,
    and objects of any other format.

    Raises DataError for a file that cannot be read, UserError for parquet without pyarrow.
    """
    _check_is_file(path)
    ending = _file_ending(path)
    if ending == PARQUET:
        yield from parquet_rows(path)
    elif ending == ".csv":
        yield from _csv_rows(path)
    elif ending == ".json":
        yield from _json_array_rows(path)
    else:
        yield from _json_lines(path, ending)


def format_of(path: Path) -> str:
    """The format that a file's name says, in words."""
    return FORMATS.get(_file_ending(path), "JSON lines")


def _file_ending(path: Path) -> str:
    """The ending of a file's name, in small letters and without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _may_be_data(name: str) -> bool:
    """Whether a name is that of a file with rows, or of a directory."""
    return _file_ending(Path(name)) in (*FORMATS, *LINE_ENDINGS)


def _check_is_file(path: Path) -> None:
    """Raise DataError for what is no regular file, with the one that may be meant."""
    if not os.path.lexists(path):
        neighbours = os.listdir(path.parent) if os.path.isdir(path.parent) else []
        near = nearest_file(path.name, filter(_may_be_data, neighbours))
        hint = f"; did you mean {near!r}?" if near else ""
        raise DataError(f"{path}: no such file or directory{hint}", code="E_DATA_FILE_MISSING")
    if os.path.isfile(path):
        return

    is_directory = os.path.isdir(path)
    inside = files_in(path) if is_directory else []
    if inside:
        raise DataError(f"{path}: a directory; name one of its files, such as {inside[0]}", code="E_DATA_IS_DIRECTORY")
    kind = "a directory" if is_directory else "not a regular file, or no file there"
    raise DataError(f"{path}: {kind}; expected a file of {format_of(path)}", code="E_DATA_FILE_KIND")


def _json_lines(path: Path, ending: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank."""
    for number, line in enumerate(lines_of_file(path), start=1):
        if number == 1:
            if ending not in LINE_ENDINGS:
                _check_begins_as_rows(path, ending, line)
            line = line.removeprefix(BYTE_ORDER_MARK)
        row = line.removesuffix(b"\n")
        if row.strip():
            yield number, row


def _check_begins_as_rows(path: Path, ending: str, first_line: bytes) -> None:
    """Raise DataError for a file that is no data file by its name, such as .md, nor by its first line."""
    begin = first_line.removeprefix(BYTE_ORDER_MARK).lstrip()
    is_refused_elsewhere = begin.startswith((*OTHER_FILES, *UTF16_MARKS))  # by ``object_of``, with better advice
    if begin and not begin.startswith(b"{") and not is_refused_elsewhere:
        raise DataError(
            f"{path}: not a data file ({ending}); expected JSON lines (.jsonl), a JSON array (.json), CSV with a "
            "header (.csv), or parquet",
            code="E_DATA_FILE_KIND",
        )


class _CsvLines:
    """The lines of a CSV file as texts. It knows where it is, so that an error can say at which byte."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.line_start = 0  # byte at which the next line begins
        self.row_bytes = 0  # bytes of the row so far, which may go over several lines

    def __iter__(self) -> Iterator[str]:
        for line in lines_of_file(self._path):
            self.row_bytes += len(line)
            if self.row_bytes > MOST_ROW:
                raise DataError(
                    f"{self._path}: a row of more than {MOST_ROW} bytes; shorten it, or close the quote that is open",
                    code="E_ROW_TOO_LARGE",
                )
            if b"\x00" in line:
                place = self.line_start + line.index(0)
                raise DataError(f"{self._path}: a NUL at byte {place}; save the file as UTF-8", code="E_NUL_BYTE")
            if self.line_start == 0:
                text = line.removeprefix(BYTE_ORDER_MARK).decode("utf-8")
            else:
                text = line.decode("utf-8")
            self.line_start += len(line)
            if "\r" in text:
                yield from io.StringIO(text, newline="")  # it also ends a line at \r, as old files of Macs do
            else:
                yield text


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of CSV with a header."""
    lines = _CsvLines(path)
    csv.field_size_limit(MOST_ROW)  # for the whole process; the usual 131,072 is less than a worked text may have
    table = csv.DictReader(lines, strict=True)
    try:
        _check_header(path, table.fieldnames or ())
        lines.row_bytes = 0
        for number, row in enumerate(table, start=1):
            if None in row:
                raise DataError(
                    f"{path}, row {number}: more cells than the header has names", code="E_ROW_TOO_MANY_CELLS"
                )
            yield number, {name: value for name, value in row.items() if value not in (None, "")}
            lines.row_bytes = 0
    except UnicodeDecodeError as error:
        place = lines.line_start + error.start
        raise DataError(f"{path}: not UTF-8 at byte {place}; save the file as UTF-8", code="E_TEXT_ENCODING") from error
    except csv.Error as error:
        raise DataError(
            f"{path}: cannot be read ({error}); expected {format_of(path)}", code="E_DATA_UNREADABLE"
        ) from error


def _check_header(path: Path, names: Sequence[str]) -> None:
    """Raise DataError where two columns have one name, or the columns are not parted by commas."""
    for name, count in Counter(names).items():
        if name and count > 1:
            raise DataError(f"{path}: two columns are called {name!r}; rename one", code="E_TWO_COLUMNS_ALIKE")
    if len(names) != 1:
        return
    for delimiter in CSV_DELIMITERS:
        if delimiter in names[0]:
            raise DataError(
                f"{path}: its columns are parted by {delimiter!r}; save it with commas", code="E_CSV_DELIMITER"
            )


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


# -- A directory with a file, or several, for each split.


def files_in(folder: Path) -> list[Path]:
    """The files of rows in a directory, by name; where it has none, those of its folder ``data``, as in snapshots of
    the Hub."""
    files = sorted(file for file in folder.iterdir() if has_rows(file))
    data_folder = folder / "data"
    if files or not data_folder.is_dir():
        return files
    return sorted(file for file in data_folder.iterdir() if has_rows(file))


def has_rows(file: Path) -> bool:
    """Whether a file in a directory holds rows, by its name. A ``.json`` file may also describe a data set: it counts
    where it is called as a split is."""
    ending = _file_ending(file)
    if ending == ".json":
        return split_named_by(file) in ("train", "validation", "test")
    return ending in (".jsonl", ".csv", PARQUET)


def split_named_by(file: Path) -> str:
    """The split that a file holds, by its name: "train" for train.jsonl.gz and for train-00000-of-00002.parquet,
    "validation" also for dev.jsonl."""
    stem = _stem_of(file)
    shard = _SHARD.fullmatch(stem)
    name = shard["split"] if shard else stem
    return "validation" if name in ("valid", "val", "dev") else name


def _stem_of(file: Path) -> str:
    """A file's name without its endings."""
    name = file.name[:-3] if file.name.lower().endswith(".gz") else file.name
    return Path(name).stem


def files_by_split(folder: Path) -> dict[str, list[Path]]:
    """The files of each split of a data set in a directory. Raises DataError where a split has a file twice, in two
    formats, or not all of its numbered ones."""
    files_of: dict[str, list[Path]] = {}
    for file in files_in(folder):
        files_of.setdefault(split_named_by(file), []).append(file)
    for split, files in files_of.items():
        _check_files_of_split(folder, split, files)
    return files_of


def _check_files_of_split(folder: Path, split: str, files: Sequence[Path]) -> None:
    shards = [_SHARD.fullmatch(file.name.partition(".")[0]) for file in files]
    if len(files) > 1 and not all(shards):
        raise DataError(
            f"{folder}: the split {split} is in {files[0].name} and in {files[1].name}; keep one of them",
            code="E_SPLIT_TWICE",
        )
    places = [(int(shard["number"]), int(shard["count"])) for shard in shards if shard]
    if not places:
        return
    _, count = places[0]
    if places != [(number, count) for number in range(count)]:
        raise DataError(
            f"{folder}: of the split {split}, {', '.join(file.name for file in files)}; expected every one of "
            f"{count} files, once",
            code="E_SPLIT_FILES_MISSING",
        )


# -- A row.


def object_of(row: RawRow, where: str) -> dict[str, Any]:
    """The object that a row is: of a line the one that it says in JSON. Raises DataError that begins with ``where``."""
    if _is_larger(row, MOST_ROW):
        raise DataError(
            f"{where}: more than {MOST_ROW} bytes in one row; shorten it, or part it into several rows",
            code="E_ROW_TOO_LARGE",
        )
    if isinstance(row, dict):
        return row
    for first_bytes, advice in OTHER_FILES.items():
        if row.startswith(first_bytes):
            raise DataError(f"{where}: {advice}", code="E_DATA_PACKED")
    if b"\x00" in row or row.startswith(UTF16_MARKS):
        raise DataError(
            f"{where}, column {max(row.find(0), 0) + 1}: a NUL byte; save the file as UTF-8, not UTF-16",
            code="E_NUL_BYTE",
        )
    return _decode_object(row, where)


def _decode_object(line: bytes, where: str) -> dict[str, Any]:
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
        reason = str(error).partition("; use sys")[0]  # without Python's advice about very long whole numbers
        raise DataError(f"{where}: {reason}", code="E_ROW_NOT_JSON") from error
    if not isinstance(row, dict):
        raise DataError(
            f'{where}: expected an object such as {{"question": …}}, found {kind_of(row)}', code="E_ROW_NOT_OBJECT"
        )
    return row


def _is_larger(row: RawRow, limit: int) -> bool:
    """Whether a line has more bytes than that, or an object more letters and values."""
    if isinstance(row, bytes):
        return len(row) > limit
    size = 0
    remaining = deque[Any]([row])  # values that are not counted yet
    while remaining and size <= limit:
        value = remaining.popleft()
        if isinstance(value, str):
            size += len(value)
            continue
        size += 1
        if isinstance(value, list):
            remaining.extend(value)
        elif isinstance(value, dict):
            remaining.extend(value.keys())
            remaining.extend(value.values())
    return size > limit


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``json.loads``: refuse an object that has a field twice, of which Python would keep the last."""
    row = dict(pairs)
    if len(row) == len(pairs):
        return row
    counts = Counter(name for name, _ in pairs)
    twice = next(name for name, count in counts.items() if count > 1)
    raise ValueError(f"field {twice!r} twice in one object; keep one of them")


def _no_constant(name: str) -> None:
    """For ``json.loads``: refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not JSON; write a number or null")


# -- A value.


def text_of(value: Any, where: str, *, numbers: bool) -> str:
    """A text that is not blank, or with ``numbers`` a number as text. Raises DataError that begins with ``where``."""
    if numbers and type(value) is int:
        return str(value)
    if numbers and isinstance(value, float | Decimal) and math.isfinite(value):
        return f"{Decimal(str(value)):f}"  # 0.00001, where str says 1e-05
    if not isinstance(value, str):
        expected = "text or a number" if numbers else "text"
        raise DataError(f"{where}: expected {expected}, found {kind_of(value)}", code="E_FIELD_NOT_TEXT")
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
    """Describe in words the kind of a value."""
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity"
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    names |= dict.fromkeys((int, float, Decimal), "a number")
    return names.get(type(value), f"a value of the type {type(value).__name__}")  # as parquet has dates and bytes
