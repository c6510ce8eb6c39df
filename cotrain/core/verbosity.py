"""What a command prints:

- messages by ``--log-level``, which is the level of Python's logger "cotrain";
- text of models and files, made safe to show;
- progress lines of long work;
- standard output and error that may go away while a run goes on.

The levels show

::

    debug    also what the libraries say, and under an error where it came from
    info     progress, notes and alarms
    warning  notes and alarms
    error    nothing but the error that ends the command, and its result

Results go to stdout at every level, and ``run.log`` of a run holds all messages. The default is "info", from Python
too, unless the logger's level was set before. Left out: levels of single modules.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
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
if LOGGER.level == logging.NOTSET:
    LOGGER.setLevel(logging.INFO)
RESULTS: list[Any] = []  # results of the command that runs
LIBRARIES = ("transformers", "huggingface_hub", "httpx", "datasets", "peft")


def set_level(name: str | None) -> None:
    """Set the level, one of ``LEVELS``; None: "info"."""
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
    """Whether messages of libraries are shown, and errors with a traceback."""
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
    """Print the result of a command, at any length, and without control characters that a model or a file may have put
    in."""
    shown = []
    for text in lines:
        for line in text.split("\n"):
            shown.append(escape_terminal(line, limit=len(line)))
    print("\n".join(shown), flush=True)


def json_text(value: Any) -> str:
    """JSON that is safe to show: letters as they are, characters that cannot be seen as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if all(line.isprintable() for line in text.split("\n")) and BLANKS.isdisjoint(text):
        return text
    shown = ""
    for char in text:
        if char != "\n" and is_hidden(char):
            shown += json.dumps(char)[1:-1]  # as \uXXXX
        else:
            shown += char
    return shown


def print_error(text: object) -> None:
    """Print why a command ends, in one line on stderr: without control characters, and of bounded length."""
    line = str(text)
    if not line.startswith("cotrain "):
        line = f"cotrain: {line}"
    print(escape_terminal(_without_middle(line)), file=sys.stderr, flush=True)


_RUN_LOGS: list[Callable[[str], None]] = []  # of the runs that go on in this process: each writes a line
_UNLOGGED_NOTES: deque[str] = deque(maxlen=20)  # printed while no run was going on
_NOTES_ARE_KNOWN: list[bool] = []  # not empty inside of ``without_notes``


def print_note(text: str) -> None:
    """Print a note, and write it into the logs of the runs that go on in this process. Where none does, the run that
    begins next logs it."""
    if _NOTES_ARE_KNOWN:
        return
    line = f"note: {text}"
    if not _RUN_LOGS:
        _UNLOGGED_NOTES.append(line)
    for log in list(_RUN_LOGS):
        log(line)
    if shows_notes():
        with suppress(OSError, ValueError):  # a stream that is closed
            print(escape_terminal(line), file=sys.stderr, flush=True)


@contextmanager
def without_notes() -> Iterator[None]:
    """Inside of the block, ``print_note`` prints nothing: what is done there was done before, with its notes."""
    _NOTES_ARE_KNOWN.append(True)
    try:
        yield
    finally:
        _NOTES_ARE_KNOWN.pop()


@contextmanager
def notes_logged(log: Callable[[str], None]) -> Iterator[None]:
    """Inside of the block, a run, ``log`` writes the notes that are printed; first those that no run has logged yet."""
    while _UNLOGGED_NOTES:
        log(_UNLOGGED_NOTES.popleft())
    _RUN_LOGS.append(log)
    try:
        yield
    finally:
        _RUN_LOGS.remove(log)


def tell_result(value: Any) -> None:
    """Keep the result of a command, for ``--json``."""
    RESULTS.append(value)


# -- Text of models and files, safe to show. Characters that would move the cursor, turn the reading direction or hide
# are replaced by something that can be seen, ``<U+202E>``.


MAX_CHARS = 4000  # characters of one text
ERROR_START = 2000  # characters that are kept of the start of a longer error
ERROR_END = 500  # characters that are kept of its end, where its advice is
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode categories of characters that are not seen
VARIATIONS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))  # variation selectors
# Characters that are not seen, though of categories that are, such as letters.
BLANKS = VARIATIONS | frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u180b\u180c\u180d\u180f")


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


# -- Progress of long work: at most ten lines with the count and the time left, at least five seconds apart. Where
# nothing gets done for a minute, a line says that the work goes on.


PACE_SECONDS = 5.0  # between lines, and before the first
MOST_LINES = 10
FEW_ITEMS = 32  # so many may all be under way at once
QUIET_SECONDS = 60.0  # after which a line says that the work goes on
_REMINDED: weakref.WeakSet[Reminded] = weakref.WeakSet()
_REMINDER_THREADS: dict[int, threading.Thread] = {}  # by process id, as the threads of a process are not in its forks


class Reminded(Protocol):
    """Work that is asked every few seconds, by a thread, to say that it goes on."""

    def remind(self) -> None:
        """Print a line if none was printed for ``QUIET_SECONDS``."""
        ...


class ProgressPrinter:
    """Counts the items of ``total`` that are done, and prints lines: "gsm8k: 128 of 1,319 problems, 12:40 left", or,
    where nothing gets done for a minute, "gsm8k: 128 of 1,319 problems, after 21:05"."""

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
        """
        Args:
            what: the line, with "{}" where the counts go.
            say: prints a line.
            done: items that were done before; how fast says nothing of the time left.
            at_once: whether many items are under way from the start, as the answers of one batch. How long the first of
                them took says little of the last: no time is told before a quarter is done, and of few items none.
        """
        self._total = total
        self._what = what
        self._say = say
        self._clock = clock
        self._at_once = at_once
        self.done = done
        self._began = clock()
        self._points = [(self._began, done)]  # (time, number of items that were done by then), a second apart
        self._last_line_time = self._began
        self._last_line_done = done
        remind_of(self)

    def skip(self, count: int) -> None:
        """Count items that were done before, as ``done`` does."""
        self.done += count
        self._points = [(moment, done + count) for moment, done in self._points]
        self._last_line_done += count

    def add(self, count: int = 1) -> None:
        """Count items as done, and print a line if one is due."""
        self.done += count
        now = self._clock()
        if now - self._points[-1][0] >= 1.0:
            self._points.append((now, self.done))
        is_too_soon = now - self._last_line_time < PACE_SECONDS
        is_too_little = (self.done - self._last_line_done) * MOST_LINES < self._total
        if self.done >= self._total or is_too_soon or is_too_little:
            return
        self._last_line_time = now
        self._last_line_done = self.done
        if self._at_once and (self._total < FEW_ITEMS or 4 * self.done < self._total):
            self._say(self._counts)
            return
        seconds_left = self._seconds_for_one(now) * (self._total - self.done)
        self._say(f"{self._counts}, {clock_text(seconds_left)} left")

    def _seconds_for_one(self, now: float) -> float:
        """Seconds for an item in the latter half of the time until now: of many items that are under way at once, even
        the first take long to end."""
        half_time = (self._began + now) / 2
        point_time, point_done = next(point for point in reversed(self._points) if point[0] <= half_time)
        return (now - point_time) / max(self.done - point_done, 1)

    def remind(self) -> None:
        now = self._clock()
        if self.done < self._total and now - self._last_line_time >= QUIET_SECONDS:
            self._last_line_time = now
            self._say(f"{self._counts}, after {clock_text(now - self._began)}")

    @property
    def _counts(self) -> str:
        return self._what.format(f"{self.done:,} of {self._total:,}")


def remind_of(work: Reminded) -> None:
    """Have ``work.remind`` called every few seconds, for as long as something else refers to this object."""
    _REMINDED.add(work)
    thread = _REMINDER_THREADS.get(os.getpid())
    if thread is None or not thread.is_alive():
        thread = threading.Thread(target=_remind_forever, name="cotrain-pace", daemon=True)
        _REMINDER_THREADS[os.getpid()] = thread
        thread.start()


def _remind_forever() -> None:
    while True:
        time.sleep(max(PACE_SECONDS, 1.0))
        _remind_all()


def _remind_all() -> None:
    """A function of its own: a variable of the endless loop would keep the last work alive, and remind of it when it is
    over."""
    for work in list(_REMINDED):
        with suppress(Exception):  # the receiver may be gone
            work.remind()


def count_of(number: int, thing: str) -> str:
    """``1 step``, ``2 steps``, ``1,024 batches``."""
    if number == 1:
        return f"1 {thing}"
    ending = "es" if thing.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {thing}{ending}"


def first_sentence(description: str) -> str:
    """The first sentence of a description, on one line. The full stop of "et al.", "Dr." and "e.g." ends none."""
    paragraph = " ".join(description.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)(?<!\bal\.)(?<!\bDr\.)(?<!\be\.g\.)(?<!\bi\.e\.) (?=[A-Z`])", paragraph)[0]


def clock_text(seconds: float) -> str:
    """``75`` as ``1:15``, hours as ``2:03:10``."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


# -- Standard output and error that never fail: a run goes on when nobody reads them any more, as after a closed pipe.


ENCODING_ERRORS = "backslashreplace"  # how characters are written that the stream's encoding does not have
_LOST: dict[str, str] = {}  # name of a stream → why nothing reaches its reader any more


def lost_streams() -> dict[str, str]:
    """The streams whose text reaches nobody any more, "stdout" and "stderr", with the reason."""
    return dict(_LOST)


def secure_streams() -> None:
    """Replace standard output and error by streams that never fail, and make tracebacks safe to show. To be called
    once, by the command."""
    sys.excepthook = print_traceback
    sys.stdout = _secure_stream(sys.stdout, 1, "stdout")
    sys.stderr = _secure_stream(sys.stderr, 2, "stderr")


def print_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print an error with its traceback, without control characters."""
    lines = "".join(traceback.format_exception(kind, error, where)).rstrip("\n").split("\n")
    print("\n".join(escape_terminal(_without_middle(line)) for line in lines), file=sys.stderr, flush=True)


def _secure_stream(stream: TextIO | None, fd: int, name: str) -> TextIO:
    if stream is None:
        # It was closed before the command began. Something has to take its descriptor, or the next file that is opened
        # would, and get what is printed.
        _LOST[name] = "closed from the beginning"
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != fd:
            os.dup2(nowhere, fd)
            os.close(nowhere)
        return open(fd, "w", encoding="utf-8", errors=ENCODING_ERRORS, closefd=False)

    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    raw: Any = _LenientFile(os.dup(stream.fileno()), name)  # a copy, as a user's code may close the descriptor itself
    return _StaysOpen(
        raw if stream.write_through else io.BufferedWriter(raw),  # with PYTHONUNBUFFERED each text goes out at once
        encoding=stream.encoding,
        errors=ENCODING_ERRORS,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _StaysOpen(io.TextIOWrapper):
    """A stream that ``close`` only flushes: a user's code may close it, and others print after that."""

    def close(self) -> None:
        self.flush()


class _LenientFile(io.FileIO):
    """A file that takes all that is written to it. After the first error it drops everything, and the stream counts as
    lost."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._name = name

    def write(self, block: Any) -> int:
        unwritten = memoryview(block).cast("B")
        size = unwritten.nbytes
        try:
            while unwritten and self._name not in _LOST:
                written = super().write(unwritten)
                if written is None:  # a full pipe that does not wait: the rest is dropped
                    break
                unwritten = unwritten[written:]
        except OSError as error:
            _LOST[self._name] = (error.strerror or str(error)).lower()
        return size
