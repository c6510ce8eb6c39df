"""The same verbs as the command line, from Python: run, resume, evaluate, report, compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cotrain.backend.contract import Backend
from cotrain.config.override import override, restore_settings
from cotrain.config.recipe import Recipe
from cotrain.config.registry import make_recipe, recipe_names
from cotrain.core.errors import ConfigError, CotrainError, RunDirectoryError, UserError
from cotrain.pages.run_report import write_report
from cotrain.runs import run as loop
from cotrain.runs import seal
from cotrain.runs.directory import STOPPED, RunDirectory, refuse_other, setting_differences
from cotrain.runs.figures import latest_costs
from cotrain.runs.log import Observer
from cotrain.runs.run import Interrupted, Outcome


def run(
    recipe: Recipe,
    out: Path | str,
    *,
    checkpoint_every: int = 25,
    keep_every: int = 0,
    device: str = "auto",
    backend: Backend | None = None,
    observer: Observer | None = None,
    lag: int = 0,
) -> Outcome:
    """Run a recipe into a new directory and write its report, also when it is interrupted or stops by itself. The two
    newest checkpoints stay, and those of steps that ``keep_every`` divides. ``backend``: who runs the policies; None:
    this process, on ``device`` ("auto": cuda where there is one, else cpu). ``observer``: who is told of steps and
    alarms; None: standard output, as the command has it. ``lag``: 1 plays the next step beside the update of this one
    (docs/cluster-layouts.md)."""
    _refuse_other_than_recipe(recipe)
    begin = partial(loop.start_run, recipe, out, checkpoint_every=checkpoint_every, keep_every=keep_every, lag=lag)
    try:
        with _observer_for(recipe, observer) as watch:
            outcome = begin(device=device, backend=backend, observer=watch)
    except Exception as error:
        _report_stopped(Path(out), error)
        raise
    write_report(Path(out))
    return outcome


def resume(
    directory: Path | str,
    *,
    recipe: Recipe | None = None,
    device: str = "auto",
    backend: Backend | None = None,
    observer: Observer | None = None,
) -> Outcome:
    """Go on with an interrupted run. ``recipe`` is needed only where the run was started from a bare Recipe."""
    from cotrain.runs.changes import refuse_lost

    try:
        run_recipe = recipe or rebuild_recipe(directory)
        if not RunDirectory(directory).summary.exists():
            refuse_lost(run_recipe.policies, directory)
        with _observer_for(run_recipe, observer, latest_costs(Path(directory))) as watch:
            outcome = loop.resume_run(run_recipe, directory, device=device, backend=backend, observer=watch)
    except Exception as error:
        _report_stopped(Path(directory), error)
        raise
    write_report(Path(directory))
    return outcome


def _refuse_other_than_recipe(recipe: Any) -> None:
    if isinstance(recipe, Recipe):
        return
    name = (recipe if isinstance(recipe, str) else getattr(recipe, "__name__", "")).rpartition(".")[2]
    algorithm = getattr(recipe, "func", type(recipe)).__name__ == "PolicyGradient"  # ``cotrain.grpo``, or what it makes
    advice = (
        f"from cotrain.recipes import {name}, and pass {name}(steps=100)"
        if name in recipe_names()
        else "an algorithm is given to an objective; the recipe is cotrain.recipes.grpo, as in grpo(steps=100)"
        if algorithm
        else f"call the function, as in {name}(steps=100)"
        if callable(recipe) and name
        else "pass what a recipe function returns, such as cotrain.recipes.grpo(steps=100)"
    )
    raise ConfigError(f"cotrain.run takes a Recipe, and {recipe!r} is none: {advice}")


@contextmanager
def _observer_for(
    recipe: Recipe, observer: Observer | None, spent: Mapping[str, float] | None = None
) -> Iterator[Observer]:
    """Who watches the run."""
    if observer is not None:
        yield observer
        return
    from cotrain.pages.live import LiveTable, ends_of

    with LiveTable(ends_of(recipe), spent=spent) as live:
        yield live


def _report_stopped(directory: Path, error: Exception) -> None:
    """The report of a run that was asked to stop, or that something stopped; nothing of a directory that it never
    began to work in."""
    if isinstance(error, Interrupted) or (directory / STOPPED).is_file():
        with suppress(CotrainError):  # as on a full disk: the first error is the one to tell
            write_report(directory)


def rebuild_recipe(directory: Path | str, *, say: Callable[[str], None] | None = None) -> Recipe:
    """The recipe of a run directory: the function that made it, called again with the arguments it was given. Plain
    settings whose defaults have changed since stay as the run was begun with them, which ``say`` is told. Raises
    RunDirectoryError where more has changed, a file of the run is not as the run wrote it, or the recipe is Python that
    no run of this user was begun with (``core/trust.py``)."""
    from cotrain.core.trust import trusted_code_only

    folder = RunDirectory.open(directory)
    seal.verify_files(folder)
    saved: Any = folder.read("recipe.json")  # ``open`` has seen it
    with trusted_code_only(directory):
        return _rebuild_saved(directory, saved, say)


def _rebuild_saved(directory: Path | str, saved: Any, say: Callable[[str], None] | None) -> Recipe:
    from cotrain.runs.changes import admit_models

    origin = saved["origin"]
    if origin is None:
        raise RunDirectoryError(
            f"{directory} was started from a bare Recipe; resume it from Python with "
            f"cotrain.resume({str(directory)!r}, recipe=…)"
        )
    try:
        arguments = {name: _parse_argument(value) for name, value in origin["arguments"].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise RunDirectoryError(
            f"the problems of {directory} cannot be built again: {error if isinstance(error, UserError) else why}"
        ) from error
    try:
        rebuilt = override(make_recipe(origin["target"], arguments, again=True), origin["settings"])
    except RunDirectoryError:
        raise
    except UserError as error:
        raise RunDirectoryError(f"the recipe of {directory} cannot be built again: {error}") from error
    changed = setting_differences(saved, rebuilt)
    rebuilt = restore_settings(rebuilt, [(name, saved_value) for name, saved_value, _ in changed])
    if say is not None:
        for name, was, now in changed:
            say(f"note: {name} stays {json.dumps(was)}, as this run was begun; a new one would have {json.dumps(now)}")
    refuse_other(Path(directory), saved, rebuilt)
    admit_models(rebuilt.policies)
    return rebuilt


def refuse_foreign_code(directory: Path | str) -> None:
    """Raise RunDirectoryError where building the recipe of a run directory would run Python that is not trusted."""
    from cotrain.core.trust import trusted_code_only
    from cotrain.runs.changes import admit_code

    folder = RunDirectory.open(directory)
    seal.verify_files(folder)
    saved: Any = folder.read("recipe.json")
    with trusted_code_only(directory):
        if saved["origin"] is not None:
            admit_code(saved["origin"]["target"], saved["origin"]["arguments"])


def trust_code(directory: Path | str) -> None:
    """Consent to the Python that a run directory names, now and as long as it stays the same: it is run with all that
    you may do."""
    from cotrain.core.trust import with_consent

    with with_consent():
        rebuild_recipe(directory)


def _parse_argument(value: Any) -> Any:
    if isinstance(value, Mapping) and (named := value.get("function") or value.get("object")):
        return str(named)  # which the recipe loads
    if isinstance(value, Mapping) and "tasks" in value:
        from cotrain.tasks.sources import from_description

        return from_description(value["tasks"], value.get("class"))
    return tuple(value) if isinstance(value, list) else value


def report(directory: Path | str) -> Path:
    """Write ``report.html`` of a run, comparison or study anew, from files that are as a run wrote them, and return its
    path."""
    from cotrain.pages.comparison_report import rewrite_page

    together = rewrite_page(Path(directory))
    if together is not None:
        return together
    folder = RunDirectory.open(directory)
    seal.verify_files(folder)
    seal.newest_checkpoint(folder)
    return write_report(folder.path)
