"""The commands as Python functions: run, resume, evaluate, report, compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, CotrainError
from cotrain.core.verbosity import print_lines, shows_progress
from cotrain.distributed.contract import Backend
from cotrain.recipes import RECIPES
from cotrain.reports.run_report import write_report
from cotrain.reports.summary import outcome_lines
from cotrain.runs.directory import STOPPED, RunDirectory
from cotrain.runs.figures import latest_costs
from cotrain.runs.log import Observer
from cotrain.runs.run import Interrupted, RunResult, resume_run, start_run
from cotrain.trainer.failures import StoppedBySignal


def run(
    recipe: Recipe,
    out: Path | str,
    *,
    checkpoint_every: int = 25,
    keep_every: int = 0,
    device: str = "auto",
    backend: Backend | None = None,
    observer: Observer | None = None,
    async_steps: int = 0,
) -> RunResult:
    """Run a recipe into a new directory and write its report, also when it is interrupted or fails.

    Args:
        recipe: what a recipe function returns, such as ``tango(steps=160)``.
        out: the directory, which must not hold another run.
        checkpoint_every: steps between two checkpoints. The two newest ones stay.
        keep_every: N > 0 also keeps the checkpoints of steps N, 2N, …; 0: only the two newest.
        device: "cpu", "cuda", …; "auto": cuda where there is one, else cpu.
        backend: runs the policies; None: this process, on ``device``.
        observer: is told of steps and alarms; None: a live table on standard output, as `cotrain run` shows it.
        async_steps: 1 or more: the rollouts of step t + async_steps are collected while step t is updated
            (docs/cluster.md); 0: each step is collected with the weights of the update before.

    On SIGINT, SIGTERM or SIGHUP the state is saved, and ``StoppedBySignal`` is raised: a SystemExit with the signal's
    exit code.
    """
    _check_is_recipe(recipe)
    out = Path(out).expanduser().absolute()
    try:
        with _observer_for(recipe, observer) as run_observer:
            result = start_run(
                recipe,
                out,
                checkpoint_every=checkpoint_every,
                keep_every=keep_every,
                device=device,
                backend=backend,
                observer=run_observer,
                async_steps=async_steps,
            )
    except Interrupted as interrupted:
        _write_report_or_skip(out)
        raise StoppedBySignal(interrupted.signal) from None
    except Exception:
        _report_failed_run(out)
        raise
    write_report(out)
    _print_outcome(result, observer)
    return result


def resume(
    directory: Path | str,
    *,
    recipe: Recipe | None = None,
    device: str = "auto",
    backend: Backend | None = None,
    observer: Observer | None = None,
    changed_code: bool = False,
) -> RunResult:
    """Go on with an interrupted run, and write its report.

    Args:
        directory: the run's directory.
        recipe: only for a run of a Recipe that you built by hand; any other is built again from the directory.
        device: see ``run``.
        backend: see ``run``.
        observer: see ``run``.
        changed_code: continue although your code files changed since the start; the new version is recorded.
    """
    from cotrain.runs.changes import check_models_exist, rebuild_recipe
    from cotrain.runs.code_record import check_code_unchanged

    directory = Path(directory).expanduser().absolute()
    try:
        is_over = RunDirectory.open(directory).summary.exists()
        if not changed_code and not is_over:
            # This must run before ``rebuild_recipe`` imports the user's code. ``resume_run`` repeats it, for those who
            # call that function directly.
            check_code_unchanged(directory)

        run_recipe = recipe or rebuild_recipe(directory)
        if not is_over:
            check_models_exist(run_recipe.policies, directory)

        with _observer_for(run_recipe, observer, costs_so_far=latest_costs(directory)) as run_observer:
            result = resume_run(
                run_recipe, directory, device=device, backend=backend, observer=run_observer, changed_code=changed_code
            )
    except Interrupted as interrupted:
        _write_report_or_skip(directory)
        raise StoppedBySignal(interrupted.signal) from None
    except Exception:
        _report_failed_run(directory)
        raise
    write_report(directory)
    _print_outcome(result, observer)
    return result


def _check_is_recipe(recipe: object) -> None:
    if not isinstance(recipe, Recipe):
        raise ConfigError(
            f"cotrain.run takes a Recipe, and {recipe!r} is none: {_advice_for(recipe)}", code="E_NOT_RECIPE"
        )


def _advice_for(value: object) -> str:
    """Return what to pass in the place of a value that is no recipe."""
    from cotrain.algorithms.grpo import ALGORITHMS
    from cotrain.algorithms.policy_gradient import PolicyGradient

    is_algorithm = isinstance(value, PolicyGradient) or value in ALGORITHMS.values()
    if is_algorithm:
        return "an algorithm is given to an objective; the recipe is cotrain.recipes.grpo.grpo, as in grpo(steps=100)"
    name = _name_of(value)
    if name in RECIPES:
        module, _, _ = RECIPES[name].partition(":")  # "module:function"
        return f"from {module} import {name}, and pass {name}(steps=100)"
    if callable(value) and name:
        return f"call the function, as in {name}(steps=100)"
    return "pass what a recipe function returns, such as cotrain.recipes.grpo.grpo(steps=100)"


def _name_of(value: object) -> str:
    """The last part of a function's name or of a dotted path, such as ``tango``; "" for a value without a name."""
    path = value if isinstance(value, str) else str(getattr(value, "__name__", ""))
    return path.rpartition(".")[2]


@contextmanager
def _observer_for(
    recipe: Recipe, observer: Observer | None, costs_so_far: Mapping[str, float] | None = None
) -> Iterator[Observer]:
    """The observer of the run: the caller's, or a live table. ``costs_so_far``: tokens, FLOPs and seconds of a run that
    goes on, by which the table shows what is left of its budgets."""
    if observer is not None:
        yield observer
        return
    from cotrain.reports.live import LiveTable, budgets_of

    with LiveTable(budgets_of(recipe), spent=costs_so_far) as live:
        yield live


def _print_outcome(result: RunResult, observer: Observer | None) -> None:
    """Print what the run has come to, unless the caller observes it himself."""
    if observer is None and shows_progress():
        print_lines(outcome_lines(result))


def _write_report_or_skip(directory: Path) -> None:
    """Write the report of a run that did not come to its end; no report if that fails."""
    with suppress(CotrainError):  # a failure here must not hide the error that ended the run
        write_report(directory)


def _report_failed_run(directory: Path) -> None:
    """Write the report of a run that failed, if it had begun. Nothing is written into a directory that is no run."""
    is_begun_run = (directory / STOPPED).is_file()  # only ``runs/run.py`` writes this file, if a run can be resumed
    if is_begun_run:
        _write_report_or_skip(directory)


def trust_code(directory: Path | str) -> None:
    """Trust the Python files that a run directory names, as long as they do not change. They run with all your
    rights."""
    from cotrain.core.trust import with_consent
    from cotrain.runs.changes import rebuild_recipe

    with with_consent():
        rebuild_recipe(directory)  # imports the files, and importing a file with consent records its hash


def report(directory: Path | str) -> Path:
    """Write ``report.html`` of a run, comparison or study again, and return its path.

    A file that has changed since the run wrote it is refused. A folder of stages, such as pretraining, tuning and a
    run, gets ``report.md``.
    """
    from cotrain.reports import any_report

    return any_report.write_any_page(directory)
