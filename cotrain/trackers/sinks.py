"""The trackers that a run can write to, one function each: it opens the tracker and returns a ``Sink`` of rows.

A further tracker is a function ``OpenTracker`` and its name in ``TRACKERS``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.storage.file_ops import replace_file
from cotrain.storage.jsonl import try_read_object
from cotrain.trackers.rollouts import TrackedRollout

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Facts of a run that a tracker gets besides the rows."""

    directory: Path  # directory of the run
    id: str  # id of the tracker's run, the same after a resume
    name: str
    config: Mapping[str, str | int]
    first: int  # step of the first row to come: what is there from it on is replaced
    rollouts: int = 0  # rollouts of every tenth step that the tracker is sent


Moment = tuple[int, bool]  # the step of a row, and whether it is of the evaluation behind that step
BEFORE_ALL: Moment = (-2, False)


class Sink:
    """A destination of rows. ``write`` and ``close`` are only called by the tracker's own thread."""

    def __init__(
        self,
        write: Callable[[Numbers, int], None],
        close: Callable[[], None],
        *,
        write_rollouts: Callable[[Sequence[TrackedRollout], int], None] | None = None,
        keeps_first: SentRows | None = None,
    ) -> None:
        """``write_rollouts``: for a tracker that shows texts. ``keeps_first``: for a tracker that cannot replace what
        it was sent, what that was."""
        self.write = write
        self.close = close
        self.keeps_first = keeps_first
        self.write_rollouts = write_rollouts


class SentRows:
    """The last row that a tracker was sent, in a file of its own, so that a resumed run knows it too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        saved = try_read_object(path)
        step = saved.get("step")
        evaluated = saved.get("evaluated")
        self.last: Moment = (step, bool(evaluated)) if isinstance(step, int) else BEFORE_ALL

    def note(self, moment: Moment) -> None:
        """It was sent."""
        self.last = moment
        step, evaluated = moment
        replace_file(self._path, f"{json.dumps({'step': step, 'evaluated': evaluated})}\n".encode())


OpenTracker = Callable[[TrackedRun], Sink]


def open_tensorboard(about: TrackedRun) -> Sink:
    """Event files in RUN/tensorboard. What an interrupted run wrote beyond its checkpoint is purged by TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter

    purge = about.first if about.first > 0 else None
    writer = SummaryWriter(str(about.directory / "tensorboard"), purge_step=purge, flush_secs=10)

    def write(numbers: Numbers, step: int) -> None:
        for key, value in numbers.items():
            writer.add_scalar(key, value, step)

    def write_rollouts(rollouts: Sequence[TrackedRollout], step: int) -> None:
        for place, rollout in enumerate(rollouts, 1):
            writer.add_text(f"rollouts/{place}", rollout.markdown(), step)

    return Sink(write, writer.close, write_rollouts=write_rollouts)


def open_wandb(about: TrackedRun) -> Sink:
    """A run of wandb, online or as WANDB_MODE says; its own files lie in RUN/wandb. "step" is the axis of every key;
    wandb's own count, by which it puts the parts of a resumed run together, is of finished steps: 0 is the start."""
    import wandb as library

    # wandb prints nothing, and sends nothing of this machine and of the code: ``about.config`` and the rows alone.
    quiet: dict[str, Any] = {
        "console": "off",
        "silent": True,
        "save_code": False,
        "host": "-",
        "program": "cotrain",
        "disable_git": True,
        "disable_code": True,
        "disable_job_creation": True,
        "x_disable_meta": True,
        "x_disable_stats": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
    }
    run = library.init(
        project="cotrain",
        id=about.id,
        name=about.name,
        config=dict(about.config),
        resume="allow",
        dir=str(about.directory),
        settings=library.Settings(**quiet),
    )
    run.define_metric("*", step_metric="step")

    def write(numbers: Numbers, step: int) -> None:
        run.log({**numbers, "step": step}, step=step + 1)  # wandb's own count: finished steps

    def write_rollouts(rollouts: Sequence[TrackedRollout], step: int) -> None:
        columns: list[str | int] = ["rollout", "truth", "verdicts", "rewards", "text"]
        rows = [[r.address, r.truth, r.verdicts, r.rewards, r.markdown()] for r in rollouts]
        run.log({"rollouts": library.Table(columns=columns, data=rows)}, step=step + 1)

    return Sink(
        write,
        run.finish,
        write_rollouts=write_rollouts,
        keeps_first=SentRows(about.directory / "wandb" / "sent.json"),
    )


def open_trackio(about: TrackedRun) -> Sink:
    """A run of trackio in its own local store; see TRACKIO_DIR and its documentation for a Space. What an interrupted
    run wrote beyond its checkpoint is removed from that store."""
    import trackio as library

    name = f"{about.name}-{about.id}"
    _remove_from_trackio(name, about.first)
    library.init(project="cotrain", name=name, config=dict(about.config), resume="allow")

    def write_rollouts(rollouts: Sequence[TrackedRollout], step: int) -> None:
        traces = {f"rollouts/{place}": library.Trace(*_trace_of(r)) for place, r in enumerate(rollouts, 1)}
        library.log(traces, step=step)

    shows_texts = hasattr(library, "Trace")  # older versions do not
    return Sink(
        lambda numbers, step: library.log(numbers, step=step),
        library.finish,
        write_rollouts=write_rollouts if shows_texts else None,
    )


def _trace_of(rollout: TrackedRollout) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The messages and the metadata of a rollout, as trackio has them."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": rollout.problem}]
    for turn in rollout.turns:
        messages.append({"role": "assistant", "name": turn.role, "content": f"{turn.role}: {turn.text}"})
    metadata = {
        "rollout": rollout.address,
        "truth": rollout.truth,
        "verdicts": rollout.verdicts,
        "rewards": rollout.rewards,
    }
    return messages, metadata


def _remove_from_trackio(name: str, first: int) -> None:
    """Remove the rows of a run from ``first`` on from trackio's store, where it has any."""
    from trackio.sqlite_storage import SQLiteStorage

    path = SQLiteStorage.get_project_db_path("cotrain")
    if path.is_file():
        with closing(sqlite3.connect(path, timeout=30.0)) as database, database:
            there = {table for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in ("metrics", "traces"):
                if table in there:
                    database.execute(f"DELETE FROM {table} WHERE run_name = ? AND step >= ?", (name, first))


TRACKERS: dict[str, OpenTracker] = {"tensorboard": open_tensorboard, "wandb": open_wandb, "trackio": open_trackio}
