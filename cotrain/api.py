"""The commands as Python functions: run, resume, evaluate, report, compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, CotrainError
from cotrain.distributed.contract import Backend
from cotrain.recipes import RECIPES
from cotrain.reports.run_report import write_report
from cotrain.runs.directory import STOPPED, RunDirectory
from cotrain.runs.figures import latest_costs
from cotrain.runs.log import Observer
from cotrain.runs.run import Interrupted, RunResult, resume_run, start_run
from cotrain.trainer.failures import Stopped


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
    """Run a recipe into a new directory and write its report, also when it is interrupted or stops by itself. The two
    newest checkpoints stay, and those of steps that ``keep_every`` divides. ``backend``: who runs the policies; None:
    this process, on ``device`` ("auto": cuda where there is one, else cpu). ``observer``: who is told of steps and
    alarms; None: standard output, as the command has it. ``async_steps``: K plays step t + K beside the update of step
    t (docs/cluster.md).

    On SIGINT, SIGTERM or SIGHUP it saves what it has and raises ``Stopped``, which is a SystemExit."""
    _check_is_recipe(recipe)
    out = Path(out).expanduser().absolute()
    try:
        with _observer_for(recipe, observer) as run_observer:
            outcome = start_run(
                recipe,
                out,
                checkpoint_every=checkpoint_every,
                keep_every=keep_every,
                device=device,
                backend=backend,
                observer=run_observer,
                async_steps=async_steps,
            )
    except Interrupted as stopped:
        _report_stopped(out)
        raise Stopped(stopped.signal) from None
    except Exception:
        _report_stopped_by_itself(out)
        raise
    write_report(out)
    return outcome


def resume(
    directory: Path | str,
    *,
    recipe: Recipe | None = None,
    device: str = "auto",
    backend: Backend | None = None,
    observer: Observer | None = None,
    changed_code: bool = False,
) -> RunResult:
    """Go on with an interrupted run. ``recipe`` is needed only where the run was started from a bare Recipe.
    ``changed_code``: whether it may go on with other code of yours than it was begun with, which it then records."""
    from cotrain.runs.changes import check_models_exist, rebuild_recipe
    from cotrain.runs.code_record import check_code_unchanged

    directory = Path(directory).expanduser().absolute()
    try:
        if not (changed_code or RunDirectory.open(directory).summary.exists()):
            check_code_unchanged(directory)
        run_recipe = recipe or rebuild_recipe(directory)
        if not RunDirectory(directory).summary.exists():
            check_models_exist(run_recipe.policies, directory)
        with _observer_for(run_recipe, observer, latest_costs(directory)) as run_observer:
            outcome = resume_run(
                run_recipe, directory, device=device, backend=backend, observer=run_observer, changed_code=changed_code
            )
    except Interrupted as stopped:
        _report_stopped(directory)
        raise Stopped(stopped.signal) from None
    except Exception:
        _report_stopped_by_itself(directory)
        raise
    write_report(directory)
    return outcome


def _check_is_recipe(recipe: object) -> None:
    if not isinstance(recipe, Recipe):
        raise ConfigError(
            f"cotrain.run takes a Recipe, and {recipe!r} is none: {_advice_for(recipe)}", code="E_NOT_RECIPE"
        )


def _advice_for(value: object) -> str:
    """What to pass in the place of a value that is no recipe."""
    from cotrain.algorithms import grpo
    from cotrain.algorithms.policy_gradient import PolicyGradient

    name = str(value if isinstance(value, str) else getattr(value, "__name__", "")).rpartition(".")[2]
    is_algorithm = isinstance(value, PolicyGradient) or value in grpo.ALGORITHMS.values()
    if is_algorithm:
        return "an algorithm is given to an objective; the recipe is cotrain.recipes.grpo.grpo, as in grpo(steps=100)"
    if name in RECIPES:
        return f"from {RECIPES[name].partition(':')[0]} import {name}, and pass {name}(steps=100)"
    if callable(value) and name:
        return f"call the function, as in {name}(steps=100)"
    return "pass what a recipe function returns, such as cotrain.recipes.grpo.grpo(steps=100)"


@contextmanager
def _observer_for(
    recipe: Recipe, observer: Observer | None, spent: Mapping[str, float] | None = None
) -> Iterator[Observer]:
    """The observer of the run: the caller's, or a live table."""
    if observer is not None:
        yield observer
        return
    from cotrain.reports.live import LiveTable, ends_of

    with LiveTable(ends_of(recipe), spent=spent) as live:
        yield live


def _report_stopped(directory: Path) -> None:
    """Write the report of a run that did not come to its end."""
    with suppress(CotrainError):  # the first error is the one to report, as on a full disk
        write_report(directory)


def _report_stopped_by_itself(directory: Path) -> None:
    """The report of a run that something stopped; nothing of a directory that it never began to work in."""
    if (directory / STOPPED).is_file():
        _report_stopped(directory)


def trust_code(directory: Path | str) -> None:
    """Consent to the Python that a run directory names, now and as long as it stays the same: it is run with all that
    you may do."""
    from cotrain.core.trust import with_consent
    from cotrain.runs.changes import rebuild_recipe

    with with_consent():
        rebuild_recipe(directory)


def report(directory: Path | str) -> Path:
    """Write ``report.html`` of a run, comparison or study anew, from files that are as a run wrote them, and return its
    path; of a folder of stages, such as pretraining, tuning and a run, ``report.md``."""
    from cotrain.reports import any_report

    return any_report.write_any_page(directory)
