"""Writes and reports a run's steps as they are finished: metrics, timings, the ledger, the live table, alarms.

A ``StepRecorder`` is told what happened (``runs/run.py``). It raises NotFinite where a policy has skipped too many
updates; else nothing here changes what is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cotrain.metrics.alarms import Monitor, with_examples
from cotrain.metrics.starved import SKIPPED
from cotrain.runs.directory import RunDirectory, rows_of
from cotrain.runs.figures import last_measured, throughput_row, timings_row
from cotrain.runs.log import Observer
from cotrain.runs.out_of_room import DiskRetry, oom_messages
from cotrain.storage.jsonl import JsonlWriter
from cotrain.storage.ledger import Ledger
from cotrain.trainer.failures import SkipGuard
from cotrain.trainer.step_meter import StepResult
from cotrain.trainer.trainer import CoTrainer


class StepRecorder:
    """Writes down what each step came to, and says what is worth a word."""

    def __init__(self, directory: RunDirectory, trainer: CoTrainer, observer: Observer, disk: DiskRetry) -> None:
        self._directory = directory
        self._trainer = trainer
        self._observer = observer
        self._disk = disk
        self._reported_tasks: set[str] = set()  # problems that did not fit, and were named
        self._monitor = Monitor(problems=trainer.recipe.tasks_per_step)
        self._guard = SkipGuard()
        self.last_evaluated_step = last_measured(directory)  # steps finished at the last evaluation, -1 for none
        self.recorded_steps = trainer.finished_steps  # steps of which ledger, metrics and timings have all
        for row in rows_of(directory.metrics):
            self._monitor.add_row(row)
            self._guard.add_row(row)
        self.metrics = JsonlWriter(directory.metrics, is_watched=True)
        self.timings = JsonlWriter(directory.timings)
        self.ledger = Ledger(directory.episodes)

    def add_evaluation(self, row: Mapping[str, Any]) -> None:
        """Validation problems were measured."""
        self._disk(self.metrics.append, row)
        self._observer.update(row)
        self.last_evaluated_step = self._trainer.finished_steps

    def add_step(self, result: StepResult) -> None:
        """A step is finished. Raises NotFinite where a policy has skipped too many updates."""
        self.report_set_aside_tasks()
        self._write(result)
        self._say(result)
        self._guard.add_row(result.row)

    def _write(self, result: StepResult) -> None:
        self._disk(self.ledger.append, int(result.row["step"]), result.episodes, result.advantages)
        self._disk(self.metrics.append, result.row)
        self._disk(self.timings.append, timings_row(result))
        if result.skipped_updates:
            with JsonlWriter(self._directory.path / SKIPPED) as skipped:
                for batch in result.skipped_updates:
                    skipped.append(batch)
        self.recorded_steps += 1
        self._observer.update({**result.row, "seconds": sum(result.seconds.values()), **throughput_row(result)})

    def _say(self, result: StepResult) -> None:
        for line in oom_messages(result.row):
            self._observer.message(line)
        for alarm in self._monitor.add_row(result.row):
            self._observer.message(with_examples(alarm, self.ledger.read).line())

    def report_set_aside_tasks(self) -> None:
        """Say of each problem that did not fit a context, once."""
        for task, why in self._trainer.set_aside().items():
            if task not in self._reported_tasks:
                self._reported_tasks.add(task)
                self._observer.message(f"note: problem {task} is set aside: {why}")

    def sync(self) -> None:
        """Bring metrics and ledger to the disk: the checkpoint that is saved next counts on them."""
        self.metrics.sync()
        self.ledger.sync()

    def end_run(self) -> None:
        """All steps are done: say what only their end shows."""
        for alarm in self._monitor.end_run():
            self._observer.message(alarm.line())

    def alarms_json(self) -> list[dict[str, Any]]:
        """The alarms of the run, for its summary."""
        return [with_examples(alarm, self.ledger.read).to_json() for alarm in self._monitor.alarms]


@contextmanager
def recording_steps(
    directory: RunDirectory, trainer: CoTrainer, observer: Observer, disk: DiskRetry
) -> Iterator[StepRecorder]:
    """The recorder of a run, whose files are on the disk when the block ends, also through an interruption."""
    recorder = StepRecorder(directory, trainer, observer, disk)
    with recorder.metrics, recorder.timings, recorder.ledger:
        try:
            yield recorder
        finally:
            recorder.sync()
