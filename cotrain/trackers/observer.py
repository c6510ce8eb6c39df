"""Hands the rows of ``metrics.jsonl`` on to TensorBoard, wandb and trackio, none of which can stop or slow a run.

Each tracker lives in a thread of its own behind a bounded queue. The run only ever puts rows into the queue: one that
is full, a tracker that cannot be opened, raises or hangs costs rows *there*, which are counted and reported in one
line, while ``metrics.jsonl`` has them all. The thread is a daemon and is waited for at the end no longer than
``PATIENCE``.

Every finite number of a row is sent under its own key at its own step, and seconds and tokens a second with them, which
``metrics.jsonl`` leaves out because they depend on the clock. With the rows go the recipe's name, its seed and its
steps. Nothing about the machine is sent: no environment, no command, no paths, no code, no console. ``trackers.json``
in the run directory holds the id under which ``cotrain resume`` goes on.

A step may be done again, after a resume or where a run goes back to a checkpoint. TensorBoard and trackio then have the
last values of it. wandb keeps what it was sent first, so rows that come again are left out there, and the
run says so.

A few rollouts are sent too, with their texts and verdicts (``rollouts.py``): traces in trackio, tables in
wandb, text in TensorBoard. ``--tracker-rollouts 0`` sends none. Left out: all others, figures and weights; the report
and the ledger have them.
"""

from __future__ import annotations

import importlib.util
import json
import math
import queue
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName, install_extra
from cotrain.core.verbosity import count_of
from cotrain.runs.log import Observer
from cotrain.storage.file_ops import replace_file
from cotrain.storage.jsonl import try_read_object
from cotrain.trackers.rollouts import EVERY, is_sampled, sampled_rollouts
from cotrain.trackers.sinks import BEFORE_ALL, TRACKERS, Moment, Numbers, OpenTracker, Sink, TrackedRun

CAPACITY = 512  # rows that wait for a tracker
PATIENCE = 20.0  # seconds that the end of a run waits for all trackers together
NOTES = "trackers.json"


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """The trackers asked for, each once. Raises UnknownName, and ConfigError for one that is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownName("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"--tracker {name}: not installed; {install_extra(name)}", code="E_TRACKER_NOT_INSTALLED")
    return tuple(dict.fromkeys(names))


def trackers_of_run(directory: Path | str) -> tuple[str, ...]:
    """The trackers that a run was begun with."""
    names = try_read_object(Path(directory) / NOTES).get("trackers")
    return tuple(name for name in TRACKERS if isinstance(names, list) and name in names)


def rollouts_of_run(directory: Path | str) -> int:
    """How many rollouts of every tenth step the trackers of a run are sent."""
    rollouts = try_read_object(Path(directory) / NOTES).get("rollouts")
    return rollouts if isinstance(rollouts, int) else 0


def rollouts_note(trackers: Sequence[str], rollouts: int) -> list[str]:
    """The note that is printed before texts are sent anywhere; [] where none are."""
    if not trackers or not rollouts:
        return []
    return [
        f"note: {' and '.join(trackers)} will be sent {count_of(rollouts, 'rollout')} of every {EVERY}th step, with "
        "texts and verdicts; --tracker-rollouts 0 sends figures alone"
    ]


class TrackingObserver:
    """An observer that also hands every row to trackers. Use as a context: leaving it waits for them, a little."""

    def __init__(
        self,
        observer: Observer,
        directory: Path | str,
        trackers: Sequence[str] | Mapping[str, OpenTracker],
        *,
        about: Mapping[str, str | int] | None = None,
        rollouts: int = 0,
        capacity: int = CAPACITY,
        patience: float = PATIENCE,
    ) -> None:
        """``trackers``: names, or functions by name; ``about``: recipe, seed and steps, as they are sent to a
        tracker; ``rollouts``: of every tenth step that are sent."""
        self._observer = observer
        self._directory = Path(directory)
        self._open = trackers if isinstance(trackers, Mapping) else {name: TRACKERS[name] for name in trackers}
        self._config = dict(about or {})
        self._capacity = capacity
        self._patience = patience
        self._rollouts = rollouts
        self.mirrors: list[TrackerThread] = []

    def message(self, text: str) -> None:
        self._observer.message(text)

    def update(self, row: Mapping[str, Any]) -> None:
        self._observer.update(row)
        if self._open and not self.mirrors:  # not before: now there is a run directory, and something to say
            self._start_mirrors(_replaced_from(row))
        for mirror in self.mirrors:
            mirror.put_row(row)
            if warning := mirror.warning():
                self._observer.message(warning)

    def _start_mirrors(self, first: int) -> None:
        identity = try_read_object(self._directory / NOTES).get("id") or uuid.uuid4().hex[:12]
        notes = {"id": identity, "trackers": list(self._open), "rollouts": self._rollouts}
        replace_file(self._directory / NOTES, (json.dumps(notes) + "\n").encode())
        about = TrackedRun(
            directory=self._directory,
            id=str(identity),
            name=str(self._config.get("recipe", "run")),
            config=self._config,
            first=first,
            rollouts=self._rollouts,
        )
        self.mirrors = [TrackerThread(name, open_, about, self._capacity) for name, open_ in self._open.items()]

    def __enter__(self) -> TrackingObserver:
        return self

    def __exit__(self, *error: object) -> None:
        deadline = time.monotonic() + self._patience
        for mirror in self.mirrors:
            mirror.close()
        for mirror in self.mirrors:
            if lost := mirror.wait(deadline):
                self._observer.message(lost)


class TrackerThread:
    """One tracker in its thread. ``put`` never waits and never raises."""

    def __init__(self, name: str, open_: OpenTracker, about: TrackedRun, capacity: int) -> None:
        self.name = name
        self.taken = 0
        self.written = 0
        self._rows: queue.Queue[Mapping[str, Any]] = queue.Queue(capacity)
        self._closed = threading.Event()
        self._problem = ""
        self._left_out = False
        self._note = ""  # message that is still to be sent: which rows are left out
        self._warned = False
        self._thread = threading.Thread(
            target=self._write_rows, args=(open_, about), name=f"tracker {name}", daemon=True
        )
        self._thread.start()

    @property
    def dropped_rows(self) -> int:
        """Rows that did not get there, or not yet."""
        return self.taken - self.written

    def put_row(self, row: Mapping[str, Any]) -> None:
        self.taken += 1
        try:
            self._rows.put_nowait(dict(row))
        except queue.Full:
            self._problem = self._problem or f"it is {count_of(self._rows.maxsize, 'row')} behind"

    def warning(self) -> str:
        """One line, the first time that there is something wrong, or that a row is left out."""
        if note := self._note:
            self._note = ""
            return note
        if self._warned or not self._problem:
            return ""
        self._warned = True
        return f"tracker {self.name}: {self._problem}; the run goes on, and metrics.jsonl has every row"

    def close(self) -> None:
        self._closed.set()

    def wait(self, deadline: float) -> str:
        """Wait for what is queued, until ``deadline`` of the monotonic clock; what was lost, as one line."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._problem = self._problem or "it did not end in time and was left behind"
        if not (self.dropped_rows or self._problem):
            return self._note
        return f"tracker {self.name}: {self.dropped_rows} of {self.taken} rows did not get there ({self._problem})"

    def _write_rows(self, open_: OpenTracker, about: TrackedRun) -> None:
        try:
            sink = open_(about)
        except BaseException as error:  # noqa: BLE001 - whatever a tracker raises stays in its thread
            self._note_problem("could not be opened", error)
            return

        last = BEFORE_ALL if sink.keeps_first is None else sink.keeps_first.last
        while True:
            try:
                row = self._rows.get(timeout=0.05)
            except queue.Empty:
                if self._closed.is_set():
                    break
                continue

            moment = _moment_of(row)
            if moment <= last and sink.keeps_first is not None:
                self._leave_out(moment, last)
                continue
            try:
                if moment <= last:
                    sink.close()
                    sink = open_(replace(about, first=_replaced_from(row)))
                sink.write(numbers_of(row), int(row["step"]))
                last = moment
                if sink.keeps_first is not None:
                    sink.keeps_first.note(moment)
                self.written += 1
                self._write_rollouts(sink, about, moment)
            except BaseException as error:  # noqa: BLE001 - as above; the next row may get there
                self._note_problem("refused a row", error)

        try:
            sink.close()
        except BaseException as error:  # noqa: BLE001 - as above
            self._note_problem("could not be closed", error)

    def _write_rollouts(self, sink: Sink, about: TrackedRun, moment: Moment) -> None:
        """Send rollouts of the step, where it is one of those whose rollouts are sent. Raises what the tracker does."""
        step, is_evaluation = moment
        if sink.write_rollouts is None or is_evaluation or not (about.rollouts and is_sampled(step)):
            return
        rollouts = sampled_rollouts(about.directory, step, about.rollouts)
        if rollouts:
            sink.write_rollouts(rollouts, step)

    def _leave_out(self, moment: Moment, last: Moment) -> None:
        """A row that was sent before."""
        self.written += 1
        if not self._left_out:
            self._left_out = True
            which = f"step {moment[0] + 1} was sent before"
            more = f"; it and all up to step {last[0] + 1} are" if last[0] > moment[0] else "; it is"
            self._note = f"tracker {self.name}: {which}, and what was sent first is kept there{more} left out"

    def _note_problem(self, what: str, error: BaseException) -> None:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._problem = self._problem or f"{what} ({type(error).__name__}: {first:.120})"


def _moment_of(row: Mapping[str, Any]) -> Moment:
    return int(row["step"]), row.get("kind") == "evaluation"


def _replaced_from(row: Mapping[str, Any]) -> int:
    """The first step whose rows are replaced by this one and those behind it: an evaluation is behind its step."""
    step, evaluated = _moment_of(row)
    return step + 1 if evaluated and step >= 0 else step


def numbers_of(row: Mapping[str, Any]) -> Numbers:
    """The finite numbers of a row, which a tracker can plot: truth values are 0 and 1, the step itself is left out."""
    numbers = {key: float(value) for key, value in row.items() if isinstance(value, int | float) and key != "step"}
    return {key: value for key, value in numbers.items() if math.isfinite(value)}
