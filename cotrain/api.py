"""The same verbs as the command line, from Python: run, resume, evaluate, report, compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.backend.local import Local
from cotrain.core.errors import RunDirectoryError, UserError
from cotrain.core.types import TaskSource
from cotrain.disk import transaction
from cotrain.loop import run as loop
from cotrain.loop.directory import RunDirectory, differences, estimates_json, refuse_other
from cotrain.loop.override import override, restored
from cotrain.loop.recipe import Recipe
from cotrain.loop.run import Interrupted, Observer, Outcome
from cotrain.loop.trainer import CoTrainer
from cotrain.recipes import make
from cotrain.tasks.sources import from_description
from cotrain.view.report import write_report


def run(
    recipe: Recipe,
    out: Path | str,
    *,
    checkpoint_every: int = 25,
    device: str = "cpu",
    observer: Observer | None = None,
) -> Outcome:
    """Run a recipe into a new directory and write its report, also when it is interrupted."""
    try:
        outcome = loop.start(recipe, out, checkpoint_every=checkpoint_every, device=device, observer=observer)
    except Interrupted:
        write_report(Path(out))
        raise
    write_report(Path(out))
    return outcome


def resume(
    directory: Path | str, *, recipe: Recipe | None = None, device: str = "cpu", observer: Observer | None = None
) -> Outcome:
    """Go on with an interrupted run. ``recipe`` is needed only where the run was started from a bare Recipe."""
    try:
        outcome = loop.resume(recipe or rebuild(directory), directory, device=device, observer=observer)
    except Interrupted:
        write_report(Path(directory))
        raise
    write_report(Path(directory))
    return outcome


def rebuild(directory: Path | str, *, say: Callable[[str], None] | None = None) -> Recipe:
    """The recipe of a run directory: the function that made it, called again with the arguments it was given. Plain settings
    whose defaults have changed since stay as the run was begun with them, which ``say`` is told. Raises RunDirectoryError
    where more has changed."""
    saved: Any = RunDirectory.open(directory).read("recipe.json")  # ``open`` has seen it
    if not isinstance(saved, Mapping) or not {"origin", "settings"} <= set(saved):
        raise RunDirectoryError(f"{Path(directory) / 'recipe.json'} is damaged (no recipe in it); restore it")
    origin = saved["origin"]
    if origin is None:
        raise RunDirectoryError(
            f"{directory} was started from a bare Recipe; resume it from Python with cotrain.resume({str(directory)!r}, recipe=…)"
        )
    arguments = {name: _argument(value) for name, value in origin["arguments"].items()}
    try:
        made = override(make(origin["target"], arguments), origin["settings"])
    except UserError as error:
        raise RunDirectoryError(f"the recipe of {directory} cannot be built again: {error}") from error
    changed = differences(saved, made)
    made = restored(made, [(name, was) for name, was, _ in changed])
    if say is not None:
        for name, was, now in changed:
            say(f"note: {name} stays {json.dumps(was)}, as this run was begun; a new one would have {json.dumps(now)}")
    refuse_other(Path(directory), saved, made)
    return made


def _argument(value: Any) -> Any:
    if isinstance(value, Mapping) and set(value) == {"tasks"}:
        source: TaskSource = from_description(value["tasks"])
        return source
    return tuple(value) if isinstance(value, list) else value


def evaluate(
    directory: Path | str, *, split: str = "test", tasks: int | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """Figures of a run's latest checkpoint on a held-out split; also written to ``eval-SPLIT.json`` in the directory."""
    folder = RunDirectory.open(directory)
    trainer = trained(directory, device=device)
    if split == "train":
        raise RunDirectoryError("the training split is never evaluated on; choose validation, test or an ood split")
    figures, _ = trainer.evaluate(split, tasks or trainer.recipe.evaluation.tasks)
    result = {"split": split, "step": trainer.finished, "figures": estimates_json(figures)}
    folder.write(f"eval-{split}.json", result)
    return result


def trained(directory: Path | str, *, device: str = "cpu") -> CoTrainer:
    """The models of a run as its latest valid checkpoint has them (the start, when there is none yet)."""
    trainer = CoTrainer(rebuild(directory), backend=Local(device))
    checkpoint = transaction.latest(RunDirectory.open(directory).checkpoints)
    if checkpoint is not None:
        tensors, documents = checkpoint.load()
        trainer.load(documents["state"], tensors)
    return trainer


def report(directory: Path | str) -> Path:
    """Write ``report.html`` anew and return its path."""
    return write_report(RunDirectory.open(directory).path)


def compare(arms: Sequence[str], *, seeds: int, out: Path | str, **options: Any) -> dict[str, Any]:
    """Run several recipes with several seeds; see ``cotrain.comparison``."""
    from cotrain.comparison import compare as work

    return work(arms, seeds=seeds, out=Path(out), **options)
