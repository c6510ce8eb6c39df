"""From a recipe to a finished run directory, through interruptions.

::

    start_run, resume_run
      └─ _train_to_end
           └─ _train_through_failures
                ├─ _begin     measure the start, restore the checkpoint
                └─ _train     evaluate, save, step, until the steps are done
                     └─ _finish     measure the end, write the summary

A checkpoint is one transaction over all policies. On resume the metrics and the ledger (the episodes of every step) are
truncated to it, and written again byte for byte. On SIGINT or SIGTERM the step in progress is given up, the last
finished state saved, and ``Interrupted`` raised; a second signal leaves at once.

After numbers that are not finite the run goes back to its newest checkpoint and continues with another seed. After the
loss of a process it goes back in the same way and continues with the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cotrain.config.recipe import Recipe, check_due, check_problems
from cotrain.core.errors import CotrainError, ProcessLost, RunDirectoryError, ServerSilent, StateError, error_text
from cotrain.core.types import Trace
from cotrain.core.verbosity import clock_text, count_of, notes_logged
from cotrain.distributed.contract import Backend
from cotrain.distributed.local import LocalBackend
from cotrain.metrics.clusters import counts_json, paired_changes
from cotrain.metrics.steps import flops_of
from cotrain.metrics.table import untold_note
from cotrain.rollout.runner import BatchProgress
from cotrain.runs import manifest
from cotrain.runs.code_record import check_code_unchanged, code_json, record_changed_code, trust_code_of
from cotrain.runs.directory import (
    AFTER_PROBLEMS,
    CODE,
    STOPPED,
    RunDirectory,
    check_same_recipe,
    estimates_json,
    hash_entries,
    provenance_json,
    recipe_json,
    rows_of,
)
from cotrain.runs.figures import (
    BEST,
    best_step,
    check_best,
    end_metrics,
    evaluate_on_validation,
    metrics_on_test_split,
    problems_json,
    progress_shown,
    seconds_of,
)
from cotrain.runs.fitting import crowded_notes, idle_setting_notes, too_long_notes, with_packing
from cotrain.runs.log import LoggingObserver, Observer, SilentObserver
from cotrain.runs.model_paths import pin_model_names, weights_of
from cotrain.runs.out_of_room import DiskRetry, memory_limits, restore_memory_limits
from cotrain.runs.step_recorder import StepRecorder, recording_steps
from cotrain.storage import checkpoints
from cotrain.storage.file_ops import FileDigest, GrowingFileHash
from cotrain.storage.ledger import Ledger
from cotrain.storage.lock import RunLock
from cotrain.storage.schemas import QUARANTINE
from cotrain.trainer.async_rollouts import AHEAD
from cotrain.trainer.failures import Diverged, Interrupted, LostProcesses, NotFinite, stop_on_signal
from cotrain.trainer.trainer import CoTrainer, WrapEngine

LONG_INTERVAL = 3600.0  # seconds; where two checkpoints are further apart, a run says so


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run."""

    directory: Path
    summary: Mapping[str, Any]  # content of summary.json


@dataclass(slots=True, kw_only=True)
class ActiveRun:
    """A run that goes on in this process."""

    directory: RunDirectory
    trainer: CoTrainer
    checkpoint_every: int
    keep_every: int  # see ``cotrain.run``
    observer: LoggingObserver
    retry_when_full: DiskRetry  # calls a function that writes files, again and again while the disk is full
    resumed_from: manifest.VerifiedCheckpoint | None  # where this process took the run up; None: at its start
    file_hashes: manifest.GrowingHashes  # running hashes of metrics and ledger; replaced when these files are truncated
    initial_metrics: Mapping[str, Any] | None = None  # before training, once they are measured
    recorder: StepRecorder | None = None  # of the attempt that goes on; None until its first step

    @property
    def has_initial_metrics(self) -> bool:
        """True once the metrics before training are known. Until then the run saves nothing and cannot roll back."""
        return self.initial_metrics is not None

    @property
    def saved_step(self) -> int:
        """Steps finished at the newest checkpoint, -1 for none."""
        return _saved_step(self.directory)

    @property
    def has_unsaved_step(self) -> bool:
        """True if no checkpoint has the last finished step, and it can be saved: metrics and ledger have it. Where the
        disk was full they may lack it, and a run that was resumed behind it would have a gap in its files."""
        trainer = self.trainer
        is_recorded = self.recorder is None or self.recorder.recorded_steps == trainer.finished_steps
        return self.has_initial_metrics and is_recorded and trainer.finished_steps > self.saved_step

    @property
    def best_evaluated_step(self) -> int | None:
        """Steps finished at the best evaluation so far, by the metric ``evaluation.best``; None where the recipe names
        no such metric."""
        return best_step(self.directory, self.trainer.recipe.evaluation.best)


# -- Beginning and resuming


def start_run(
    recipe: Recipe,
    out: Path | str,
    *,
    checkpoint_every: int = 25,
    keep_every: int = 0,
    device: str = "cpu",
    backend: Backend | None = None,
    observer: Observer | None = None,
    wrap_engine: WrapEngine | None = None,
    async_steps: int = 0,
) -> RunResult:
    """Run a recipe into a new directory. Raises UserError for what the user can mend, Interrupted on a signal.

    ``backend``: who runs the policies; None: this process, on ``device``. The default is "cpu" and not "auto" as in
    ``cotrain.run``, so that a caller in the package or a test gets the same bits on machines with and without a GPU.
    ``async_steps``: see ``async_rollouts.py``.
    """
    backend = backend or LocalBackend(device)
    # On a CPU, large models may get another layout of their weights in memory (``pack_weights``); the notes tell the
    # user which ones.
    recipe, packing_notes = with_packing(recipe, backend.describe())
    recipe = pin_model_names(recipe)  # names by which its models are found again from any directory
    saved_recipe = recipe_json(
        recipe, checkpoint_every=checkpoint_every, keep_every=keep_every, async_steps=async_steps
    )
    check_before_loading(recipe)
    with RunDirectory.begin(out) as directory:
        trainer = CoTrainer(recipe, backend=backend, wrap_engine=wrap_engine, async_steps=async_steps)
        log = LoggingObserver(observer or SilentObserver(), directory.path)
        for note in (*packing_notes, *idle_setting_notes(recipe, keep_every=keep_every)):
            log.message(note)
        best = recipe.evaluation.best
        best_note = untold_note(BEST, best) if best else ""  # "" also where it is known which values are better
        if best_note:
            log.message(best_note)
        _write_first_files(directory, trainer, saved_recipe, log)
        return _train_to_end(directory, trainer, saved_recipe, log)


def resume_run(
    recipe: Recipe,
    out: Path | str,
    *,
    device: str = "cpu",
    backend: Backend | None = None,
    observer: Observer | None = None,
    wrap_engine: WrapEngine | None = None,
    changed_code: bool = False,
) -> RunResult:
    """Go on where a run was interrupted; a finished run only has its summary returned. ``changed_code``: go on even if
    the user's code files have changed since the start. ``device``: "cpu" for the reason that ``start_run`` gives."""
    from cotrain.runs.changes import with_recorded_packing

    directory = RunDirectory.open(out)
    log = LoggingObserver(observer or SilentObserver(), directory.path)
    with RunLock(directory.path):
        saved_recipe = _check_files(directory)
        recipe = pin_model_names(recipe, saved_recipe)  # its models keep the names that the run was begun with
        recipe = with_recorded_packing(recipe, saved_recipe)
        check_same_recipe(directory.path, saved_recipe, recipe)

        summary: Any = directory.read("summary.json")
        if summary is not None:
            log.message(f"{directory.path} is finished: {count_of(summary['steps'], 'step')}; see {directory.report}")
            return RunResult(directory=directory.path, summary=summary)

        if not changed_code:
            check_code_unchanged(directory.path)
        _note_what_changed(directory, recipe, log)
        check_dataset_replies(recipe)
        trainer = CoTrainer(
            recipe,
            backend=backend or LocalBackend(device),
            wrap_engine=wrap_engine,
            async_steps=int(saved_recipe.get("async_steps", 0)),
        )
        return _train_to_end(directory, trainer, saved_recipe, log)


def check_before_loading(recipe: Recipe) -> None:
    """Raise UserError for what would end a run and can be known before any model is loaded, whatever backend will load
    it: a split without problems, an objective that could not be learned, a figure that is not measured, a model that
    does not fit its role, a reply of a data set that the chat template cannot write."""
    check_problems(recipe)
    check_due(recipe)
    check_best(recipe)
    check_models_if_needed(recipe)
    check_dataset_replies(recipe)


def check_models_if_needed(recipe: Recipe) -> None:
    """Raise ConfigError for models that do not fit the recipe (``check_models.py``). The check is imported only where
    there is something to check: a role has a tool, the tasks have tools (``OpenEnvEpisodes``, which is known by its
    method), or there are several models."""
    has_tool = any(role.tool is not None for role in recipe.roles.values()) or hasattr(recipe.tasks, "check_can_call")
    models = {policy.model for policy in recipe.policies.values()}
    if has_tool or len(models) > 1:
        from cotrain.runs.check_models import check_models

        check_models(recipe)


def check_dataset_replies(recipe: Recipe) -> None:
    """Check that the chat template can write each reply of a data set after its prompt. A row where it cannot is
    refused, or set aside where the data are read leniently."""
    # By an attribute, because ``isinstance`` would import the module of such tasks in every run.
    has_replies = getattr(recipe.tasks, "has_replies", False)  # ``data.preferences.Chats``
    if has_replies:
        from cotrain.runs.check_replies import refuse_or_set_aside_replies

        refuse_or_set_aside_replies(recipe)


def _check_files(directory: RunDirectory) -> dict[str, Any]:
    """Raise RunDirectoryError for a file that is not as the run wrote it. Remove what an interrupted write left.
    Returns the content of recipe.json."""
    manifest.verify_files(directory)
    checkpoints.sweep_leftovers(directory.checkpoints)
    return directory.read_recipe()


def _write_first_files(
    directory: RunDirectory, trainer: CoTrainer, saved_recipe: Mapping[str, Any], observer: Observer
) -> None:
    """Write what a run was begun with, before anything is measured."""
    recipe = trainer.recipe
    provenance = provenance_json(
        recipe, weights_of(recipe.policies), torch.get_num_threads(), trainer.backend.describe()
    )
    # File name → digest; empty if no row was refused.
    quarantine_digest = _write_quarantine(recipe, directory.path / QUARANTINE, observer)
    files: dict[str, Any] = {"provenance.json": provenance}
    code = code_json(recipe)
    if code is not None:
        files[CODE] = code
    files["recipe.json"] = saved_recipe  # written last: a directory with recipe.json counts as a run
    directory.write_with_hashes(files, quarantine_digest)
    # Whoever begins a run trusts its code: ``cotrain resume`` need not ask for consent, unless the code changes.
    trust_code_of(directory.path, recipe)


def _write_quarantine(recipe: Recipe, path: Path, observer: Observer) -> dict[str, FileDigest]:
    """Write the rows that the task source refused, if it refused any. Returns the file's digest by its name."""
    from cotrain.data.malformed_rows import quarantine_of

    quarantine = quarantine_of(recipe.tasks)
    if quarantine is None or not quarantine.refused:
        return {}
    quarantine.write(path)
    observer.message(f"note: {quarantine.summary_line()}; all in {path}")
    return {path.name: GrowingFileHash(path).digest_all()}


def _note_what_changed(directory: RunDirectory, recipe: Recipe, observer: Observer) -> None:
    """Record changed user code. Print a note if the code or the number of threads has changed."""
    line = record_changed_code(directory, recipe, from_step=max(_saved_step(directory), 0))
    if line is not None:
        observer.message(line)
    provenance: Any = directory.read("provenance.json")
    if provenance["threads"] != torch.get_num_threads():
        observer.message(
            f"note: this run was begun with {count_of(provenance['threads'], 'thread')} and goes on with "
            f"{torch.get_num_threads()}: sums may round differently, so it is the same run but not bit for bit"
        )


# -- Training


def _train_to_end(
    directory: RunDirectory, trainer: CoTrainer, saved_recipe: Mapping[str, Any], observer: LoggingObserver
) -> RunResult:
    """Train to the end. If something stops it first, leave a directory that can be resumed. ``saved_recipe``: the
    content of recipe.json."""
    with stop_on_signal() as get_signal, notes_logged(observer.log_line):  # notes that are printed go into the log, too
        _delete_stop_note(directory)
        _connect_trainer(trainer, directory, observer, get_signal)
        run = ActiveRun(
            directory=directory,
            trainer=trainer,
            checkpoint_every=int(saved_recipe["checkpoint_every"]),
            keep_every=int(saved_recipe.get("keep_every", 0)),
            observer=observer,
            retry_when_full=DiskRetry(get_signal, observer.message),
            resumed_from=_newest_sound_checkpoint(directory, observer),
            file_hashes=manifest.GrowingHashes(directory),
        )
        try:
            return _train_through_failures(run)
        except Interrupted:
            _save_interrupted(run)
            raise
        except Exception as error:
            _save_failed(run, error)
            _note_stop(run, error)
            _say_how_to_go_on(run, error)
            raise
        finally:
            trainer.close()


def _delete_stop_note(directory: RunDirectory) -> None:
    """Delete the note of an error that ended an earlier attempt."""
    (directory.path / STOPPED).unlink(missing_ok=True)


def _connect_trainer(
    trainer: CoTrainer, directory: RunDirectory, observer: LoggingObserver, get_signal: Callable[[], int]
) -> None:
    """Connect a run's trainer with its directory and with its observer. ``get_signal``: the number of the signal that
    asks the run to stop, 0 for none."""
    trainer.stop_on(get_signal)
    # Chat templates that print today's date get the day on which the run was begun, so that a resumed run has the same
    # prompts.
    trainer.policies.set_template_time(directory.begin_time)
    trainer.policies.report_to(observer.message)  # what servers of policies say
    trainer.eval_progress = BatchProgress("  measured {} episodes", observer.message)


def _newest_sound_checkpoint(directory: RunDirectory, observer: Observer) -> manifest.VerifiedCheckpoint | None:
    """The newest checkpoint that is not damaged, None without any. Tells the observer of damaged ones after it."""
    checkpoint = manifest.newest_checkpoint(directory)
    if checkpoint is not None:
        for damage in checkpoint.newer_damaged:
            observer.message(f"checkpoint {damage.path.name} is damaged ({damage.reason}) and was passed over")
    return checkpoint


def _train_through_failures(run: ActiveRun) -> RunResult:
    """Train; after numbers that are not finite, or the loss of a process, go back and on from there."""
    lost_processes = LostProcesses()
    failure: NotFinite | ProcessLost | None = None  # what ended the attempt before this one
    while True:
        try:
            match failure:
                case None:
                    _begin(run)
                case NotFinite():
                    _roll_back(run, failure)
                case ProcessLost():
                    _recover(run, failure)
            return _train(run)
        except NotFinite as error:
            if not run.has_initial_metrics:
                raise
            failure = error
        except ProcessLost as lost:
            lost_processes.count_loss_or_raise(run.trainer.finished_steps, lost)
            failure = lost
        # The next turn goes back, within its own ``try``, so that a failure on the way back is caught, too.


def _begin(run: ActiveRun) -> None:
    """Measure the start, unless that was done, and load the checkpoint that the run goes on from."""
    run.trainer.policies.check_can_save_to(run.directory.path)
    run.initial_metrics = _measure_start(run)
    _remember_answers(run)
    _restore_checkpoint(run, run.resumed_from)


def _train(run: ActiveRun) -> RunResult:
    """Do the steps that are left, evaluating and saving between them; then measure the end."""
    trainer = run.trainer
    first_step = trainer.finished_steps
    with recording_steps(run.directory, trainer, run.observer, run.retry_when_full) as recorder:
        run.recorder = recorder
        _evaluate_if_due(run, recorder)
        while not trainer.is_done:
            if trainer.finished_steps > 0 and trainer.finished_steps % run.checkpoint_every == 0:
                _save_if_new(run, recorder)
            with _show_first_rollouts(trainer, first_step, run.observer):
                result = trainer.step()
            recorder.add_step(result)
            # Judged by the second step of a command, as the first one may be slower than others.
            if trainer.finished_steps == first_step + 2:
                _note_rare_checkpoints(run, sum(result.seconds.values()))
            _evaluate_if_due(run, recorder)
        recorder.end_run()
        _save_if_new(run, recorder)
    return _finish(run, recorder)


def _evaluate_if_due(run: ActiveRun, recorder: StepRecorder) -> None:
    """Measure validation problems, where that is due now; a state that is the best so far is saved."""
    trainer = run.trainer
    is_new = recorder.last_evaluated_step < trainer.finished_steps  # a resumed run may have this evaluation already
    if trainer.is_evaluation_due() and is_new:
        # After n finished steps the last one has the number n − 1 in metrics.jsonl, where steps count from 0.
        last_step = trainer.finished_steps - 1
        row = evaluate_on_validation(trainer, step=last_step)
        recorder.add_evaluation(row)
        best = trainer.recipe.evaluation.best
        if best and row.get(f"eval/{best}") is None:
            run.observer.message(f"note: {best} is undefined after step {trainer.finished_steps}: not the best one")
        if run.best_evaluated_step == trainer.finished_steps:  # read from the run's files: the evaluation just added
            _save_if_new(run, recorder)


def _save_if_new(run: ActiveRun, recorder: StepRecorder) -> None:
    """Save a checkpoint, unless the newest one is of this step."""
    if run.trainer.finished_steps > run.saved_step:
        recorder.sync()
        run.retry_when_full(_save_checkpoint, run)


def _note_rare_checkpoints(run: ActiveRun, step_seconds: float) -> None:
    """Say if a process that is killed may lose more than ``LONG_INTERVAL`` of training."""
    every = min(run.checkpoint_every, run.trainer.recipe.steps)
    if every * step_seconds > LONG_INTERVAL:
        enough = max(1, int(LONG_INTERVAL / 2 / step_seconds))
        run.observer.message(
            f"note: at this pace a checkpoint every {count_of(every, 'step')} is one in "
            f"{clock_text(every * step_seconds)}; what follows the newest one is lost where the process is killed, as "
            f"by a power cut; --checkpoint-every {enough} of a new run makes them often enough"
        )


@contextmanager
def _show_first_rollouts(trainer: CoTrainer, first_step: int, observer: Observer) -> Iterator[None]:
    """Print progress within the first step of this command: it may take minutes, and no duration is known yet."""
    if trainer.finished_steps == first_step:
        trainer.runner.progress = BatchProgress(f"  step {first_step + 1}: sampled {{}} episodes", observer.message)
    try:
        yield
    finally:
        trainer.runner.progress = None


def _finish(run: ActiveRun, recorder: StepRecorder) -> RunResult:
    """Measure the final policies, or with ``evaluation.best`` those of the best evaluation, and write the summary."""
    trainer = run.trainer
    summary: dict[str, Any] = {
        "recipe": trainer.recipe.name,
        "seed": trainer.recipe.seed,
        "steps": trainer.finished_steps,
        "tokens": trainer.tokens,
        "flops": trainer.flops,
        "updates": dict(trainer.policies.update_counts),
    }
    chosen_step = run.best_evaluated_step
    if chosen_step is not None:
        summary["chosen"] = _load_best(run, chosen_step)
    with progress_shown(trainer, "the end", run.observer.message):
        after = end_metrics(trainer, run.observer.message)
    recorder.report_set_aside_tasks()
    before_counts = run.directory.read("before_counts.json")  # by problem, so that changes are paired
    summary["before"] = run.initial_metrics
    summary["after"] = estimates_json(after)
    summary["change"] = estimates_json(paired_changes(after, before_counts)) if before_counts else {}
    summary["alarms"] = recorder.alarms_json()
    files = {AFTER_PROBLEMS: problems_json(after), "summary.json": summary}
    run.retry_when_full(run.directory.write_with_hashes, files, run.file_hashes.growing_files())
    return RunResult(directory=run.directory.path, summary=summary)


def _load_best(run: ActiveRun, step: int) -> int:
    """Load the checkpoint of the best evaluation on validation problems, that after ``step`` steps. Returns the step
    that the policies are of now.

    That is the last step where the checkpoint is not there. It may be missing in a run that an earlier version of
    cotrain began: that took another evaluation for the best, and kept the checkpoint of that one."""
    trainer = run.trainer
    best = trainer.recipe.evaluation.best
    if step == trainer.finished_steps:
        return step
    try:
        tensors, documents = manifest.checkpoint_at(run.directory, step).load()
    except (RunDirectoryError, StateError) as error:
        run.observer.message(
            f"note: the end is the last state, after step {trainer.finished_steps}: {error}; the best in {best} was "
            f"that after step {step}"
        )
        return trainer.finished_steps
    trainer.load(documents["state"], tensors, documents.get(AHEAD))  # AHEAD: rollouts collected ahead
    run.observer.message(f"the end is the state after step {step}, the best in {best}")
    return step


# -- What a run begins with, and what it goes back to


def _measure_start(run: ActiveRun) -> dict[str, Any]:
    """Metrics before training; measured now if their files are not there."""
    directory = run.directory
    saved_metrics = directory.read("before.json")
    has_counts = (directory.path / "before_counts.json").exists()
    if saved_metrics is not None and has_counts:
        return dict(saved_metrics)

    if run.resumed_from is None:
        # Problems, and texts of other roles, that do not fit a model's context.
        for line in (*too_long_notes(run.trainer), *crowded_notes(run.trainer)):
            run.observer.message(line)
    with progress_shown(run.trainer, "the start", run.observer.message):
        metrics = metrics_on_test_split(run.trainer)
    files = {"before_counts.json": counts_json(metrics), "before.json": estimates_json(metrics)}
    # Where steps were trained already, the start was measured before them, and its files were lost since. The
    # checkpoint is not loaded yet, so these are metrics of the initial weights, and must have the recorded hashes.
    if run.resumed_from is not None and run.resumed_from.step > 0:
        _check_same_start(directory, files)
    run.retry_when_full(directory.write_with_hashes, files)
    return files["before.json"]


def _check_same_start(directory: RunDirectory, files: Mapping[str, Any]) -> None:
    """Raise RunDirectoryError where figures of the start, measured again, differ from the recorded hash of the lost
    ones."""
    recorded = directory.recorded_hashes()
    differs = any(recorded.get(name) != digest for name, digest in hash_entries(files).items())
    if differs:
        raise RunDirectoryError(
            f"{directory.path / 'before.json'} was lost, and the start's figures come out otherwise on this machine; "
            "restore it, or start anew",
            code="E_START_FIGURES_DIFFER",
        )


def _remember_answers(run: ActiveRun) -> None:
    """Remember the answers of other servers in steps that will be collected again, so that they are not asked again."""
    asks_servers = any(policy.outside for policy in run.trainer.recipe.policies.values())  # outside: on a server
    if asks_servers:
        first = 0 if run.resumed_from is None else run.resumed_from.step
        with Ledger(run.directory.episodes) as ledger:
            run.trainer.backend.cache_remote_answers(_traces_from(ledger, first))


def _traces_from(ledger: Ledger, first: int) -> Iterator[Trace]:
    """The traces of all steps from ``first`` on, read one after the other while the ledger is open."""
    for step in ledger.steps():
        if step >= first:
            for episode in ledger.read(step):
                yield from episode.traces


def _restore_checkpoint(run: ActiveRun, checkpoint: manifest.VerifiedCheckpoint | None) -> None:
    """Load ``checkpoint``, and truncate metrics, timings and ledger to its step. None: truncate them to the start, at
    which the trainer is then: it is new, or was reset (``CoTrainer.reset_run``)."""
    trainer = run.trainer
    directory = run.directory
    documents: dict[str, Any] = {}
    metrics_size = 0
    if checkpoint is not None:
        tensors, documents = checkpoint.load()
        trainer.load(documents["state"], tensors, documents.get(AHEAD))
        metrics_size = checkpoint.files[manifest.METRICS].bytes  # of the run's metrics.jsonl when it was saved
        policy_names = ", ".join(tensors)  # ``tensors``: policy → its weights and moments
        run.observer.message(
            f"resuming after step {trainer.finished_steps} of {trainer.recipe.steps}: {policy_names} verified"
        )
    # Sizes of micro-batches and of the engine's passes, which were lowered when memory ran out.
    restore_memory_limits(trainer.policies, trainer.engine, documents)
    directory.truncate_to(trainer.finished_steps, metrics_size)
    run.file_hashes = manifest.GrowingHashes(directory)
    trainer.flops = sum(flops_of(row) for row in rows_of(directory.metrics))
    trainer.seconds = sum(seconds_of(row) for row in rows_of(directory.timings))


def _roll_back(run: ActiveRun, error: NotFinite) -> None:
    """Roll back to the newest checkpoint and go on with another seed. Raises Diverged if that was done before."""
    trainer = run.trainer
    checkpoint = manifest.newest_checkpoint(run.directory)
    advice = "lower the learning rate, or look at the rewards"
    stopped = f"stopped after step {trainer.finished_steps}: {error}"
    if checkpoint is None:
        raise Diverged(f"{stopped}, there is no checkpoint to go back to; {advice}") from error
    place = checkpoint.path
    if trainer.rollback_count > 0:
        raise Diverged(
            f"{stopped}, and so it was after going back to a checkpoint; {advice}; {place} is kept"
        ) from error
    run.observer.message(f"going back to {place.name}, and on from there with other draws: {error}; {advice}")
    trainer.backend.cache_remote_answers(())  # forget the remembered ones: with another seed the requests differ
    _restore_checkpoint(run, checkpoint)
    trainer.reseed(rollback_count=1)
    # Saved at once, so that a run resumed from here has the new seed, too.
    _save_checkpoint(run)


def _recover(run: ActiveRun, lost: ProcessLost) -> None:
    """Start processes again that were lost, and go on from where training was last saved, with the same draws.

    Before the start is measured nothing was saved, so the run begins again. After that it goes back to its newest
    checkpoint, or to step 0 if there is none yet."""
    if not run.has_initial_metrics:
        _restart_processes(run, lost, going_back_to=None)
        _begin(run)
        return
    checkpoint = manifest.newest_checkpoint(run.directory)
    _restart_processes(run, lost, going_back_to=checkpoint)
    _restore_checkpoint(run, checkpoint)


def _restart_processes(run: ActiveRun, lost: ProcessLost, *, going_back_to: manifest.VerifiedCheckpoint | None) -> None:
    """Start lost processes again; their policies then have their initial weights. ``going_back_to``: the checkpoint
    that is loaded next; None: the run goes back to its start, and so do its counters."""
    where = "the start" if going_back_to is None else going_back_to.path.name
    run.observer.message(f"{lost}; going back to {where}")
    run.trainer.backend.restart_lost_processes()
    if going_back_to is None:
        run.trainer.reset_run()


# -- Leaving a run so that it can be resumed


def _saved_step(directory: RunDirectory) -> int:
    """Steps finished at the newest checkpoint, -1 for none."""
    checkpoint = checkpoints.latest_checkpoint(directory.checkpoints)
    return -1 if checkpoint is None else checkpoint.step


def _save_checkpoint(run: ActiveRun) -> None:
    """Raises NotFinite for weights that no run can go on with."""
    trainer = run.trainer
    tensors = trainer.policies.checkpoint_parts()
    documents = {"state": trainer.state(), manifest.RECORD: run.file_hashes.checkpoint_record()}
    ahead = trainer.rollouts.state()
    if ahead is not None:
        documents[AHEAD] = ahead
    documents |= memory_limits(trainer.policies, trainer.engine)
    best = run.best_evaluated_step
    checkpoints.save_checkpoint(
        run.directory.checkpoints,
        trainer.finished_steps,
        tensors,
        documents,
        keep_every=run.keep_every,
        keep_steps=[] if best is None else [best],  # kept in any case, besides the newest ones
    )


def _save_interrupted(run: ActiveRun) -> None:
    """Save the last finished step, where there is one to be saved, and say how the run goes on."""
    trainer = run.trainer
    if run.has_unsaved_step:
        # A state that cannot be saved (it is not finite, or its process is lost) is dropped. The run is then resumed
        # from the checkpoint before.
        with suppress(NotFinite, ProcessLost):
            _save_checkpoint(run)
    # A run that was stopped before its checkpoint was loaded has finished no step in this process.
    finished_steps = max(trainer.finished_steps, run.saved_step)
    run.observer.message(
        f"stopped after step {finished_steps} of {trainer.recipe.steps}; nothing is lost. Go on with: "
        f"cotrain resume {run.directory.path}"
    )


def _save_failed(run: ActiveRun, error: Exception) -> None:
    """Save the last finished step of a run that an error ends. One that diverged goes on from an earlier checkpoint,
    and is not saved."""
    if run.has_unsaved_step and run.trainer.can_redo_step and not _has_diverged(error):
        # Where this fails, too, the first error is the one to report, and the checkpoint before stays.
        with suppress(Exception):
            _save_checkpoint(run)


def _has_diverged(error: Exception) -> bool:
    return isinstance(error, (Diverged, NotFinite))


def _say_how_to_go_on(run: ActiveRun, error: Exception) -> None:
    """Say from which step a run goes on that an error has ended; nothing where it finished none, or diverged."""
    trainer = run.trainer
    if _has_diverged(error) or not run.has_initial_metrics or trainer.finished_steps == 0:
        return
    saved_step = max(run.saved_step, 0)
    lost_steps = trainer.finished_steps - saved_step
    again = f"; {count_of(lost_steps, 'step')} after that will be done again" if lost_steps > 0 else ""
    run.observer.message(
        f"the run stops, and the state after step {saved_step} of {trainer.recipe.steps} is kept{again}. Go on with: "
        f"cotrain resume {run.directory.path}"
    )


def _note_stop(run: ActiveRun, error: Exception) -> None:
    """Record the error that ended the run, if there is a run to be resumed."""
    # ``RunDirectory.begin`` has the same condition, and removes the files of any other run. Where a server was silent,
    # a run is kept also before its start is measured: that passes, and the run is then resumed.
    is_resumable = run.has_initial_metrics or isinstance(error, ServerSilent)
    if is_resumable:
        with suppress(OSError, CotrainError):
            written = {"steps": run.trainer.finished_steps, "error": error_text(error)}
            if isinstance(error, CotrainError):
                written["code"] = error.code
            run.directory.write(STOPPED, written)
