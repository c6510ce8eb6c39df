"""From a recipe to a finished run directory, through interruptions.

A checkpoint is one transaction over all policies; metrics and ledger are cut back to it on resume and written again,
byte for byte. On SIGINT or SIGTERM the step in progress is given up, the last finished state saved, and ``Interrupted``
raised; a second signal leaves at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cotrain.config.recipe import Recipe
from cotrain.core.errors import CotrainError, ProcessLost, RunDirectoryError, ServerSilent, error_text
from cotrain.core.verbosity import ProgressPrinter, count_of, notes_logged
from cotrain.distributed.contract import Backend
from cotrain.distributed.local import LocalBackend
from cotrain.metrics.alarms import Monitor, with_examples
from cotrain.metrics.clusters import counts_json, paired_changes
from cotrain.metrics.starved import SKIPPED
from cotrain.metrics.steps import flops_of
from cotrain.runs import manifest
from cotrain.runs.code_record import check_code_unchanged, first_record, record_changed_code, remember_code
from cotrain.runs.directory import (
    AFTER_PROBLEMS,
    CODE,
    STOPPED,
    RunDirectory,
    check_same_recipe,
    estimates_json,
    hash_entries,
    provenance_json,
    rows_of,
)
from cotrain.runs.figures import (
    best_step,
    curve_row,
    end_figures,
    final_figures,
    last_measured,
    problems_json,
    progress_shown,
    seconds_of,
    throughput_row,
    timings_row,
)
from cotrain.runs.fitting import crowded_notes, too_long_notes, with_packing
from cotrain.runs.log import LoggingObserver, Observer, SilentObserver
from cotrain.runs.model_paths import pin_model_names, prepare_recipe, weights_of
from cotrain.runs.out_of_room import DiskRetry, memory_limits, restore_limits
from cotrain.runs.out_of_room import oom_messages as short_of
from cotrain.storage import checkpoints
from cotrain.storage.file_ops import FileDigest, GrowingFileHash
from cotrain.storage.jsonl import JsonlWriter, cut_to_size, truncate_after
from cotrain.storage.ledger import Ledger
from cotrain.storage.lock import RunLock
from cotrain.storage.schemas import QUARANTINE
from cotrain.trainer.async_rollouts import AHEAD
from cotrain.trainer.failures import Diverged, Interrupted, LostProcesses, NotFinite, SkipGuard, stop_on_signal
from cotrain.trainer.trainer import CoTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run."""

    directory: Path
    summary: Mapping[str, Any]  # content of summary.json


def start_run(
    recipe: Recipe,
    out: Path | str,
    *,
    checkpoint_every: int = 25,
    keep_every: int = 0,
    device: str = "cpu",
    backend: Backend | None = None,
    observer: Observer | None = None,
    wrap_engine: Callable[[Any], Any] | None = None,
    async_steps: int = 0,
) -> RunResult:
    """Run a recipe into a new directory. Raises UserError for what the user can mend, Interrupted on a signal.

    ``backend``: who runs the policies; None: this process, on ``device``. ``async_steps``: see ``async_rollouts.py``.
    """
    backend = backend or LocalBackend(device)
    recipe, notes = with_packing(recipe, backend.describe())
    recipe, saved = prepare_recipe(
        recipe, checkpoint_every=checkpoint_every, keep_every=keep_every, async_steps=async_steps
    )
    with RunDirectory.begin(out) as directory:
        trainer = CoTrainer(recipe, backend=backend, wrap_engine=wrap_engine, async_steps=async_steps)
        _set_unsayable_aside(trainer)
        versions = provenance_json(recipe, weights_of(recipe.policies), torch.get_num_threads(), backend.describe())
        observer = LoggingObserver(observer or SilentObserver(), directory.path)
        for note in notes:
            observer.message(note)
        aside = getattr(recipe.tasks, "quarantine", None)
        grown = {} if aside is None else _write_quarantine(aside, directory.path / QUARANTINE, observer)
        files = {"provenance.json": versions, CODE: first_record(recipe), "recipe.json": saved}
        directory.write_with_hashes({name: value for name, value in files.items() if value is not None}, grown)
        remember_code(directory.path, recipe)
        return _continue_run(directory, trainer, checkpoint_every, observer)


def _set_unsayable_aside(trainer: CoTrainer) -> None:
    """Refuse replies of a file that cannot follow their prompts, or set them aside; a run of other tasks loads nothing
    for it."""
    if hasattr(trainer.recipe.tasks, "set_aside"):
        from cotrain.runs.check_replies import set_unsayable_aside

        set_unsayable_aside(trainer)


def _write_quarantine(set_aside_rows: Any, path: Path, observer: Observer) -> dict[str, FileDigest]:
    """Write the rows that a task source has set aside, if there are any; the file's digest by its name."""
    from cotrain.data.malformed_rows import Quarantine

    if not (isinstance(set_aside_rows, Quarantine) and set_aside_rows.refused):
        return {}
    set_aside_rows.write(path)
    observer.message(f"note: {set_aside_rows.summary_line()}; all in {path}")
    return {path.name: GrowingFileHash(path).digest_all()}


def resume_run(
    recipe: Recipe,
    out: Path | str,
    *,
    device: str = "cpu",
    backend: Backend | None = None,
    observer: Observer | None = None,
    wrap_engine: Callable[[Any], Any] | None = None,
    changed_code: bool = False,
) -> RunResult:
    """Go on where a run was interrupted; a finished run only has its summary returned. ``changed_code``: also with
    other code of the user's than it was begun with."""
    from cotrain.runs.changes import with_recorded_packing

    directory = RunDirectory.open(out)
    observer = LoggingObserver(observer or SilentObserver(), directory.path)
    with RunLock(directory.path):
        manifest.verify_files(directory)
        checkpoints.sweep_leftovers(directory.checkpoints)
        saved: Any = directory.read("recipe.json")  # ``open`` has seen it
        recipe = with_recorded_packing(pin_model_names(recipe, saved), saved)
        check_same_recipe(directory.path, saved, recipe)
        if (done := _finished_result(directory, observer)) is not None:
            return done
        if not changed_code:
            check_code_unchanged(directory.path)
        if (line := record_changed_code(directory, recipe, from_step=max(_saved_step(directory), 0))) is not None:
            observer.message(line)
        versions: Any = directory.read("provenance.json")
        if versions["threads"] != torch.get_num_threads():
            observer.message(
                f"note: this run was begun with {count_of(versions['threads'], 'thread')} and goes on with "
                f"{torch.get_num_threads()}: sums may round differently, so it is the same run but not bit for bit"
            )
        async_steps = int(saved.get("async_steps", 0))
        trainer = CoTrainer(
            recipe, backend=backend or LocalBackend(device), wrap_engine=wrap_engine, async_steps=async_steps
        )
        _set_unsayable_aside(trainer)
        return _continue_run(directory, trainer, int(saved["checkpoint_every"]), observer)


def _finished_result(directory: RunDirectory, observer: Observer) -> RunResult | None:
    summary = directory.read("summary.json")
    if summary is None:
        return None
    observer.message(f"{directory.path} is finished: {count_of(summary['steps'], 'step')}; see {directory.report}")
    return RunResult(directory=directory.path, summary=summary)


def _continue_run(
    directory: RunDirectory, trainer: CoTrainer, checkpoint_every: int, observer: LoggingObserver
) -> RunResult:
    """Measure the start, load the newest checkpoint and do the steps that are left. After numbers that are not finite,
    or the loss of a process, go back and on from there."""
    with stop_on_signal() as stopping, notes_logged(observer.log_line):
        trainer.stop_on(stopping)
        record, retry_on_full_disk = manifest.CheckpointRecord(directory), DiskRetry(stopping, observer)
        (directory.path / STOPPED).unlink(missing_ok=True)
        trainer.policies.begin_at(directory.begin_time)
        trainer.policies.report_to(observer.message)
        trainer.eval_progress = lambda total: (
            ProgressPrinter(total, "  measured {} episodes", observer.message, at_once=True).add
        )
        checkpoint = manifest.newest_checkpoint(directory)
        for damage in checkpoint.checkpoint.damaged if checkpoint else ():
            observer.message(f"checkpoint {damage.path.name} is damaged ({damage.reason}) and was passed over")
        before: dict[str, Any] | None = None  # metrics before training, once they are measured
        result: RunResult | None = None
        failure: NotFinite | ProcessLost | None = None  # error that ended the previous attempt
        losses = LostProcesses()
        try:
            while result is None:
                try:
                    if isinstance(failure, NotFinite):
                        _roll_back(directory, trainer, failure, observer)
                    elif failure is not None:
                        _recover_lost(directory, trainer, failure, observer, to_start=before is None)
                    if before is None:
                        trainer.policies.check_folder(directory.path)
                        before = _measure_start(directory, trainer, checkpoint, observer, retry_on_full_disk)
                        _remember_answers(directory, trainer, checkpoint)
                        _restore_checkpoint(directory, trainer, checkpoint, observer)
                    result = _run_steps(
                        directory, trainer, before, record, checkpoint_every, observer, retry_on_full_disk
                    )
                except NotFinite as error:
                    if before is None:
                        raise
                    failure, record = error, manifest.CheckpointRecord(directory)
                except ProcessLost as lost:
                    losses.count_loss(trainer.finished_steps, lost)
                    failure, record = lost, manifest.CheckpointRecord(directory)
            return result
        except Interrupted:
            if before is not None and trainer.finished_steps > _saved_step(directory):  # before that, there is nothing
                # to save
                with suppress(NotFinite, ProcessLost):  # a state that cannot be saved: the run goes on from the
                    # checkpoint before
                    _save_checkpoint(directory, trainer, record)
            observer.message(
                f"stopped after step {max(trainer.finished_steps, _saved_step(directory))} of {trainer.recipe.steps}; "
                f"nothing is lost. Go on with: cotrain resume {directory.path}"
            )
            raise
        except Exception as error:
            if before is not None or isinstance(error, ServerSilent):  # before that, there is nothing to look at
                with suppress(OSError, CotrainError):
                    written = {"steps": trainer.finished_steps, "error": error_text(error)}
                    if isinstance(error, CotrainError):
                        written["code"] = error.code
                    directory.write(STOPPED, written)
            raise
        finally:
            trainer.close()


def _recover_lost(
    directory: RunDirectory, trainer: CoTrainer, lost: ProcessLost, observer: Observer, *, to_start: bool
) -> None:
    """Processes were lost: to the newest checkpoint, or the start, and on from there with the same draws. ``to_start``:
    the start has not been measured yet."""
    saved = None if to_start else manifest.newest_checkpoint(directory)
    where = "the start" if saved is None else saved.checkpoint.path.name
    observer.message(f"{lost}; going back to {where}")
    trainer.backend.restart_lost_processes()
    if saved is None:
        trainer.reset_run()
    if not to_start:
        _restore_checkpoint(directory, trainer, saved, observer)


def _measure_start(
    directory: RunDirectory,
    trainer: CoTrainer,
    saved: manifest.VerifiedCheckpoint | None,
    observer: Observer,
    retry_on_full_disk: DiskRetry,
) -> dict[str, dict[str, Any]]:
    """Metrics before training; measured now if their files are not there."""
    saved_figures = directory.read("before.json")
    if saved_figures is not None and (directory.path / "before_counts.json").exists():
        return dict(saved_figures)
    for line in (*too_long_notes(trainer), *crowded_notes(trainer)) if saved is None else ():
        observer.message(line)
    with progress_shown(trainer, "the start", observer.message):
        figures = final_figures(trainer)
    start_files = {"before_counts.json": counts_json(figures), "before.json": estimates_json(figures)}
    stepped = saved is not None and saved.checkpoint.step
    if stepped and not hash_entries(start_files).items() <= directory.recorded_hashes().items():
        raise RunDirectoryError(
            f"{directory.path / 'before.json'} was lost, and the start's figures come out otherwise on this machine; "
            "restore it, or start anew",
            code="E_START_FIGURES_DIFFER",
        )
    retry_on_full_disk(directory.write_with_hashes, start_files)
    return start_files["before.json"]


def _remember_answers(directory: RunDirectory, trainer: CoTrainer, saved: manifest.VerifiedCheckpoint | None) -> None:
    """Remember the answers of other servers in steps that will be collected again, so that they are not asked again."""
    if any(policy.outside for policy in trainer.recipe.policies.values()):
        with Ledger(directory.episodes) as ledger:
            later = [step for step in ledger.steps() if saved is None or step >= saved.checkpoint.step]
            trainer.backend.cache_remote_answers(t for step in later for e in ledger.read(step) for t in e.traces)


def _restore_checkpoint(
    directory: RunDirectory, trainer: CoTrainer, saved: manifest.VerifiedCheckpoint | None, observer: Observer
) -> None:
    """Load the checkpoint, and cut the files back to what they were when it was saved."""
    documents: dict[str, Any] = {}
    if saved is not None:
        tensors, documents = saved.load()
        trainer.load(documents["state"], tensors, documents.get(AHEAD))
        observer.message(
            f"resuming after step {trainer.finished_steps} of {trainer.recipe.steps}: {', '.join(tensors)} verified"
        )
    restore_limits(trainer.policies, trainer.engine, documents)
    cut_to_size(directory.metrics, saved.files[manifest.METRICS].bytes if saved else 0)
    for path in (directory.timings, directory.path / SKIPPED):
        truncate_after(path, trainer.finished_steps - 1)
    trainer.flops = sum(flops_of(row) for row in rows_of(directory.metrics))
    trainer.seconds = sum(seconds_of(row) for row in rows_of(directory.timings))
    with Ledger(directory.episodes) as ledger:
        ledger.truncate_after(trainer.finished_steps - 1)


def _roll_back(directory: RunDirectory, trainer: CoTrainer, error: NotFinite, observer: Observer) -> None:
    """Roll back to the newest checkpoint and go on with another seed. Raises Diverged if that was done before."""
    saved = manifest.newest_checkpoint(directory)
    advice = "lower the learning rate, or look at the rewards"
    if saved is None or trainer.rollback_count:
        again = "and so it was after going back to a checkpoint"
        what = "there is no checkpoint to go back to" if saved is None else again
        kept_note = "" if saved is None else f"; {saved.checkpoint.path} is kept"
        raise Diverged(f"stopped after step {trainer.finished_steps}: {error}, {what}; {advice}{kept_note}") from error
    observer.message(
        f"going back to {saved.checkpoint.path.name}, and on from there with other draws: {error}; {advice}"
    )
    trainer.backend.cache_remote_answers(())  # with another seed, requests are others
    _restore_checkpoint(directory, trainer, saved, observer)
    trainer.reseed(1)
    _save_checkpoint(directory, trainer, manifest.CheckpointRecord(directory))


def _load_best(directory: RunDirectory, trainer: CoTrainer, step: int, observer: Observer) -> None:
    """Load what the policies were after ``step`` steps: the best of the evaluations on validation problems."""
    if step == trainer.finished_steps:
        return
    tensors, documents = manifest.checkpoint_at(directory, step).load()
    trainer.load(documents["state"], tensors, documents.get(AHEAD))
    observer.message(f"the end is the state after step {step}, the best in {trainer.recipe.evaluation.best}")


def _saved_step(directory: RunDirectory) -> int:
    checkpoint = checkpoints.latest_checkpoint(directory.checkpoints)
    return -1 if checkpoint is None else checkpoint.step


def _save_checkpoint(directory: RunDirectory, trainer: CoTrainer, record: manifest.CheckpointRecord) -> None:
    """Raises NotFinite for weights that no run can go on with."""
    tensors = trainer.policies.checkpoint_parts()
    more = {} if (played := trainer.rollouts.state()) is None else {AHEAD: played}
    more |= memory_limits(trainer.policies, trainer.engine)
    documents = {"state": trainer.state(), manifest.RECORD: record.to_json(), **more}
    saved: Any = directory.read("recipe.json")
    best = best_step(directory, trainer.recipe.evaluation.best)
    keep_every, kept = int(saved.get("keep_every", 0)), [] if best is None else [best]
    checkpoints.save_checkpoint(
        directory.checkpoints, trainer.finished_steps, tensors, documents, keep_every=keep_every, kept=kept
    )


def _run_steps(
    directory: RunDirectory,
    trainer: CoTrainer,
    before: Mapping[str, Any],
    record: manifest.CheckpointRecord,
    checkpoint_every: int,
    observer: Observer,
    retry_on_full_disk: DiskRetry,
) -> RunResult:
    recipe = trainer.recipe
    reported_tasks: set[str] = set()
    first = trainer.finished_steps  # first step that this command does
    last_evaluated_step, guard = last_measured(directory), SkipGuard()
    monitor = Monitor(problems=recipe.tasks_per_step)
    for row in rows_of(directory.metrics):
        monitor.add_row(row)
        guard.add_row(row)
    metrics, timings, ledger = (
        JsonlWriter(directory.metrics, shows_progress=True),
        JsonlWriter(directory.timings),
        Ledger(directory.episodes),
    )

    def save() -> None:
        metrics.sync()
        ledger.sync()
        retry_on_full_disk(_save_checkpoint, directory, trainer, record)

    with metrics, timings, ledger, _durable_on_exit(metrics, ledger):
        while True:
            step = trainer.finished_steps - 1  # index of the last finished step, -1 before the first
            if trainer.is_evaluation_due() and last_evaluated_step < step + 1:
                row = curve_row(trainer, step=step)
                retry_on_full_disk(metrics.append, row)
                observer.update(row)
                last_evaluated_step = step + 1
                if best_step(
                    directory, recipe.evaluation.best
                ) == last_evaluated_step and last_evaluated_step > _saved_step(directory):
                    save()
            if trainer.is_done:
                break
            due = trainer.finished_steps > 0 and trainer.finished_steps % checkpoint_every == 0
            if due and trainer.finished_steps > _saved_step(directory):
                save()
            with _first_play_shown(trainer, first, observer):
                result = trainer.step()
            _name_set_aside(trainer, reported_tasks, observer)
            retry_on_full_disk(ledger.append, int(result.row["step"]), result.episodes, result.advantages)
            retry_on_full_disk(metrics.append, result.row)
            retry_on_full_disk(timings.append, timings_row(result))
            observer.update({**result.row, "seconds": sum(result.seconds.values()), **throughput_row(result)})
            if result.skipped_updates:
                with JsonlWriter(directory.path / SKIPPED) as skipped:
                    for batch in result.skipped_updates:
                        skipped.append(batch)
            for line in short_of(result.row):
                observer.message(line)
            for alarm in monitor.add_row(result.row):
                observer.message(with_examples(alarm, ledger.read).line())
            guard.add_row(result.row)
    for alarm in monitor.end_run():
        observer.message(alarm.line())
    if trainer.finished_steps > _saved_step(directory):
        retry_on_full_disk(_save_checkpoint, directory, trainer, record)
    spent = {
        "steps": trainer.finished_steps,
        "tokens": trainer.tokens,
        "flops": trainer.flops,
        "updates": dict(trainer.policies.update_counts),
    }
    chosen = best_step(directory, recipe.evaluation.best)
    if chosen is not None:
        spent["chosen"] = chosen
        _load_best(directory, trainer, chosen, observer)
    with progress_shown(trainer, "the end", observer.message):
        after, counts = end_figures(trainer, observer.message), directory.read("before_counts.json")
    _name_set_aside(trainer, reported_tasks, observer)
    summary = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        **spent,
        "before": before,
        "after": estimates_json(after),
        "change": estimates_json(paired_changes(after, counts)) if counts else {},
        "alarms": [with_examples(alarm, ledger.read).to_json() for alarm in monitor.alarms],
    }
    retry_on_full_disk(
        directory.write_with_hashes,
        {AFTER_PROBLEMS: problems_json(after), "summary.json": summary},
        record.growing_files(),
    )
    return RunResult(directory=directory.path, summary=summary)


@contextmanager
def _first_play_shown(trainer: CoTrainer, first: int, observer: Observer) -> Iterator[None]:
    """Say how far the play of the command's first step is, which may take minutes while nobody knows how long a step
    lasts."""
    if trainer.finished_steps == first:
        what = f"  step {first + 1}: played {{}} episodes"
        trainer.runner.progress = lambda total: ProgressPrinter(total, what, observer.message, at_once=True).add
    try:
        yield
    finally:
        trainer.runner.progress = None


def _name_set_aside(trainer: CoTrainer, reported_tasks: set[str], observer: Observer) -> None:
    """Say of each problem that did not fit, once."""
    for task, why in trainer.set_aside().items():
        if task not in reported_tasks:
            reported_tasks.add(task)
            observer.message(f"note: problem {task} is set aside: {why}")


@contextmanager
def _durable_on_exit(*files: JsonlWriter | Ledger) -> Iterator[None]:
    """Sync the files on the way out, also through an interruption: the checkpoint saved next counts on them."""
    try:
        yield
    finally:
        for file in files:
            file.sync()
