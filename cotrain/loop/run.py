"""From a recipe to a finished run directory, through interruptions.

A checkpoint is one transaction over all policies; metrics and ledger are cut back to it on resume and written again,
byte for byte. On SIGINT or SIGTERM the step in progress is given up, the last finished state saved, and ``Interrupted``
raised; a second signal leaves at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from cotrain.backend.contract import Backend
from cotrain.backend.local import Local
from cotrain.core.errors import DataError
from cotrain.core.statistics import Estimate
from cotrain.disk import transaction
from cotrain.disk.jsonl import JsonlWriter, read_jsonl, truncate_after
from cotrain.disk.ledger import Ledger
from cotrain.disk.lock import RunLock
from cotrain.loop.costs import seconds_of
from cotrain.loop.directory import (
    RunDirectory,
    estimates_json,
    provenance,
    recipe_json,
    refuse_other,
    weights_hash,
)
from cotrain.loop.evaluation import has_split
from cotrain.loop.flops import flops_of
from cotrain.loop.policies import Weights
from cotrain.loop.problems import problems_json
from cotrain.loop.recipe import Recipe
from cotrain.loop.trainer import CoTrainer, Interrupted, StepResult
from cotrain.metrics.alarms import Monitor, with_examples
from cotrain.metrics.clusters import counts_json, paired_changes
from cotrain.tasks.reading import NAME as QUARANTINE
from cotrain.tasks.reading import Quarantine

USUAL = ("ood_length", "ood_template")  # splits that recipes ask for whether a source has them or not
STALENESS = ("balanced_accuracy", "true_positive_rate", "true_negative_rate")  # of judges, on the start's solutions


class Observer(Protocol):
    """Who watches a run: the live table, a test, nobody."""

    def message(self, text: str) -> None: ...

    def update(self, row: Mapping[str, Any]) -> None: ...


class Silent:
    """An observer that looks away."""

    def message(self, text: str) -> None: ...

    def update(self, row: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run."""

    directory: Path
    summary: Mapping[str, Any]  # as in summary.json


def start(
    recipe: Recipe,
    out: Path | str,
    *,
    checkpoint_every: int = 25,
    device: str = "cpu",
    backend: Backend | None = None,
    observer: Observer | None = None,
    wrap: Callable[[Any], Any] | None = None,
) -> Outcome:
    """Run a recipe into a new directory. Raises UserError for what the user can mend, Interrupted on a signal.

    ``backend``: who runs the policies; None: this process, on ``device``.
    """
    saved = recipe_json(recipe, checkpoint_every=checkpoint_every)
    check_problems(recipe)
    directory = RunDirectory.create(out)
    with directory.kept_once_begun():
        trainer_of = _builder(recipe, backend or Local(device), wrap)
        with RunLock(directory.path):
            directory.write("recipe.json", saved)
            directory.write("provenance.json", provenance(recipe, _weights(recipe), torch.get_num_threads(), device))
            observer = observer or Silent()
            aside = getattr(recipe.tasks, "quarantine", None)
            if isinstance(aside, Quarantine) and aside.refused:
                aside.write(directory.path / QUARANTINE)
                observer.message(f"note: {aside.line()}; all in {directory.path / QUARANTINE}")
            return _continue(directory, recipe, trainer_of, checkpoint_every, observer)


def resume(
    recipe: Recipe,
    out: Path | str,
    *,
    device: str = "cpu",
    backend: Backend | None = None,
    observer: Observer | None = None,
    wrap: Callable[[Any], Any] | None = None,
) -> Outcome:
    """Go on where a run was interrupted; a finished run only has its summary returned."""
    directory = RunDirectory.open(out)
    observer = observer or Silent()
    saved: Any = directory.read("recipe.json")  # ``open`` has seen it
    refuse_other(directory.path, saved, recipe)
    if (done := _finished(directory, observer)) is not None:
        return done
    with RunLock(directory.path):
        made = directory.read("provenance.json") or {}
        if made.get("threads") not in (None, torch.get_num_threads()):
            observer.message(
                f"note: this run was begun with {made['threads']} threads and goes on with {torch.get_num_threads()}: "
                "sums may round differently, so it is the same run but not bit for bit"
            )
        return _continue(
            directory,
            recipe,
            _builder(recipe, backend or Local(device), wrap),
            int(saved["checkpoint_every"]),
            observer,
        )


Build = Callable[[Callable[[], int]], CoTrainer]


def _builder(recipe: Recipe, backend: Backend, wrap: Callable[[Any], Any] | None) -> Build:
    stop: list[Callable[[], int]] = [lambda: 0]
    trainer = CoTrainer(recipe, backend=backend, stopping=lambda: stop[0](), wrap=wrap)

    def build(stopping: Callable[[], int]) -> CoTrainer:
        stop[0] = stopping
        return trainer

    return build


def check_problems(recipe: Recipe) -> None:
    """Raise DataError where a split that the run needs is empty: it would train, or measure, nothing; UnknownName where one
    is asked for that there is not."""
    for split in ("train", "test", *(["validation"] if recipe.evaluate_every else [])):
        if recipe.tasks.size(split) == 0:
            raise DataError(
                f"tasks {recipe.tasks.name!r}: no problem is left for {split}; bring more rows (one file is cut by a hash of each "
                "question into 80 % train, 10 % validation and 10 % test), or a directory with train.jsonl and test.jsonl"
            )
    for split in recipe.evaluation.splits:
        if split not in USUAL:
            recipe.tasks.size(split)  # raises UnknownName for one that the source does not have


def _weights(recipe: Recipe) -> dict[str, str]:
    """Hashes of what each policy begins with."""
    found = {}
    for name, spec in recipe.policies.items():
        found[name] = weights_hash(spec.model) if isinstance(spec, Weights) else ""
        if spec.lora is not None and spec.lora.path is not None:
            found[f"{name}/adapter"] = weights_hash(spec.lora.path)
    return found


def _finished(directory: RunDirectory, observer: Observer) -> Outcome | None:
    summary = directory.read("summary.json")
    if summary is None:
        return None
    observer.message(f"{directory.path} is finished: {summary['steps']} steps; see {directory.report}")
    return Outcome(directory=directory.path, summary=summary)


def _continue(
    directory: RunDirectory, recipe: Recipe, build: Build, checkpoint_every: int, observer: Observer
) -> Outcome:
    if (done := _finished(directory, observer)) is not None:
        return done
    with stop_on_signal() as stopping:
        trainer = build(stopping)
        _restore(directory, trainer, observer)
        try:
            return _work(directory, trainer, checkpoint_every, observer)
        except Interrupted:
            if trainer.finished > _saved_step(directory):
                _save(directory, trainer)
            observer.message(
                f"stopped after step {trainer.finished} of {recipe.steps}; nothing is lost. "
                f"Go on with: cotrain resume {directory.path}"
            )
            raise
        finally:
            trainer.close()


def _restore(directory: RunDirectory, trainer: CoTrainer, observer: Observer) -> None:
    checkpoint = transaction.latest(directory.checkpoints)
    if checkpoint is not None:
        for damage in checkpoint.damaged:
            observer.message(f"checkpoint {damage.path.name} is damaged ({damage.reason}) and was passed over")
        tensors, documents = checkpoint.load()
        trainer.load(documents["state"], tensors)
        observer.message(
            f"resuming at step {trainer.finished} of {trainer.recipe.steps}: {', '.join(tensors)} verified"
        )
    for path in (directory.metrics, directory.timings):
        truncate_after(path, trainer.finished - 1)
    trainer.flops = sum(flops_of(row) for row in _rows(directory.metrics))
    trainer.seconds = sum(seconds_of(row) for row in _rows(directory.timings))
    with Ledger(directory.episodes) as ledger:
        if any(policy.outside for policy in trainer.recipe.policies.values()):  # what they said is not asked again
            later = [step for step in ledger.steps() if step >= trainer.finished]
            trainer.backend.remember(t for step in later for e in ledger.read(step) for t in e.traces)
        ledger.truncate_after(trainer.finished - 1)


def _rows(path: Path) -> Iterable[Mapping[str, Any]]:
    return read_jsonl(path) if path.exists() else ()


def _saved_step(directory: RunDirectory) -> int:
    checkpoint = transaction.latest(directory.checkpoints)
    return -1 if checkpoint is None else checkpoint.step


def _save(directory: RunDirectory, trainer: CoTrainer) -> None:
    transaction.save(directory.checkpoints, trainer.finished, trainer.cast.tensors(), {"state": trainer.state()})


def _work(directory: RunDirectory, trainer: CoTrainer, checkpoint_every: int, observer: Observer) -> Outcome:
    recipe = trainer.recipe
    before = directory.read("before.json")
    if before is None:
        observer.message("measuring the start on held-out problems …")
        figures = final_figures(trainer)
        before = estimates_json(figures)
        directory.write("before_counts.json", counts_json(figures), indent=None)
        directory.write("before.json", before)
    measured, monitor = _last_measured(directory), _monitor(directory)
    metrics, timings, ledger = (
        JsonlWriter(directory.metrics),
        JsonlWriter(directory.timings),
        Ledger(directory.episodes),
    )
    with metrics, timings, ledger, _durable_on_exit(metrics, ledger):
        while True:
            step = trainer.finished - 1  # the last finished one, -1 at the start
            due = recipe.evaluate_every and (trainer.finished % recipe.evaluate_every == 0 or trainer.done)
            if due and measured < step + 1:
                row = _curve_row(trainer, step=step)
                metrics.append(row)
                observer.update(row)
                measured = step + 1
            if trainer.done:
                break
            if (
                trainer.finished
                and trainer.finished % checkpoint_every == 0
                and trainer.finished > _saved_step(directory)
            ):
                metrics.sync()
                ledger.sync()
                _save(directory, trainer)
            result = trainer.step()
            ledger.append(int(result.row["step"]), result.episodes)
            metrics.append(result.row)
            timings.append({"step": result.row["step"], **result.seconds, **result.engine_seconds})
            observer.update({**result.row, "seconds": sum(result.seconds.values()), **_rates(result)})
            for alarm in monitor.add(result.row):
                observer.message(with_examples(alarm, ledger.read).line())
    _save(directory, trainer)
    observer.message("measuring the end on held-out problems …")
    after, counts = final_figures(trainer), directory.read("before_counts.json")
    summary = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "steps": trainer.finished,
        "tokens": trainer.tokens,
        "flops": trainer.flops,
        "updates": trainer.cast.updates,
        "before": before,
        "after": estimates_json(after),
        "change": estimates_json(paired_changes(after, counts)) if counts else {},
        "alarms": [with_examples(alarm, ledger.read).json() for alarm in monitor.alarms],
    }
    directory.write("after_problems.json", problems_json(after), indent=None)
    directory.write("summary.json", summary)
    return Outcome(directory=directory.path, summary=summary)


def final_figures(trainer: CoTrainer) -> dict[str, Estimate]:
    """Figures on the test split, and with fewer episodes on the evaluation's further splits."""
    evaluation = trainer.recipe.evaluation
    figures, _ = trainer.evaluate("test", evaluation.tasks)
    if evaluation.fixed:
        still, _ = trainer.evaluate_fixed("test", evaluation.tasks)
        figures |= {_within("fixed", key): value for key, value in still.items() if "/" in key}
    for split in evaluation.splits:
        if not has_split(trainer.recipe.tasks, split):
            continue
        further, _ = trainer.evaluate(split, evaluation.tasks // 2, members=min(4, evaluation.members))
        figures |= {
            key if "/" not in key else _within(split, key): value for key, value in further.items() if "/" in key
        }
    return figures


def _within(split: str, key: str) -> str:
    role, name = key.split("/", 1)
    return f"{role}/{split}/{name}"


@contextmanager
def _durable_on_exit(*files: JsonlWriter | Ledger) -> Iterator[None]:
    """Sync the files on the way out, also through an interruption: the checkpoint saved next counts on them."""
    try:
        yield
    finally:
        for file in files:
            file.sync()


def _last_measured(directory: RunDirectory) -> int:
    """How many steps were finished at the last evaluation that the metrics file holds, -1 for none."""
    return max(
        (int(row["step"]) + 1 for row in _rows(directory.metrics) if row.get("kind") == "evaluation"), default=-1
    )


def _monitor(directory: RunDirectory) -> Monitor:
    """The health bands, with what the metrics file holds already read."""
    monitor = Monitor()
    for row in _rows(directory.metrics):
        monitor.add(row)
    return monitor


def _curve_row(trainer: CoTrainer, *, step: int) -> dict[str, Any]:
    """Figures on validation problems, and how the judges do on solutions that do not change while the run goes on: those
    of the frozen start, where the evaluation has one. The latter falls when a judge forgets what it need not see now."""
    evaluation = trainer.recipe.evaluation
    figures, _ = trainer.evaluate("validation", evaluation.curve_tasks)
    if evaluation.fixed:
        still, _ = trainer.evaluate_fixed("validation", evaluation.curve_tasks)
        figures |= {_within("fixed", k): v for k, v in still.items() if k.split("/")[-1] in STALENESS}
    row: dict[str, Any] = {"step": step, "kind": "evaluation", "tokens": trainer.tokens}
    row |= {f"updates/{policy}": count for policy, count in trainer.cast.updates.items()}
    row |= {f"eval/{key}": value.value for key, value in figures.items()}
    return row


def _rates(result: StepResult) -> dict[str, float]:
    """Tokens a second of each role while the protocol was played."""
    seconds = result.seconds["play"]
    spoken: dict[str, int] = {}
    for episode in result.episodes:
        for trace in episode.traces:
            spoken[trace.role] = spoken.get(trace.role, 0) + trace.sampled
    return {f"{role}/tokens_per_second": count / seconds for role, count in spoken.items()}


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], int]]:
    """While inside, the first SIGINT, SIGTERM or SIGHUP (a terminal that closes) is only remembered; the second raises
    KeyboardInterrupt. Yields a function that gives the signal's number, 0 before there was one. SIGHUP is left alone where it
    is ignored, as below ``nohup``."""
    asked = [0]
    if threading.current_thread() is not threading.main_thread():
        yield lambda: asked[0]
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked[0]:
            raise KeyboardInterrupt
        asked[0] = number

    heard = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield lambda: asked[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
