"""The same verbs as the command line, from Python: run, resume, evaluate, report, compare."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.backend.contract import Backend
from cotrain.backend.local import LocalBackend
from cotrain.config.override import override, restore_settings
from cotrain.config.recipe import Recipe
from cotrain.config.registry import make_recipe, recipe_names
from cotrain.core.errors import ConfigError, CotrainError, RunDirectoryError, UnknownName, UserError
from cotrain.metrics.heldout import passing
from cotrain.metrics.table import table_rank
from cotrain.models.load import EMBEDDED_RATER
from cotrain.pages.run_report import write_report
from cotrain.preflight.fitting import with_packing
from cotrain.rollout.common_roles import EMBEDDED, speaks_short, verifier
from cotrain.runs import run as loop
from cotrain.runs import seal
from cotrain.runs.directory import STOPPED, RunDirectory, estimates_json, refuse_other, setting_differences
from cotrain.runs.figures import latest_costs
from cotrain.runs.log import Observer
from cotrain.runs.run import Interrupted, Outcome
from cotrain.train.trainer import CoTrainer

if TYPE_CHECKING:
    from cotrain.preflight.formats import AnswerFormat


def run(
    recipe: Recipe,
    out: Path | str,
    *,
    checkpoint_every: int = 25,
    keep_every: int = 0,
    device: str = "cpu",
    backend: Backend | None = None,
    observer: Observer | None = None,
    lag: int = 0,
) -> Outcome:
    """Run a recipe into a new directory and write its report, also when it is interrupted or stops by itself. The two
    newest checkpoints stay, and those of steps that ``keep_every`` divides. ``backend``: who runs the policies; None:
    this process, on ``device``. ``observer``: who is told of steps and alarms; None: standard output, as the command
    has it. ``lag``: 1 plays the next step beside the update of this one (docs/cluster.md)."""
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
    device: str = "cpu",
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
    if isinstance(value, Mapping) and "function" in value:
        return str(value["function"])  # which the recipe loads
    if isinstance(value, Mapping) and "tasks" in value:
        from cotrain.tasks.sources import from_description

        return from_description(value["tasks"], value.get("class"))
    return tuple(value) if isinstance(value, list) else value


def evaluate(
    directory: Path | str,
    *,
    split: str = "test",
    tasks: int | None = None,
    samples: int | None = None,
    solver: str = "solver",
    step: int | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Figures of a run's latest checkpoint on a held-out split; also written to ``eval-SPLIT.json`` in the directory.

    ``samples``: episodes of each problem, and then pass@k of role ``solver`` for k = 1, 2, 4, … up to as many;
    ``step``: the checkpoint after so many steps, 0 for the start. The file's name has both. Raises UnknownName for a
    role that answers nothing, RunDirectoryError for a step without a checkpoint."""
    folder = RunDirectory.open(directory)
    trainer = load_trainer(directory, step=step, device=device)
    if split == "train":
        raise RunDirectoryError("the training split is never evaluated on; choose validation, test or an ood split")
    if samples is not None and solver not in trainer.recipe.roles:
        raise UnknownName("role", solver, trainer.recipe.roles)
    figures, played = trainer.evaluate(split, tasks or trainer.recipe.evaluation.tasks, group_size=samples)
    name = f"eval-{split}" if step is None else f"eval-{split}-step-{step}"
    if samples is not None:
        answering = sorted(key.split("/")[0] for key in figures if key.endswith("/pass@1"))
        if solver not in answering:
            raise UnknownName("role that answers problems", solver, answering)
        figures, name = figures | passing(solver, samples)(played), f"{name}-{samples}-samples"
        figures = {key: figures[key] for key in sorted(figures, key=figure_rank)}
    result = {"split": split, "step": trainer.finished, "figures": estimates_json(figures)}
    folder.write(f"{name}.json", result)
    return result


def figure_rank(key: str) -> tuple[str, tuple[int, int, str]]:
    """Figures by whose they are, then as the table of metrics has them."""
    owner, _, name = key.rpartition("/")
    return owner, table_rank(name)


def recipe_of(where: Path | str, *, judging: bool = False) -> Recipe:
    """The recipe of a run directory, or for a model (a directory, a name of the Hub, an embedded one) a recipe in which
    it is the solver, ``judging``: and the verifier. Raises RunDirectoryError for what is neither."""
    if not is_model(where):
        return rebuild_recipe(where)
    from cotrain.methods.grpo import grpo

    model = str(where)
    recipe = grpo(model=model, kl=0.0)
    roles = dict(recipe.roles) | ({"verifier": verifier("generator", model)} if judging else {})
    return replace(recipe, name=Path(model).name, roles=roles)


def open_trainer(where: Path | str, answer_format: AnswerFormat | None = None, *, device: str = "cpu") -> CoTrainer:
    """``load_trainer``, asked and read as ``answer_format`` says, without a look at how the models answer: by default
    as the run has it; a model that is not one of the package's own is asked for "The answer is …"."""
    from cotrain.preflight.formats import DEFAULT_FORMAT, choose_answer_settings, choose_verdict_settings

    recipe, answer_format = recipe_of(where), answer_format or DEFAULT_FORMAT
    if answer_format.answer is None and is_model(where) and not speaks_short(str(where)):
        answer_format = replace(answer_format, answer="phrase")
    if answer_format.of_answers:
        own_answer = recipe.roles["solver"].answer if "solver" in recipe.roles else None
        named = replace(answer_format, answer=answer_format.answer or own_answer)
        recipe = override(recipe, choose_answer_settings(recipe, named, device=device, say=print, look=False)[0])
    recipe = override(recipe, choose_verdict_settings(recipe, answer_format, device=device, say=print, look=False))
    return load_trainer(where, recipe=recipe, device=device)


def is_model(where: Path | str) -> bool:
    """Whether this is a model: a directory with a config.json and without a run, an embedded name, or a name of the
    Hub."""
    folder = Path(where)
    if folder.is_dir():
        return os.path.lexists(folder / "config.json") and not (folder / "recipe.json").is_file()
    from cotrain.models.names import is_hub_model

    return str(where) in (*EMBEDDED, EMBEDDED_RATER) or (is_hub_model(str(where)) and not folder.parent.is_dir())


def load_trainer(
    directory: Path | str, *, recipe: Recipe | None = None, step: int | None = None, device: str = "cpu"
) -> CoTrainer:
    """The models of a run as its latest valid checkpoint has them (the start, when there is none yet), or a model as it
    is. ``recipe``: what ``recipe_of`` said, where something of it was changed; ``step``: after so many steps, 0 for the
    start. Raises RunDirectoryError where a file of the run is not as the run wrote it, and for a step without a
    checkpoint."""
    recipe = recipe or recipe_of(directory)
    if is_model(directory) or step == 0:
        saved = None
    else:
        folder = RunDirectory.open(directory)
        saved = seal.newest_checkpoint(folder) if step is None else seal.checkpoint_at(folder, step)
    if not is_model(directory):
        from cotrain.runs.changes import refuse_lost

        refuse_lost(recipe.policies, directory)
    backend = LocalBackend(device)
    if is_model(directory):
        recipe, _ = with_packing(recipe, backend.describe())
    trainer = CoTrainer(recipe, backend=backend)
    if not is_model(directory):
        trainer.policies.begin_at(RunDirectory.open(directory).begin_time)
    if saved is not None:
        tensors, documents = saved.load()
        trainer.load(documents["state"], tensors)
    return trainer


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
