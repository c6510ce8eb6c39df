"""Partial results of a long command: kept next to its output while it works, and taken up by the same command again;
and the place of its output, which is held meanwhile.

::

    .NAME.DIGEST.partial    next to the output NAME; the digest is that of what the work depends on
        {"settings": …}     first row
        {"key": "chunk 0", "value": …}    one row for each part that is done; of a value too long for a row its text:
        {"key": "chunk 1", "piece": [1, 3], "text": …}    in pieces, the first of three

The file is made before the work begins, so that a place that takes nothing is said at once, and is removed when the
output is there. Work of other settings has another file and stays as it is. A part is written in one piece and synced:
after a kill at most the part in progress is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, RunDirectoryError
from cotrain.storage.file_ops import FILLING, REAL_FILES, can_be_filled, make_directory, report_disk_errors
from cotrain.storage.jsonl import JsonlWriter, encode_row, read_jsonl
from cotrain.storage.lock import RunLock

SETTINGS = "settings"
KEY = "key"
VALUE = "value"
PIECE = "piece"  # number of a piece, from 1, and how many there are
TEXT = "text"
LONGEST = 1 << 25  # characters of a value in one row; a quarter of what readers of rows take, as text may double there


class KeptWork:
    """The parts of one piece of work."""

    def __init__(self, target: Path, settings: Mapping[str, Any]) -> None:
        """``settings``: as JSON, all that the parts depend on. Raises DiskError for a place that cannot be written to,
        ConfigError where the same work goes on already."""
        settings_json = json.loads(json.dumps(settings, sort_keys=True, default=str))
        digest = hashlib.sha256(json.dumps(settings_json, sort_keys=True).encode()).hexdigest()[:12]
        self.path = target.with_name(f".{target.name}.{digest}.partial")
        self._writer = JsonlWriter(self.path)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ConfigError(
                f"{target} is being written by the same command already; wait for it", code="E_TARGET_BEING_WRITTEN"
            ) from None
        try:
            rows = read_jsonl(self.path)
            if not rows:
                self._append({SETTINGS: settings_json})
        except BaseException:
            self.close()
            raise
        self._parts = _parts_in(rows[1:])
        self.found = len(self._parts)  # parts of an earlier try

    def has(self, key: str) -> bool:
        """Whether a part is there."""
        return key in self._parts

    def part(self, key: str, make: Callable[[], Any]) -> Any:
        """The value of a part, as JSON gives it back: what an earlier try kept, else what ``make`` returns."""
        if key not in self._parts:
            self.keep(key, make())
        return self._parts[key]

    def keep(self, key: str, value: Any) -> None:
        """Keep the value of a part that is not there."""
        self._append_part(key, value)
        self._parts[key] = json.loads(json.dumps(value))

    def value_of(self, key: str) -> Any:
        """The value of a part that is there, as JSON gives it back."""
        return self._parts[key]

    def within(self, name: str) -> KeptPart:
        """The same, with a name before each key."""
        return KeptPart(self, name)

    def finish(self) -> None:
        """The output is there: what was kept for it goes."""
        self.close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Keep what there is."""
        self._writer.close()
        handle = self._lock
        self._lock = -1
        if handle >= 0:
            os.close(handle)

    def _append_part(self, key: str, value: Any) -> None:
        text = encode_row({VALUE: value}).decode("ascii")
        if len(text) <= LONGEST:
            self._append({KEY: key, VALUE: value})
            return
        pieces = [text[start : start + LONGEST] for start in range(0, len(text), LONGEST)]
        for number, piece in enumerate(pieces, start=1):
            self._append({KEY: key, PIECE: [number, len(pieces)], TEXT: piece})

    def _append(self, row: Mapping[str, Any]) -> None:
        self._writer.append(row)
        self._writer.sync()


def _parts_in(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of the parts that are whole, by key. Pieces before a kill may be followed by all of them again."""
    parts: dict[str, Any] = {}
    pieces: dict[str, list[str]] = {}
    for row in rows:
        if KEY not in row:
            continue
        key = row[KEY]
        if VALUE in row:
            parts[key] = row[VALUE]
        if PIECE in row:
            number, count = row[PIECE]
            if number == 1:
                pieces[key] = []
            pieces[key].append(row[TEXT])
            if number == count:
                parts[key] = json.loads("".join(pieces[key]))[VALUE]
    return parts


class KeptPart:
    """Parts of one piece of work that have a name in common."""

    def __init__(self, work: KeptWork, name: str) -> None:
        self._work = work
        self._name = name

    def part(self, key: str, make: Callable[[], Any]) -> Any:
        """This and the next ones: as of ``KeptWork``."""
        return self._work.part(f"{self._name}: {key}", make)

    def has(self, key: str) -> bool:
        return self._work.has(f"{self._name}: {key}")

    def keep(self, key: str, value: Any) -> None:
        self._work.keep(f"{self._name}: {key}", value)

    def value_of(self, key: str) -> Any:
        return self._work.value_of(f"{self._name}: {key}")


@contextmanager
def kept_work(target: Path, settings: Mapping[str, Any], say: Callable[[str], None]) -> Iterator[KeptWork]:
    """Keep parts while the block runs, and remove them after it: if it ends well, the output is there. ``say`` is told
    where parts of an earlier try are taken up."""
    work = KeptWork(target, settings)
    if work.found:
        say(f"going on with what an earlier try has left in {work.path}")
    try:
        yield work
    except BaseException:
        work.close()
        raise
    work.finish()


def claim_place(folder: Path) -> None:
    """Make a directory, where it is not there, and see whether a file can be written in it: before long work whose
    result is to go there. Raises DiskError."""
    with report_disk_errors(f"write into {folder}", lambda: "nothing was begun"):
        make_directory(REAL_FILES, folder)
        probe = folder / f".write-test-{os.getpid()}"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        probe.unlink()


@contextmanager
def claimed_directory(target: Path) -> Iterator[None]:
    """Hold the place of a new directory while the block works for it and fills it (``file_ops.filled_directory``): of
    two commands at once, each would remove what the other one has half made.

    Raises RunDirectoryError where the directory is not empty, or another command is filling it; DiskError where nothing
    can be written."""
    check_can_be_filled(target)
    whole = target.resolve()
    folder, name = (whole, FILLING) if whole.is_dir() else (whole.parent, f".{whole.name}{FILLING}")
    claim_place(folder)
    lock = RunLock(folder, name, what=str(target))
    try:
        check_can_be_filled(target)  # another command may have ended since
        yield
    finally:
        lock.remove()


def check_can_be_filled(target: Path) -> None:
    """Raise RunDirectoryError for a directory with something in it."""
    if not can_be_filled(target):
        raise RunDirectoryError(f"{target} is not an empty directory; choose another --out", code="E_OUT_NOT_EMPTY")


def stamp_of(model: str) -> list[list[Any]]:
    """Names, sizes and times of the files of a model's directory, or of a file: they change when it does, and are known
    without reading it. Empty for a name of the Hub or of the package."""
    place = Path(model).expanduser()
    files = []
    if place.is_file():
        files = [place]
    elif place.is_dir():
        files = sorted(path for path in place.iterdir() if path.is_file())

    stamps: list[list[Any]] = []
    for path in files:
        status = path.stat()
        stamps.append([path.name, status.st_size, status.st_mtime_ns])
    return stamps
