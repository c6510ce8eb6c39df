"""``cotrain resume``, and ``cotrain demo``, which begins a run or goes on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.cli.common import (
    add_async_steps_flag,
    add_backend_flags,
    add_device_flag,
    add_json_flag,
    add_threads_flag,
    add_view_flag,
    backend_of,
    device_of,
    load_libraries,
    set_threads,
)
from cotrain.cli.flags import Parser, add_changed_code_flag, add_count, add_trust_flag
from cotrain.cli.run import cluster_notes_of, exit_code_of, print_outcome, watched_run
from cotrain.core.errors import ConfigError
from cotrain.storage.schemas import check_path


def resume(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain resume", description="Go on where a run was interrupted.")
    parser.add_argument("directory", metavar="DIR", help="a run")
    add_count(parser, "--steps", "lengthen the run to N steps; decays end where they would have ended")
    parser.add_argument("--model", metavar="NEW", help="where its model was moved to; of several OLD=NEW")
    add_device_flag(parser)
    add_threads_flag(parser, "as the run was begun")
    add_backend_flags(parser)
    add_async_steps_flag(parser, None)
    add_trust_flag(parser)
    add_changed_code_flag(parser)
    add_view_flag(parser)
    add_json_flag(parser)
    arguments = parser.parse_strictly(argv)
    check_path(Path(arguments.directory))
    load_libraries()
    from cotrain import api
    from cotrain.runs.changes import check_foreign_code, rebuild_recipe
    from cotrain.runs.code_record import check_code_unchanged
    from cotrain.runs.directory import RunDirectory, check_same_async_steps

    check_foreign_code(arguments.directory)  # before anything of the run is changed
    is_finished = RunDirectory.open(arguments.directory).summary.exists()
    will_train = arguments.steps is not None or not is_finished
    if will_train and not arguments.changed_code:
        check_code_unchanged(arguments.directory)
    check_same_async_steps(arguments.directory, arguments.async_steps)
    # Both may refuse, so they come before anything of the run is changed.
    backend = backend_of(arguments)
    device = device_of(arguments.device, must_exist=backend is None)
    if arguments.model is not None:
        from cotrain.runs.changes import update_model_path

        update_model_path(arguments.directory, arguments.model)
    if arguments.steps is not None:
        from cotrain.runs.changes import lengthen_run

        rebuild_recipe(arguments.directory)  # raises where it cannot go on, before what it said at its end is removed
        lengthen_run(arguments.directory, arguments.steps)
    from cotrain.trackers.observer import rollouts_of_run, trackers_of_run
    from cotrain.trainer.failures import Diverged, StoppedBySignal

    notes: list[str] = []
    recipe = rebuild_recipe(arguments.directory, say=notes.append)
    provenance: Any = RunDirectory.open(arguments.directory).read("provenance.json")
    set_threads(arguments.threads or provenance["threads"])
    earlier = provenance.get("backend") or {}
    _note_change(notes, "--world", earlier.get("world", 1), arguments.world or 1)
    own_ranks = _own_ranks(backend.describe() if backend else {})
    _note_change(notes, "[learner.NAME] world", _own_ranks(earlier), own_ranks)
    _note_change(notes, "engine.replicas", earlier.get("replicas", 1), getattr(backend, "replicas", 1))

    with cluster_notes_of(backend, recipe) as cluster_notes:
        notes += cluster_notes
        try:
            with watched_run(
                recipe,
                out=arguments.directory,
                trackers=trackers_of_run(arguments.directory),
                tracker_rollouts=rollouts_of_run(arguments.directory),
                notes=notes,
                view=arguments.view,
            ) as observer:
                outcome = api.resume(
                    arguments.directory,
                    recipe=recipe,
                    device=device,
                    backend=backend,
                    observer=observer,
                    changed_code=arguments.changed_code,
                )
        except (StoppedBySignal, Diverged) as stopped:
            return exit_code_of(stopped)
    return print_outcome(outcome)


def _note_change(notes: list[str], setting: str, earlier: object, present: object) -> None:
    """Add a note on a setting of the processes that is not the one that the run was begun with."""
    if earlier != present:
        notes.append(
            f"note: this run was begun with {setting} {earlier} and goes on with {setting} {present}: sums may round "
            "differently, so it is the same run but not bit for bit"
        )


def _own_ranks(backend: Mapping[str, Any]) -> str:
    """The policies that have several ranks of their own: "verifier 2", or "none". ``backend``: its description."""
    worlds = backend.get("learners", {})
    return ", ".join(f"{policy} {world}" for policy, world in sorted(worlds.items()) if world > 1) or "none"


def demo(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain demo", description="Co-train a generator and a verifier in three minutes.")
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="a new directory, or one to go on with")
    add_count(parser, "--seed", "random seed of the run: another one makes another demo (default: 0)", least=0)
    add_view_flag(parser)
    add_json_flag(parser)
    arguments = parser.parse_strictly(argv)
    load_libraries()
    set_threads(None)
    from cotrain import api
    from cotrain.recipes.tango import demo as demo_recipe
    from cotrain.runs.changes import rebuild_recipe
    from cotrain.runs.directory import RunDirectory
    from cotrain.trainer.failures import Diverged, StoppedBySignal

    if (Path(arguments.out) / "recipe.json").is_file():
        directory = RunDirectory.open(arguments.out)
        recipe = rebuild_recipe(directory.path)
        if recipe.origin is None or recipe.origin.target != "demo":
            raise ConfigError(
                f"{arguments.out} holds a run of recipe {recipe.name!r}, not of the demo; choose another --out",
                code="E_OUT_OF_OTHER_RECIPE",
            )
        if arguments.seed not in (None, recipe.seed):
            raise ConfigError(
                f"{arguments.out} holds the demo with seed {recipe.seed}; leave out --seed {arguments.seed} to go on "
                "with it, or choose another --out",
                code="E_DEMO_SEED",
            )
        existing_run = directory.path
    else:
        recipe = demo_recipe(seed=arguments.seed or 0)
        existing_run = None
    try:
        with watched_run(recipe, out=arguments.out, view=arguments.view) as observer:
            if existing_run is None:
                outcome = api.run(recipe, arguments.out, observer=observer)
            else:
                outcome = api.resume(existing_run, recipe=recipe, observer=observer)
    except (StoppedBySignal, Diverged) as stopped:
        return exit_code_of(stopped)
    return print_outcome(outcome)
