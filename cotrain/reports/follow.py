"""Files that a run is still writing, read line by line from where the last reading ended.

A resumed run truncates ``metrics.jsonl`` to its checkpoint and then appends. So a reader remembers the last bytes that
it read: if other bytes stand there now, it reads the whole file again and tells its caller. An incomplete last line is
left until it is complete.
"""

from __future__ import annotations

import json
from io import BufferedReader
from pathlib import Path
from typing import Any

from cotrain.core.input_files import MOST_ROW, open_regular, read_regular, whole_lines
from cotrain.storage.schemas import fault_in

RECIPE = "recipe.json"
STOPPED = "stopped.json"  # in a run that an error ended

REMEMBERED_BYTES = 256  # bytes before the place where reading ended


class JsonlReader:
    """The objects of a JSON Lines file, as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0  # lines that are no JSON object
        self._end = 0  # place in the file where reading ended
        self._before = b""  # the bytes before that place, at most REMEMBERED_BYTES

    def read_new(self) -> tuple[list[dict[str, Any]], bool]:
        """The objects since the last call, and whether the file was truncated. If it was, they are all its objects."""
        try:
            with open_regular(self.path) as file:
                return self._read_from(file)
        except OSError:
            was_cut = self._end > 0
            self._begin_again()
            return [], was_cut

    def _begin_again(self) -> None:
        self._end = 0
        self._before = b""
        self.damaged = 0

    def _read_from(self, file: BufferedReader) -> tuple[list[dict[str, Any]], bool]:
        file.seek(self._end - len(self._before))
        was_cut = file.read(len(self._before)) != self._before
        if was_cut:
            self._begin_again()
        rows = []
        for line, end in whole_lines(file, self._end, MOST_ROW):
            self._end = end
            is_blank = line is not None and not line.strip()
            if is_blank:
                continue
            row = self._parse_line(line)
            if row is not None:
                rows.append(row)

        remembered = min(self._end, REMEMBERED_BYTES)
        file.seek(self._end - remembered)
        self._before = file.read(remembered)
        return rows, was_cut

    def _parse_line(self, line: bytes | None) -> dict[str, Any] | None:
        """The object of a line; None, and counted as damaged, if it is no JSON object. ``line``: None if too long."""
        try:
            value = None if line is None else json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        self.damaged += 1
        return None


def read_json_object(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object from a file, and a note on what is wrong with the file: "" if nothing is."""
    try:
        value = json.loads(read_regular(path).decode("utf-8", "replace"))
    except FileNotFoundError:
        return {}, f"{path.name} is missing"
    except OSError as error:
        return {}, f"{path.name} cannot be read ({error.strerror}) and was left out"
    except (ValueError, RecursionError):
        return {}, f"{path.name} is not valid JSON and was left out"
    fault = fault_in(path.name, value, partial=True)
    if fault is None and isinstance(value, dict):
        return value, ""
    return {}, f"{path.name} was left out: {fault or 'it holds no object'}"
