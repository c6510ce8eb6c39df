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
    goes_on = arguments.steps is not None or not RunDirectory.open(arguments.directory).summary.exists()
    if goes_on and not arguments.changed_code:
        check_code_unchanged(arguments.directory)
    check_same_async_steps(arguments.directory, arguments.async_steps)
    if arguments.model is not None:
        from cotrain.runs.changes import update_model_path

        update_model_path(arguments.directory, arguments.model)
    if arguments.steps is not None:
        from cotrain.runs.changes import lengthen_run

        lengthen_run(arguments.directory, arguments.steps)
    from cotrain.trackers.observer import rollouts_of_run, trackers_of_run
    from cotrain.trainer.failures import Diverged, StoppedBySignal

    notes: list[str] = []
    backend = backend_of(arguments)
    recipe = rebuild_recipe(arguments.directory, say=notes.append)
    provenance: Any = RunDirectory.open(arguments.directory).read("provenance.json")
    set_threads(arguments.threads or provenance["threads"])
    old_backend = provenance.get("backend") or {}
    for what, before, now in (
        ("--world", old_backend.get("world", 1), arguments.world or 1),
        ("[learner.NAME] world", _own_ranks(old_backend), _own_ranks(backend.describe() if backend else {})),
        ("engine.replicas", old_backend.get("replicas", 1), getattr(backend, "replicas", 1)),
    ):
        if before != now:
            notes.append(
                f"note: this run was begun with {what} {before} and goes on with {what} {now}: sums may round "
                "differently, so it is the same run but not bit for bit"
            )

    device = device_of(arguments.device, here=backend is None)
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


def _own_ranks(backend: Mapping[str, Any]) -> str:
    """The policies of a backend that are held by several ranks of their own: "verifier 2"."""
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
    from cotrain.recipes.tango import demo as build
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
        begun = directory.path
    else:
        recipe = build(seed=arguments.seed or 0)
        begun = None
    try:
        with watched_run(recipe, out=arguments.out, view=arguments.view) as observer:
            if begun is None:
                outcome = api.run(recipe, arguments.out, observer=observer)
            else:
                outcome = api.resume(begun, recipe=recipe, observer=observer)
    except (StoppedBySignal, Diverged) as stopped:
        return exit_code_of(stopped)
    return print_outcome(outcome)
