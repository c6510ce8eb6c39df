"""``cotrain run``, ``resume``, ``demo`` and ``compare``: the commands that make runs."""

from __future__ import annotations

import argparse
import inspect
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotrain.commands.common import figure, quiet, threads
from cotrain.core.errors import ConfigError
from cotrain.core.flags import Parser, add_parameters, values_of


def run(words: Sequence[str]) -> int:
    from cotrain.recipes import find

    if not words or words[0].startswith("-"):
        if words and words[0] in ("-h", "--help"):
            print("usage: cotrain run RECIPE --out DIR [flags]; `cotrain run RECIPE --help` lists the recipe's flags")
            return 0
        raise ConfigError(
            "cotrain run: name a recipe first, as in `cotrain run tango --out runs/mine`; see `cotrain list`"
        )
    target, build = words[0], find(words[0])
    parser = Parser(prog=f"cotrain run {target}", description=build.__doc__)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new directory for the run")
    names = add_parameters(parser, build, skip=("tasks",))
    parser.add_argument("--tasks", metavar="SOURCE", help="words, gym:NAME, jsonl, or a benchmark: gsm8k, math500 …")
    parser.add_argument(
        "--data", metavar="FILE", help="file, directory or owner/name on the Hub (default: --tasks jsonl)"
    )
    parser.add_argument("--operations", type=int, nargs=2, metavar="N", help="fewest and most steps of --tasks words")
    parser.add_argument("--checkpoint-every", type=int, default=25, metavar="N", help="steps between checkpoints")
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=value", help="change any setting of the recipe"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 …")
    parser.add_argument("--threads", type=int, help="CPU threads (default: OMP_NUM_THREADS, or all cores)")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved recipe and stop")
    parser.add_argument("--tracker", action="append", default=[], metavar="NAME", help="tensorboard, wandb, trackio")
    given = parser.strict(words[1:])
    if given.checkpoint_every < 1:
        parser.error(f"--checkpoint-every is {given.checkpoint_every}, expected at least 1")
    threads(given.threads)
    quiet()
    from cotrain import api
    from cotrain.loop.directory import recipe_json
    from cotrain.loop.override import override
    from cotrain.report.trackers import check as trackers

    arguments = values_of(given, names)
    if given.tasks is not None or given.data is not None or given.operations is not None:
        if "tasks" not in inspect.signature(build).parameters:
            raise ConfigError(f"recipe {target!r} has no parameter 'tasks': leave out --tasks, --data and --operations")
        arguments["tasks"] = _tasks(given.tasks or ("jsonl" if given.data else "words"), given.data, given.operations)
    recipe = override(build(**arguments), given.set)
    if given.dry_run:
        print(json.dumps(recipe_json(recipe, checkpoint_every=given.checkpoint_every), indent=2, ensure_ascii=False))
        return 0
    return _watched(
        recipe,
        lambda watch: api.run(
            recipe, given.out, checkpoint_every=given.checkpoint_every, device=given.device, observer=watch
        ),
        out=given.out,
        trackers=trackers(given.tracker),
    )


def _tasks(spec: str, file: str | None, operations: list[int] | None) -> Any:
    from cotrain.tasks.sources import task_source
    from cotrain.tasks.words.source import WordProblems, study_problems

    source = task_source(spec, file) if spec != "words" else study_problems()
    if operations is None:
        return source
    if not isinstance(source, WordProblems):
        raise ConfigError(f"--operations goes with --tasks words, not with {spec!r}; leave it out")
    return replace(source, operations=(operations[0], operations[1]))


def resume(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain resume", description="Go on where a run was interrupted.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="CPU threads (default: as the run was begun)")
    given = parser.strict(words)
    from cotrain.loop.directory import RunDirectory

    begun = RunDirectory.open(given.directory).read("provenance.json") or {}
    threads(given.threads or begun.get("threads"))
    quiet()
    from cotrain import api
    from cotrain.report.trackers import tracked

    recipe = api.rebuild(given.directory)
    return _watched(
        recipe,
        lambda watch: api.resume(given.directory, recipe=recipe, device=given.device, observer=watch),
        out=given.directory,
        trackers=tracked(given.directory),
    )


def _watched(recipe: Any, work: Callable[[Any], Any], *, out: str = "", trackers: Sequence[str] = ()) -> int:
    """Run under the live table, mirrored in trackers; print where the results are."""
    from cotrain.loop.run import Interrupted
    from cotrain.report.live import Live
    from cotrain.report.trackers import Mirrors

    about = {"recipe": recipe.name, "seed": recipe.seed, "steps": recipe.steps}
    try:
        with Live(recipe.steps, recipe.tokens) as live, Mirrors(live, out, trackers, about=about) as watch:
            outcome = work(watch)
    except Interrupted as stopped:
        return 143 if stopped.signal == signal.SIGTERM else 130
    print_summary(outcome.summary)
    print(f"report: {outcome.directory / 'report.html'}")
    return 0


HEADLINE = {
    *("pass@1", "pass@8", "greedy", "best@8", "weighted@8", "step_accuracy", "balanced_accuracy", "f1", "gap"),
    *("step_balanced_accuracy", "fixed/balanced_accuracy", "fixed/step_balanced_accuracy", "ood_length/pass@1"),
}


def print_summary(summary: dict[str, Any]) -> None:
    """Before and after of the main figures, one line each; all of them stand in summary.json."""
    before, after = summary["before"], summary["after"]
    print(f"\n{summary['recipe']}: {summary['steps']} steps, {summary['tokens']:,} tokens, seed {summary['seed']}")
    print(f"{'held-out':44s} {'before':>22s} {'after':>22s}")
    shown = [key for key in after if key.split("/", 1)[-1] in HEADLINE] or list(after)
    for key in shown:
        print(f"{key:44s} {figure(before.get(key)):>22s} {figure(after[key]):>22s}")


def demo(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain demo", description="Co-train a generator and a verifier in five minutes.")
    parser.add_argument("--out", default="runs/demo", metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.strict(words)
    threads(None)
    quiet()
    from cotrain import api
    from cotrain.loop.directory import RunDirectory
    from cotrain.recipes.demo import demo as build

    if (Path(given.out) / "recipe.json").is_file():
        begun = RunDirectory.open(given.out)
        recipe = api.rebuild(begun.path)
        return _watched(recipe, lambda watch: api.resume(begun.path, recipe=recipe, observer=watch))
    recipe = build(seed=given.seed)
    return _watched(recipe, lambda watch: api.run(recipe, given.out, observer=watch))


def compare(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain compare", description="Run several recipes with several seeds and compare them.")
    parser.add_argument("arms", nargs="+", metavar="RECIPE", help="name, or name:parameter=value,… for a variant")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=60, help="updates of the first objective's policy in each run")
    parser.add_argument("--tokens", type=int, metavar="N", help="end every run when it has sampled N tokens")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument(
        "--equal-tokens",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let cheaper arms run on to the same tokens",
    )
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="a setting of every arm")
    parser.add_argument("--workers", type=int, help="runs at a time (default: one a core)")
    given = parser.strict(words)
    quiet()
    from cotrain import api

    result = api.compare(
        given.arms,
        seeds=given.seeds,
        out=given.out,
        updates=given.updates,
        tokens=given.tokens,
        equal_tokens=given.equal_tokens,
        evaluate_every=given.evaluate_every,
        settings=tuple(given.set),
        workers=given.workers,
    )
    for line in result["lines"]:
        print(line)
    print(f"report: {Path(given.out) / 'report.html'}")
    return 0
