"""The output of a command: ``--log-level`` (the level of Python's logger "cotrain"), progress lines of long work, text
that is safe to show, and streams that may go away while a run goes on.

::

    debug    also what the libraries say, and under an error where it came from
    info     progress, notes and alarms
    warning  notes and alarms
    error    nothing but the error that ends the command, and its result

Results go to stdout at every level, and ``run.log`` of a run holds all messages. From Python it is "info" too, unless
the logger's level was set before. Left out: levels of single modules.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import time
import traceback
import unicodedata
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, TextIO

LEVELS = ("debug", "info", "warning", "error")
LOGGER = logging.getLogger("cotrain")
if LOGGER.level == logging.NOTSET:  # from Python too, where no command sets it
    LOGGER.setLevel(logging.INFO)
RESULTS: list[Any] = []  # results of the command that runs
LIBRARIES = ("transformers", "huggingface_hub", "httpx", "datasets", "peft")


def set_level(name: str | None) -> None:
    """From now on; None: info."""
    LOGGER.setLevel((name or "info").upper())
    for library in LIBRARIES:
        logging.getLogger(library).setLevel(logging.DEBUG if name == "debug" else logging.ERROR)
    if name == "debug":
        logging.basicConfig(format="%(name)s: %(message)s")


def shows_progress() -> bool:
    """Whether lines of progress are printed."""
    return LOGGER.getEffectiveLevel() <= logging.INFO


def shows_notes() -> bool:
    """Whether notes and alarms are printed."""
    return LOGGER.getEffectiveLevel() <= logging.WARNING


def shows_all() -> bool:
    """Whether messages of libraries are shown, and errors are shown with where they came from."""
    return LOGGER.getEffectiveLevel() <= logging.DEBUG


def print_progress(text: str) -> None:
    """Print one line of progress."""
    if shows_progress():
        print(escape_terminal(text), flush=True)


def print_aside(text: str) -> None:
    """Print one line of progress on stderr, where it cannot get into a result that is printed."""
    if shows_progress():
        print(escape_terminal(text), file=sys.stderr, flush=True)


def print_notice(text: str) -> None:
    """Print a note or an alarm, in one line on stderr."""
    if shows_notes():
        print(escape_terminal(text), file=sys.stderr, flush=True)


def print_lines(lines: Iterable[str]) -> None:
    """Print what a command found, whole, without a control character of a model's or a file's."""
    print("\n".join(escape_terminal(part, len(part)) for line in lines for part in line.split("\n")), flush=True)


def json_text(value: Any) -> str:
    """JSON that is safe to show: letters as they are, characters without a shape as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if all(line.isprintable() for line in text.split("\n")) and BLANKS.isdisjoint(text):
        return text
    shown = ""
    for letter in text:
        if letter != "\n" and is_hidden(letter):
            shown += json.dumps(letter)[1:-1]  # as \uXXXX
        else:
            shown += letter
    return shown


def print_error(text: object) -> None:
    """Print why a command ends, in one line on stderr: without a control character, and of bounded length."""
    line = str(text)
    head = line if line.startswith("cotrain ") else f"cotrain: {line}"
    print(escape_terminal(_without_middle(head)), file=sys.stderr, flush=True)


_LOGS: list[Callable[[str], None]] = []  # logs of the runs in this process
_UNLOGGED: deque[str] = deque(maxlen=20)  # notes that were printed while no run was going on


def print_note(text: str) -> None:
    """Print a note at once, from wherever it is, and write it into the log of the run that goes on; where none does, of
    the one that begins next."""
    line = f"note: {text}"
    if not _LOGS:
        _UNLOGGED.append(line)
    for log in list(_LOGS):
        log(line)
    if shows_notes():
        with suppress(OSError, ValueError):  # a stream that is closed
            print(escape_terminal(line), file=sys.stderr, flush=True)


@contextmanager
def notes_logged(log: Callable[[str], None]) -> Iterator[None]:
    """``log`` takes the notes that are printed within, and those since the last such block ended."""
    while _UNLOGGED:
        log(_UNLOGGED.popleft())
    _LOGS.append(log)
    try:
        yield
    finally:
        _LOGS.remove(log)


def tell_result(value: Any) -> None:
    """Keep the result of a command, for ``--json``."""
    RESULTS.append(value)


# -- Text of models and files, safe to show. All of it is hostile until shown otherwise: characters that would move the
# cursor, turn the reading direction or hide are replaced by something that can be seen, ``<U+202E>``.


MAX_CHARS = 4000  # characters of one text
ERROR_START = 2000  # characters that are kept of the start of a longer error
ERROR_END = 500  # characters that are kept of its end, where its advice is
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode categories that have no shape
VARIATIONS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
BLANKS = VARIATIONS | frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u180b\u180c\u180d\u180f")  # shaped like nothing


def is_hidden(char: str) -> bool:
    """Whether this is a control, direction, zero-width, private or unassigned character, or a lone surrogate."""
    return char in BLANKS or unicodedata.category(char) in HIDDEN


def escape_terminal(text: object, limit: int = MAX_CHARS) -> str:
    """Plain text without a single control character: ESC becomes ``<U+001B>``, newlines become ``⏎``."""
    whole = str(text)
    if len(whole) <= limit and whole.isprintable() and BLANKS.isdisjoint(whole):
        return whole
    shown = "".join(map(_visible_char, whole[:limit]))
    return shown if len(whole) <= limit else f"{shown}… ({len(whole) - limit} more characters)"


def _visible_char(char: str) -> str:
    if char == "\n":
        return "⏎"
    if is_hidden(char):
        return f"<U+{ord(char):04X}>"
    return char


def _without_middle(text: str) -> str:
    """The beginning and the end of a long text."""
    left_out = len(text) - ERROR_START - ERROR_END
    if left_out <= 0:
        return text
    return f"{text[:ERROR_START]} … ({left_out} characters left out) … {text[-ERROR_END:]}"


# -- How far something long has come: a line with total and time left, at most every five seconds and ten in all; and
# where nothing gets done, one a minute.


PACE_SECONDS = 5.0  # between lines, and before the first
LINES = 10  # at most
FEW = 32  # items that may all be under way at once
QUIET_SECONDS = 60.0  # after which a line says that it goes on
_REMINDED: weakref.WeakSet[Reminded] = weakref.WeakSet()
_REMINDERS: dict[int, threading.Thread] = {}  # process id → its watching thread; a fork has none


class Reminded(Protocol):
    """Work that says by itself that it goes on."""

    def remind(self) -> None:
        """Say so where nothing was said for ``QUIET_SECONDS``; called by a thread, every few seconds."""
        ...


class ProgressPrinter:
    """Counts what is done of ``total``, and says so: "gsm8k: 128 of 1,319 problems, 12:40 left". Where nothing gets
    done for a minute: "gsm8k: 128 of 1,319 problems, after 21:05"."""

    def __init__(
        self,
        total: int,
        what: str,
        say: Callable[[str], None],
        *,
        done: int = 0,
        at_once: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``what``: with "{}" where the counts go. ``done``: what was done before, which says nothing of the time
        left. ``at_once``: many are under way from the start, as the answers of one batch: how long the first of
        them took says little of the last, so no time is told before a quarter is done, and of few none at all."""
        self._total = total
        self._what = what
        self._say = say
        self._clock = clock
        self._at_once = at_once
        self._begun = self._said = clock()
        self._points = [(self._begun, done)]  # when so many were done
        remind_of(self)
        self._at = self.done = done

    def add(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        now = self._clock()
        if now - self._points[-1][0] >= 1.0:
            self._points.append((now, self.done))
        if self.done >= self._total or now - self._said < PACE_SECONDS or (self.done - self._at) * LINES < self._total:
            return
        self._said = now
        self._at = self.done
        left = self._seconds_for_one(now) * (self._total - self.done)
        says_nothing = self._at_once and (self._total < FEW or 4 * self.done < self._total)
        self._say(self._counts if says_nothing else f"{self._counts}, {clock_text(left)} left")

    def _seconds_for_one(self, now: float) -> float:
        """By the latter half of the time: of many that are under way at once the first ones end late."""
        half = (self._begun + now) / 2
        at, done = next(point for point in reversed(self._points) if point[0] <= half)
        return (now - at) / max(self.done - done, 1)

    def remind(self) -> None:
        """Say that it goes on, where nothing was said for a minute."""
        now = self._clock()
        if self.done < self._total and now - self._said >= QUIET_SECONDS:
            self._said = now
            self._say(f"{self._counts}, after {clock_text(now - self._begun)}")

    @property
    def _counts(self) -> str:
        return self._what.format(f"{self.done:,} of {self._total:,}")


def remind_of(work: Reminded) -> None:
    """Have ``remind`` called every few seconds, for as long as somebody else holds this object."""
    _REMINDED.add(work)
    thread = _REMINDERS.get(os.getpid())
    if thread is None or not thread.is_alive():
        thread = threading.Thread(target=_remind_forever, name="cotrain-pace", daemon=True)
        _REMINDERS[os.getpid()] = thread
        thread.start()


def _remind_forever() -> None:
    while True:
        time.sleep(max(PACE_SECONDS, 1.0))
        for work in list(_REMINDED):
            with suppress(Exception):  # the receiver may be gone
                work.remind()


def count_of(number: int, thing: str) -> str:
    """``1 step``, ``2 steps``, ``1,024 batches``."""
    if number == 1:
        return f"1 {thing}"
    ending = "es" if thing.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {thing}{ending}"


def clock_text(seconds: float) -> str:
    """``75`` as ``1:15``, hours as ``2:03:10``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# -- Standard output and error that nobody has to care for: a run outlives who reads it.


ERRORS = "backslashreplace"
_LOST: dict[str, str] = {}  # name of a stream → why nothing reaches its reader any more


def lost_streams() -> dict[str, str]:
    """The streams that nothing is written to any more, and why."""
    return dict(_LOST)


def secure_streams() -> None:
    """Make standard output and error such streams, and tracebacks safe to show; called once, by the command."""
    sys.excepthook = print_traceback
    sys.stdout = _secure_stream(sys.stdout, 1, "stdout")
    sys.stderr = _secure_stream(sys.stderr, 2, "stderr")


def print_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print where an error came from, its text without control characters."""
    lines = "".join(traceback.format_exception(kind, error, where)).rstrip("\n").split("\n")
    print("\n".join(escape_terminal(_without_middle(line)) for line in lines), file=sys.stderr, flush=True)


def _secure_stream(stream: TextIO | None, number: int, name: str) -> TextIO:
    if stream is None:  # it was closed before the command began, and its number must not become that of a file
        _LOST[name] = "closed from the beginning"
        handle = os.open(os.devnull, os.O_WRONLY)
        if handle != number:
            os.dup2(handle, number)
            os.close(handle)
        return open(number, "w", encoding="utf-8", errors=ERRORS, closefd=False)

    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    raw: Any = _LenientFile(os.dup(stream.fileno()), name)  # which stays where a protocol closes the stream's own
    return _StaysOpen(
        raw if stream.write_through else io.BufferedWriter(raw),  # PYTHONUNBUFFERED: each text goes out at once
        encoding=stream.encoding,
        errors=ERRORS,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _StaysOpen(io.TextIOWrapper):
    """A stream that no code of a user's closes for those who print after it."""

    def close(self) -> None:
        self.flush()


class _LenientFile(io.FileIO):
    """A descriptor that takes everything, whether or not it gets anywhere."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number, "wb", closefd=False)
        self._stream = name

    def write(self, block: Any) -> int:
        rest = memoryview(block).cast("B")
        size = rest.nbytes
        try:
            while rest and self._stream not in _LOST:
                written = super().write(rest)
                rest = rest[size if written is None else written :]  # None: a pipe that is full and does not wait
        except OSError as error:
            _LOST[self._stream] = (error.strerror or str(error)).lower()
        return size
