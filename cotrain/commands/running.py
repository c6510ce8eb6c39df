"""``cotrain run``, ``resume`` and ``demo``: the commands that make a run."""

from __future__ import annotations

import argparse
import inspect
import json
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.commands.common import (
    add_answers,
    add_backend,
    add_device,
    add_lag,
    add_threads,
    answered,
    backend_of,
    device_of,
    figure,
    quiet,
    threads,
)
from cotrain.commands.config import RECIPE, config_of, file_of, words_of
from cotrain.core.errors import ConfigError
from cotrain.core.flags import Parser, add_parameters, add_trust, comments_of, typed_in, values_of, whole
from cotrain.metrics.table import is_headline, rank

if TYPE_CHECKING:
    from cotrain.config.recipe import Recipe

USAGE = """usage: cotrain run RECIPE --out DIR [flags]
       cotrain run --config FILE --out DIR [flags]

Run a recipe into a new directory. RECIPE is a name of `cotrain list` or
path/to/file.py:function. Every parameter of a recipe is a flag:
`cotrain run RECIPE --help` lists them."""


def run(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    config = config_of(argv)
    target, argv = _target(argv, config)
    from cotrain.config.registry import find

    build = find(target)
    parser, names = parser_of(target, build)
    words = [*(words_of(*config, parser) if config else ()), *argv]
    given, typed = parser.strict(words), typed_in(words, parser)
    if given.json and not given.dry_run:
        parser.error("--json goes with --dry-run; add it")
    threads(given.threads)
    quiet()
    from cotrain import api
    from cotrain.commands.ready import ready
    from cotrain.config.override import override
    from cotrain.config.recipe import check_due
    from cotrain.pages.trackers import check as trackers
    from cotrain.preflight.machine import fitted
    from cotrain.runs.directory import RunDirectory
    from cotrain.train.lag import IN_TURN, check_lag

    arguments = {name: value for name, value in values_of(given, names).items() if name in typed}
    made = _made(target, build, given, arguments)
    recipe = override(made, given.set)
    check_lag(recipe, given.lag)
    backend, device = backend_of(given), device_of(given.device, here=given.backend == "local")
    if (origin := made.origin) is not None:
        for name in names:
            setattr(given, name, origin.arguments.get(name, getattr(given, name)))
    if not given.dry_run:
        RunDirectory(given.out).refuse_used()  # before a model is asked
        check_due(recipe)
    notes = _notes(made, given.set, typed)
    if backend is None:
        recipe, more = fitted(recipe, device)
        notes += more
    if given.dry_run:
        recipe = answered(recipe, given, dry=True)
        given.set = list(recipe.origin.settings) if recipe.origin else given.set
        return dry_run(recipe, given, backend, file_of(target, parser, given), notes)
    with ready(backend, recipe) as found:
        settled = answered(recipe, given)
        keeping = {"checkpoint_every": given.checkpoint_every, "keep_every": given.keep_every, "lag": given.lag}
        return _watched(
            settled,
            lambda watch: api.run(settled, given.out, **keeping, device=device, backend=backend, observer=watch),
            out=given.out,
            trackers=trackers(given.tracker),
            notes=[*notes, *found, *([IN_TURN] if given.lag and backend is None else [])],
        )


def _target(argv: Sequence[str], config: Any) -> tuple[str, Sequence[str]]:
    """The recipe's name, by the first word or the file of flags, and the words behind it."""
    if argv and not argv[0].startswith("-"):
        return argv[0], argv[1:]
    if config is None or RECIPE not in config[1]:
        raise ConfigError(
            "cotrain run: name a recipe first, as in `cotrain run tango --out runs/mine`; see `cotrain list`"
        )
    return str(config[1][RECIPE]), argv


def _made(target: str, build: Callable[..., Any], given: argparse.Namespace, arguments: Mapping[str, Any]) -> Recipe:
    """The recipe of these arguments, on the problems that the flags name."""
    from cotrain.config.registry import make
    from cotrain.tasks.sources import problems

    if given.tasks is None and given.data is None and given.operations is None and not given.lenient:
        return make(target, arguments)
    if "tasks" not in inspect.signature(build).parameters:
        raise ConfigError(
            f"recipe {target!r} has no parameter 'tasks': leave out --tasks, --data, --lenient and --operations"
        )
    return make(target, {**arguments, "tasks": problems(given.tasks, given.data, given.operations, given.lenient)})


def _notes(made: Recipe, settings: Sequence[str], typed: Collection[str]) -> list[str]:
    """What is said of defaults that hang on the size of the model."""
    from cotrain.config.by_size import line_of, unknown_lines

    if made.origin is None:
        return []
    chosen = {one.partition("=")[0] for one in settings}
    by_size = {name: value for name, value in made.origin.by_size.items() if name not in chosen}
    told = [line_of(made.origin.arguments, by_size)] if by_size else []
    return [*told, *unknown_lines(made.origin.arguments, typed)]


def parser_of(target: str, build: Callable[..., Any]) -> tuple[Parser, list[str]]:
    """The parser of a recipe's command, and which of its flags are arguments of the recipe."""
    from cotrain.config.settings import NAMES, Settings, description_of

    plain = getattr(build, "recipe", build)
    parser = Parser(prog=f"cotrain run {target}", usage="%(prog)s --out DIR [flags]", description=description_of(plain))
    its_own = parser.add_argument_group(f"parameters of {build.__name__}")
    common = parser.add_argument_group("settings of every recipe")
    data, how = parser.add_argument_group("problems"), parser.add_argument_group("the run")
    how.add_argument("--out", required=True, metavar="DIR", help="a new directory for the run")
    how.add_argument("--set", action="append", default=[], metavar="a.b=value", help="any setting; see --dry-run")
    how.add_argument(
        "--config", metavar="FILE", help="flags in a TOML file, one key a flag; those given here count more"
    )
    how.add_argument(
        "--dry-run",
        action="store_true",
        help="open model and data, print the flags as a file for --config, memory and disk, and all settings",
    )
    how.add_argument("--json", action="store_true", help="with --dry-run: the settings as recipe.json will have them")
    how.add_argument("--checkpoint-every", type=whole(1), default=25, metavar="N", help="steps between checkpoints")
    how.add_argument(
        "--keep-every",
        type=whole(),
        default=0,
        metavar="N",
        help="keep those of every N steps (default: 0, the last two)",
    )
    add_device(how)
    add_backend(how)
    add_lag(how)
    add_threads(how)
    how.add_argument("--tracker", action="append", default=[], metavar="NAME", help="tensorboard, wandb, trackio")
    data.add_argument(
        "--tasks", metavar="SOURCE", help="words (the default), games:NAME, gym:NAME, jsonl, or a benchmark: gsm8k …"
    )
    data.add_argument(
        "--data", metavar="FILE", help="file, directory or owner/name of the Hub, for all but words and gym"
    )
    data.add_argument(
        "--lenient", action="store_true", help="set malformed rows of --data aside, in OUT/quarantine.jsonl"
    )
    data.add_argument(
        "--operations", type=whole(1), nargs=2, metavar="N", help="fewest and most steps of --tasks words"
    )
    add_answers(data, verdict="auto, which looks at reviews of the model (the default), ")
    names = add_parameters(its_own, build, skip=NAMES, about=comments_of(plain))
    others = {name for name in inspect.signature(build).parameters if name not in NAMES}
    names += add_parameters(common, build, skip={"tasks", *others}, about=comments_of(Settings))
    return parser, names


def dry_run(
    recipe: Any, given: argparse.Namespace, backend: Any, flags: Sequence[str], notes: Sequence[str] = ()
) -> int:
    """Open what a run would open, and print what it would be."""
    from cotrain.commands.ready import split_of
    from cotrain.config.recipe import check_due
    from cotrain.preflight.estimate import looked_at
    from cotrain.runs.directory import recipe_json

    check_due(recipe)
    device = device_of(given.device, here=backend is None)
    split = None if backend is None else split_of(backend, recipe, backend.launcher.cluster)
    seen = looked_at(recipe, device=device, checkpoint_every=given.checkpoint_every, split=split)
    saved = recipe_json(recipe, checkpoint_every=given.checkpoint_every, keep_every=given.keep_every, lag=given.lag)
    if given.json:
        print(json.dumps(saved | {"estimate": seen.json()}, indent=2, ensure_ascii=False))
        return 0
    print("\n".join(flags))
    print("\n".join(f"# {line}".rstrip() for line in ("", *seen.lines(), *notes)))
    print('#\n# every setting that can be given as set = ["path=value"]')
    for setting in (f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in leaves(saved["settings"])):
        if changeable(recipe, setting):
            print(f"# {setting}")
    return 0


def changeable(recipe: Any, setting: str) -> bool:
    """Whether ``--set`` takes it: functions, and what the problems were made of, are no settings."""
    from cotrain.config.override import override

    try:
        override(recipe, [setting])
    except ConfigError:
        return False
    return True


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything plain in the settings."""
    inside = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if inside is None or not value:
        yield path, value
        return
    for key, one in inside:
        if key != "is":
            yield from leaves(one, f"{path}.{key}".lstrip("."))


def resume(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain resume", description="Go on where a run was interrupted.")
    parser.add_argument("directory", metavar="DIR", help="a run")
    parser.add_argument(
        "--steps",
        type=whole(1),
        metavar="N",
        help="lengthen the run to so many; decays end where they would have ended",
    )
    parser.add_argument("--model", metavar="NEW", help="where its model was moved to; of several OLD=NEW")
    add_device(parser)
    add_threads(parser, "as the run was begun")
    add_backend(parser)
    add_lag(parser, None)
    add_trust(parser)
    given = parser.strict(argv)
    from cotrain.runs.directory import RunDirectory, refuse_other_lag

    quiet()
    from cotrain import api

    api.refuse_foreign_code(given.directory)  # before anything of the run is changed
    refuse_other_lag(given.directory, given.lag)
    if given.model is not None:
        from cotrain.runs.whereabouts import moved

        moved(given.directory, given.model)
    if given.steps is not None:
        from cotrain.runs.lengthen import lengthen

        lengthen(given.directory, given.steps)
    from cotrain.commands.ready import ready
    from cotrain.pages.trackers import tracked

    notes: list[str] = []
    backend = backend_of(given)
    recipe = api.rebuild(given.directory, say=notes.append)
    begun: Any = RunDirectory.open(given.directory).read("provenance.json")
    threads(given.threads or begun["threads"])
    was = begun.get("backend") or {}
    for what, before, now in (
        ("--world", was.get("world", 1), given.world or 1),
        ("engine.replicas", was.get("replicas", 1), getattr(backend, "replicas", 1)),
    ):
        if before != now:
            notes.append(
                f"note: this run was begun with {what} {before} and goes on with {what} {now}: sums may round "
                "differently, so it is the same run but not bit for bit"
            )
    device = device_of(given.device, here=backend is None)
    with ready(backend, recipe) as found:
        return _watched(
            recipe,
            lambda watch: api.resume(given.directory, recipe=recipe, device=device, backend=backend, observer=watch),
            out=given.directory,
            trackers=tracked(given.directory),
            notes=[*notes, *found],
        )


def _watched(
    recipe: Any,
    work: Callable[[Any], Any],
    *,
    out: str,
    trackers: Sequence[str] = (),
    notes: Sequence[str] = (),  # to be said first
) -> int:
    """Run under the live table, mirrored in trackers; print how to watch it, and where the results are."""
    from cotrain.pages.live import Live, ends_of
    from cotrain.pages.trackers import Mirrors
    from cotrain.runs.costs import spent_by
    from cotrain.runs.run import Interrupted
    from cotrain.train.guard import Diverged

    about = {"recipe": recipe.name, "seed": recipe.seed, "steps": recipe.length}
    try:
        with (
            Live(ends_of(recipe), spent=spent_by(Path(out))) as live,
            Mirrors(live, out, trackers, about=about) as watch,
        ):
            for note in (*notes, f"watch it in a browser: cotrain view {shlex.quote(out)}"):
                live.message(note)
            outcome = work(watch)
    except Interrupted as stopped:
        return 128 + (stopped.signal or signal.SIGINT)
    except Diverged as error:
        print(f"cotrain: {error}", file=sys.stderr)
        return 1
    print_summary(outcome.summary)
    print(f"report: {outcome.directory / 'report.html'}")
    return 0


FURTHER = {"fixed/balanced_accuracy", "fixed/step_balanced_accuracy", "ood_length/pass@1"}  # beside the headlines


def print_summary(summary: dict[str, Any]) -> None:
    """Before and after of the main figures, one line each; all of them stand in summary.json."""
    before, after = summary["before"], summary["after"]
    spent = f"{summary['steps']} steps, {summary.get('tokens', 0):,} tokens, seed {summary.get('seed', '?')}"
    print(f"\n{summary.get('recipe', 'run')}: {spent}")
    shown = [key for key in after if (name := key.split("/", 1)[-1]) in FURTHER or is_headline(name)] or list(after)
    roles = list(dict.fromkeys(key.split("/")[0] for key in shown))
    shown.sort(key=lambda key: (roles.index(key.split("/")[0]), key.count("/"), rank(key.rpartition("/")[2])))
    if not shown:
        print("nothing was measured: there were no held-out problems that could be graded")
        return
    rows = [("held-out", "before", "after"), *((key, figure(before.get(key)), figure(after[key])) for key in shown)]
    name, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    for key, *figures in rows:
        print(f"{key:{name}s}", *(f"{text:>{width}s}" for text, width in zip(figures, widths, strict=True)), sep="  ")


def demo(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain demo", description="Co-train a generator and a verifier in five minutes.")
    parser.add_argument("--out", default="runs/demo", metavar="DIR", help="a new directory, or one to go on with")
    parser.add_argument("--seed", type=whole(), metavar="N", help="another demo (default: 0)")
    given = parser.strict(argv)
    threads(None)
    quiet()
    from cotrain import api
    from cotrain.methods.demo import demo as build
    from cotrain.runs.directory import RunDirectory

    if (Path(given.out) / "recipe.json").is_file():
        begun = RunDirectory.open(given.out)
        recipe = api.rebuild(begun.path)
        if recipe.origin is None or recipe.origin.target != "demo":
            raise ConfigError(
                f"{given.out} holds a run of recipe {recipe.name!r}, not of the demo; choose another --out"
            )
        if given.seed not in (None, recipe.seed):
            raise ConfigError(
                f"{given.out} holds the demo with seed {recipe.seed}; leave out --seed {given.seed} to go on with "
                "it, or "
                "choose another --out"
            )
        return _watched(recipe, lambda watch: api.resume(begun.path, recipe=recipe, observer=watch), out=given.out)
    recipe = build(seed=given.seed or 0)
    return _watched(recipe, lambda watch: api.run(recipe, given.out, observer=watch), out=given.out)
