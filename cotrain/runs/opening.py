"""Open a run or a model, to be asked or measured: its recipe, its models as a checkpoint has them, and figures of
these."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain import __version__
from cotrain.config.evaluation import held_out
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, RunDirectoryError, UnknownName
from cotrain.core.shipped import is_shipped
from cotrain.core.statistics import Estimate
from cotrain.core.types import Task
from cotrain.core.verbosity import ProgressPrinter, print_progress
from cotrain.distributed.local import LocalBackend
from cotrain.metrics.heldout import measure_pass_at_k
from cotrain.metrics.table import table_rank
from cotrain.rollout.common_roles import is_terse, verifier
from cotrain.rollout.runner import JointProgress
from cotrain.runs import manifest
from cotrain.runs.changes import recipe_to_measure
from cotrain.runs.check_models import check_tools
from cotrain.runs.code_record import code_json
from cotrain.runs.directory import RunDirectory, estimates_json, resolved_json, sha256_of
from cotrain.runs.fitting import with_packing
from cotrain.runs.kept_episodes import EpisodeKeeper, place_of
from cotrain.runs.out_of_room import DiskRetry
from cotrain.storage import checkpoints
from cotrain.storage.kept_work import claim_place, kept_work, stamp_of
from cotrain.trainer.evaluation import figure_names
from cotrain.trainer.trainer import CoTrainer

if TYPE_CHECKING:
    from cotrain.runs.choose_formats import AnswerFormat


def recipe_of(where: Path | str, *, judging: bool = False) -> Recipe:
    """The recipe of a run directory, or for a model (a directory, a name of the Hub, an shipped one) a recipe in which
    it is the solver, ``judging``: and the verifier. Raises RunDirectoryError for what is neither."""
    if not is_model(where):
        return recipe_to_measure(where)
    from cotrain.recipes.grpo import grpo

    model = str(where)
    recipe = grpo(model=model, kl=0.0)
    roles = dict(recipe.roles)
    if judging:
        roles["verifier"] = verifier("generator", model)
    return replace(recipe, name=Path(model).name, roles=roles)


def open_trainer(
    where: Path | str,
    answer_format: AnswerFormat | None = None,
    *,
    device: str = "auto",
    tool: str | None = None,
    needs_solver: bool = False,
) -> CoTrainer:
    """``load_trainer``, asked and read as ``answer_format`` says, without a look at how the models answer: by default
    as the run has it; a model as it was taught, else one that is not the package's own for "The answer is …".

    Args:
        tool: of whoever writes solutions; None: as the run has it.
        needs_solver: raise ConfigError for a run in which nobody solves problems.
    """
    from cotrain.runs.choose_formats import DEFAULT_FORMAT, as_taught, choose_answer_format, choose_verdict_format

    recipe = recipe_of(where)
    if needs_solver and "solver" not in recipe.roles:
        raise ConfigError(
            f"{where}: recipe {recipe.name!r} has no role 'solver' to talk to; it has {sorted(recipe.roles)}",
            code="E_NO_SOLVER",
        )
    answer_format = answer_format or DEFAULT_FORMAT
    if is_model(where):
        answer_format = as_taught(recipe, answer_format, print_progress)
    if answer_format.answer is None and is_model(where) and not is_terse(str(where)):
        answer_format = replace(answer_format, answer="phrase")
    if answer_format.of_answers:
        own_answer = recipe.roles["solver"].answer_format if "solver" in recipe.roles else None
        named = replace(answer_format, answer=answer_format.answer or own_answer)
        recipe, _ = choose_answer_format(recipe, named, device=device, say=print, look=False)
    recipe = choose_verdict_format(recipe, answer_format, device=device, say=print, look=False)
    if tool is not None:
        from cotrain.rollout.token_calls import with_tool

        recipe = replace(recipe, roles=with_tool(recipe.roles, tool))
        check_tools(recipe)
    return load_trainer(where, recipe=recipe, device=device)


def is_model(where: Path | str) -> bool:
    """Whether this is a model: a directory with a config.json and without a run, an shipped name, or a name of the
    Hub."""
    folder = Path(where)
    if folder.is_dir():
        return os.path.lexists(folder / "config.json") and not (folder / "recipe.json").is_file()
    from cotrain.models.names import is_hub_model

    return is_shipped(str(where)) or (is_hub_model(str(where)) and not folder.parent.is_dir())


def load_trainer(
    directory: Path | str, *, recipe: Recipe | None = None, step: int | None = None, device: str = "auto"
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
        saved = manifest.newest_checkpoint(folder) if step is None else manifest.checkpoint_at(folder, step)
    if not is_model(directory):
        from cotrain.runs.changes import check_models_exist

        check_models_exist(recipe.policies, directory)
    backend = LocalBackend(device)
    if is_model(directory):
        recipe, _ = with_packing(recipe, backend.describe())
    trainer = CoTrainer(recipe, backend=backend)
    if not is_model(directory):
        trainer.policies.set_template_time(RunDirectory.open(directory).begin_time)
    if saved is not None:
        tensors, documents = saved.load()
        trainer.load(documents["state"], tensors)
    return trainer


def point_stamp(directory: Path | str, step: int) -> list[Any]:
    """Return a stamp of the models of a run after so many steps, or of a model. Work that was begun can go on as long
    as its stamp is the same, also of a directory that was moved."""
    if is_model(directory):
        return [stamp_of(str(directory)) or str(directory), __version__]
    provenance = RunDirectory(directory).path / "provenance.json"
    return [step, checkpoint_digest(directory, step), _digest_of_file(provenance), __version__]


def checkpoint_digest(directory: Path | str, step: int) -> str:
    """SHA-256 of a checkpoint's manifest, which has the hash of each of its files; "" where there is none, as at the
    start of a run."""
    return _digest_of_file(RunDirectory(directory).checkpoints / checkpoints.step_name(step) / checkpoints.MANIFEST)


def _digest_of_file(file: Path) -> str:
    return sha256_of(file) if file.is_file() else ""


def evaluate(
    directory: Path | str,
    *,
    split: str = "test",
    tasks: int | None = None,
    samples: int | None = None,
    solver: str = "solver",
    step: int | None = None,
    device: str = "auto",
    say: Callable[[str], None] = print_progress,
) -> dict[str, Any]:
    """Figures of a run's latest checkpoint on a held-out split; also written to ``eval-SPLIT.json`` in the directory.

    Args:
        samples: episodes of each problem, and then pass@k of role ``solver`` for k = 1, 2, 4, … up to as many. They are
            kept while they are collected: where that is stopped, the same call goes on with what is there.
        step: the checkpoint after so many steps, 0 for the start. The file's name has both.
        say: called with lines about how far it is.

    Raises UnknownName for a role that answers nothing, RunDirectoryError for a step without a checkpoint."""
    folder = RunDirectory.open(directory)
    claim_place(folder.path)
    recipe = recipe_of(directory)
    if split == "train":
        raise RunDirectoryError(
            "the training split is never evaluated on; choose validation, test or an ood split",
            code="E_TRAINING_SPLIT_EVALUATED",
        )
    if samples is not None and solver not in recipe.roles:
        raise UnknownName("role", solver, recipe.roles)
    recipe.tasks.size(split)  # raises UnknownName for a split that the source does not have
    if samples is not None:
        declared = figure_names(recipe.evaluation, recipe.roles)
        if declared is not None:  # else it shows once all problems are played
            _check_role_answers(solver, declared)
    trainer = load_trainer(directory, recipe=recipe, step=step, device=device)
    count = tasks or recipe.evaluation.tasks
    name = f"eval-{split}" if step is None else f"eval-{split}-step-{step}"
    if samples is None:
        figures, _ = trainer.evaluate(split, count)
        return _write_figures(folder, f"{name}.json", split, trainer, figures, say)

    file = f"{name}-{samples}-samples.json"
    depends_on = _what_episodes_depend_on(directory, trainer, split, count, samples)
    with kept_work(folder.path / file, depends_on, say) as work:
        keeper = EpisodeKeeper(work, place=place_of(device), say=say)
        problems = held_out(recipe.tasks, split, count, recipe.seed)
        n_done = keeper.count_kept(len(problems), group_size=samples, what="sampled")
        n_done += keeper.count_kept(len(problems), group_size=1, what="greedy")
        n_episodes = episodes_to_collect(recipe, problems, samples)
        printer = ProgressPrinter(n_episodes, f"{split}: {{}} episodes", say, done=n_done)
        trainer.eval_progress = JointProgress(printer)
        figures, episodes = trainer.evaluate(split, count, group_size=samples, collect=keeper.collect)
        _check_role_answers(solver, figures)
        figures |= measure_pass_at_k(solver, samples)(episodes)
        figures = {key: figures[key] for key in sorted(figures, key=figure_rank)}
        return _write_figures(folder, file, split, trainer, figures, say)


def episodes_to_collect(recipe: Recipe, problems: Sequence[Task], samples: int) -> int:
    """How many episodes an evaluation collects: so many samples of each problem, and a greedy answer to each where any
    of them can be graded (``trainer/evaluation.py: measure_protocol``)."""
    has_greedy = recipe.evaluation.greedy and any(problem.gradable for problem in problems)
    return len(problems) * (samples + int(has_greedy))


def _what_episodes_depend_on(
    directory: Path | str, trainer: CoTrainer, split: str, count: int, samples: int
) -> dict[str, Any]:
    """All that the episodes of an evaluation depend on, as JSON: they are kept for others of the same."""
    code = code_json(trainer.recipe)
    return {
        "what": "eval",
        "point": point_stamp(directory, trainer.finished_steps),
        "recipe": resolved_json(trainer.recipe),
        "code": None if code is None else code["versions"],
        "problems": [split, count],
        "samples": samples,
    }


def _write_figures(
    folder: RunDirectory,
    name: str,
    split: str,
    trainer: CoTrainer,
    figures: Mapping[str, Estimate],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Write the figures of an evaluation to a file of this name. Returns its content."""
    result = {"split": split, "step": trainer.finished_steps, "figures": estimates_json(figures)}
    wait_for_room = DiskRetry(lambda: 0, say)
    wait_for_room(folder.write_measurement, name, result)
    return result


def _check_role_answers(role: str, figures: Iterable[str]) -> None:
    """Raise UnknownName for a role that answers no problems, by the names of figures that are measured."""
    answering = sorted(key.split("/")[0] for key in figures if key.endswith("/pass@1"))
    if role not in answering:
        raise UnknownName("role that answers problems", role, answering)


def figure_rank(key: str) -> tuple[str, tuple[int, int, str]]:
    """Figures by whose they are, then as the table of metrics has them."""
    owner, _, name = key.rpartition("/")
    return owner, table_rank(name)
