"""Files that a run is still writing, read line by line from where the last reading ended.

A run that is resumed cuts ``metrics.jsonl`` back and writes on. The bytes before the place where reading ended tell:
when they are others, everything is read again and the reader is told so. A torn last line waits until it is whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cotrain.disk.run_files import fault_in

REMEMBERED = 256  # bytes before the place where reading ended


class Lines:
    """The objects of a JSON Lines file, as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0  # lines that are no JSON object
        self._end = 0
        self._before = b""

    def new(self) -> tuple[list[dict[str, Any]], bool]:
        """The objects since the last call, and whether the file was cut back: then they are all there are."""
        try:
            file = self.path.open("rb")
        except OSError:
            again = self._end > 0
            self._end, self._before, self.damaged = 0, b"", 0
            return [], again
        with file:
            file.seek(self._end - len(self._before))
            again = file.read(len(self._before)) != self._before
            if again:
                self._end, self._before, self.damaged = 0, b"", 0
            file.seek(self._end)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._end += len(whole)
        self._before = (self._before + whole[-REMEMBERED:])[-REMEMBERED:]
        return [row for line in whole.split(b"\n") if line.strip() and (row := self._object(line)) is not None], again

    def _object(self, line: bytes) -> dict[str, Any] | None:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        self.damaged += 1
        return None


def object_of(path: Path) -> tuple[dict[str, Any], str]:
    """A JSON object from a file, and what is wrong with it: "" where nothing is."""
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}, f"{path.name} is missing"
    except (ValueError, RecursionError):
        return {}, f"{path.name} is not valid JSON and was left out"
    fault = fault_in(path.name, found, partial=True)
    if fault is None and isinstance(found, dict):
        return found, ""
    return {}, f"{path.name} was left out: {fault or 'it holds no object'}"
