"""Files that a run is still writing, read line by line from where the last reading ended.

A run that is resumed cuts ``metrics.jsonl`` back and writes on. The bytes before the place where reading ended tell:
when they are others, everything is read again and the reader is told so. A torn last line waits until it is whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cotrain.core.input_files import open_regular, read_regular
from cotrain.storage.schemas import fault_in

RECIPE = "recipe.json"
STOPPED = "stopped.json"  # of a run that an error ended

REMEMBERED_BYTES = 256  # bytes before the place where reading ended


class JsonlReader:
    """The objects of a JSON Lines file, as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0  # lines that are no JSON object
        self._end = 0
        self._before = b""

    def read_new(self) -> tuple[list[dict[str, Any]], bool]:
        """The objects since the last call, and whether the file was cut back: then they are all there are."""
        try:
            file = open_regular(self.path)
        except OSError:
            was_cut = self._end > 0
            self._end, self._before, self.damaged = 0, b"", 0
            return [], was_cut
        with file:
            file.seek(self._end - len(self._before))
            was_cut = file.read(len(self._before)) != self._before
            if was_cut:
                self._end, self._before, self.damaged = 0, b"", 0
            file.seek(self._end)
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]
        self._end += len(content)
        self._before = (self._before + content[-REMEMBERED_BYTES:])[-REMEMBERED_BYTES:]
        rows = (self._parse_line(line) for line in content.split(b"\n") if line.strip())
        return [row for row in rows if row is not None], was_cut

    def _parse_line(self, line: bytes) -> dict[str, Any] | None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        self.damaged += 1
        return None


def read_json_object(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object from a file, and what is wrong with it: "" where nothing is."""
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
