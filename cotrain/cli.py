"""The command ``cotrain``.

    cotrain demo                      five minutes: co-train a generator and a verifier, open the report
    cotrain list                      the recipes and their parameters
    cotrain run RECIPE --out DIR      RECIPE is a name of the list or path/to/file.py:function
    cotrain resume DIR                go on where a run was interrupted
    cotrain eval | report | chat | serve DIR    measure, show, talk to a run, or let programs talk to it
    cotrain eval DIR --suite gsm8k,processbench --data …    scores on benchmarks, as papers give them
    cotrain check data FILE --against TEST    malformed rows, duplicates, overlap, unreadable answers
    cotrain export DIR --role NAME --out MODEL    a trained policy as a plain model directory, with a card
    cotrain push DIR --role NAME --repo owner/name    the same, to the Hugging Face Hub
    cotrain convert nanochat DIR --out MODEL    a checkpoint of another project as a model directory
    cotrain compare A B … --seeds N   several recipes, several seeds, one report
    cotrain tokenizer | pretrain | sft | base    from nothing to a base model
    cotrain doctor                    what is installed and what will be used

Bad input ends with one line on stderr and exit code 2; an interrupted run with 130 (Ctrl-C) or 143 (SIGTERM).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, CotrainError, unknown_message
from cotrain.core.flags import Parser, add_parameters, values_of

Command = Callable[[Sequence[str]], int]


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    from cotrain.serve import command as server
    from cotrain.stages import commands as stages

    commands: dict[str, Command] = {
        "demo": demo,
        "list": list_recipes,
        "run": run,
        "resume": resume,
        "eval": evaluate,
        "check": check,
        "compare": compare,
        "report": report,
        "chat": chat,
        "serve": server.serve,
        "export": export,
        "push": _command_of("cotrain.push"),
        "convert": _command_of("cotrain.models.nanochat"),
        "doctor": doctor,
        "tokenizer": stages.tokenizer,
        "pretrain": stages.pretrain,
        "sft": stages.sft,
        "base": stages.base,
    }
    if not words or words[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0
    if words[0] in ("-V", "--version"):
        from cotrain import __version__

        print(f"cotrain {__version__}")
        return 0
    try:
        if words[0] not in commands:
            raise ConfigError(unknown_message("command", words[0], commands))
        return commands[words[0]](words[1:])
    except CotrainError as error:
        print(f"{'' if str(error).startswith('cotrain ') else 'cotrain: '}{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cotrain: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _command_of(module: str) -> Command:
    """The function ``command`` of a module that is imported when it is called."""

    def command(words: Sequence[str]) -> int:
        _quiet()
        found: Command = importlib.import_module(module).command
        return found(words)

    return command


def _quiet() -> None:
    """Keep the libraries' own progress bars and warnings out of ours."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.disable_progress_bar()


def list_recipes(words: Sequence[str]) -> int:
    Parser(prog="cotrain list", description="The recipes that ship with cotrain.").strict(words)
    from cotrain.recipes import SHIPPED, find

    for name in SHIPPED:
        build = find(name)
        about = inspect.getdoc(inspect.getmodule(build)) or ""
        print(f"{name:12s} {about.splitlines()[0]}")
        parameters = inspect.signature(build).parameters.values()
        flags = [f"--{p.name.replace('_', '-')} {p.default}" for p in parameters if p.default is not None]
        print(f"{'':12s} {' '.join(flags)}")
    return 0


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
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved recipe and stop")
    parser.add_argument("--tracker", action="append", default=[], metavar="NAME", help="tensorboard, wandb, trackio")
    given = parser.strict(words[1:])
    if given.checkpoint_every < 1:
        parser.error(f"--checkpoint-every is {given.checkpoint_every}, expected at least 1")
    _threads(given.threads)
    _quiet()
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
    _threads(given.threads or begun.get("threads"))
    _quiet()
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
        with Live(recipe.steps) as live, Mirrors(live, out, trackers, about=about) as watch:
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
        print(f"{key:44s} {_figure(before.get(key)):>22s} {_figure(after[key]):>22s}")


def _figure(estimate: dict[str, Any] | None) -> str:
    return "–" if estimate is None else f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def evaluate(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain eval", description="Measure a run's latest checkpoint on held-out problems.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--split", default="test", help="test, validation, ood_length, ood_template …")
    parser.add_argument("--problems", type=int, help="how many (default: as the recipe says)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--suite", metavar="A,B", help="benchmarks instead of a split: gsm8k,math500,processbench …")
    parser.add_argument("--data", nargs="+", default=[], metavar="PATH", help="of the suites: PATH or NAME=PATH each")
    parser.add_argument("--samples", type=int, default=8, metavar="K", help="of avg@K, pass@K, maj@K, best@K")
    parser.add_argument("--reviews", type=int, default=1, help="of each solution, by the verifier")
    parser.add_argument("--solver", default="solver", metavar="ROLE")
    parser.add_argument("--verifier", default="verifier", metavar="ROLE")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.strict(words)
    _quiet()
    if given.suite is not None:
        from cotrain.suites import command

        return command(given)
    if given.data:
        parser.error("--data goes with --suite; name the suites")
    from cotrain import api

    result = api.evaluate(given.directory, split=given.split, tasks=given.problems, device=given.device)
    if given.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"split {result['split']}, after step {result['step']}")
    for key, value in result["figures"].items():
        print(f"{key:44s} {_figure(value):>22s}  n={value['n']}")
    return 0


def check(words: Sequence[str]) -> int:
    from cotrain.tasks.lint import command

    return command(words)


def compare(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain compare", description="Run several recipes with several seeds and compare them.")
    parser.add_argument("arms", nargs="+", metavar="RECIPE", help="name, or name:parameter=value,… for a variant")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=60, help="updates of the first objective's policy in each run")
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
    _quiet()
    from cotrain import api

    result = api.compare(
        given.arms,
        seeds=given.seeds,
        out=given.out,
        updates=given.updates,
        equal_tokens=given.equal_tokens,
        evaluate_every=given.evaluate_every,
        settings=tuple(given.set),
        workers=given.workers,
    )
    for line in result["lines"]:
        print(line)
    print(f"report: {Path(given.out) / 'report.html'}")
    return 0


def report(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain report", description="Write a run's report.html anew.")
    parser.add_argument("directory", metavar="DIR")
    given = parser.strict(words)
    from cotrain import api

    print(api.report(given.directory))
    return 0


def chat(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain chat", description="Type a problem; see the steps and the verdict on each.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--once", metavar="PROBLEM", help="answer this one problem and leave")
    given = parser.strict(words)
    _quiet()
    from cotrain.chat import talk

    return talk(given.directory, temperature=given.temperature, once=given.once)


def export(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain export", description="Write a policy of a run as a plain model directory.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--role", required=True, help="a role of the recipe, or the name of a policy")
    parser.add_argument("--out", required=True, metavar="MODEL", help="a new directory")
    given = parser.strict(words)
    _quiet()
    from cotrain.export import export as write

    print(f"written to {write(given.directory, given.role, given.out)}")
    return 0


def doctor(words: Sequence[str]) -> int:
    Parser(prog="cotrain doctor", description="What is installed, what device there is, what will be used.").strict(
        words
    )
    _quiet()
    from cotrain.doctor import examine

    return examine()


def demo(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain demo", description="Co-train a generator and a verifier in five minutes.")
    parser.add_argument("--out", default="runs/demo", metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.strict(words)
    _threads(None)
    _quiet()
    from cotrain import api
    from cotrain.loop.directory import RunDirectory
    from cotrain.recipes.demo import demo as build

    if (Path(given.out) / "recipe.json").is_file():
        begun = RunDirectory.open(given.out)
        recipe = api.rebuild(begun.path)
        return _watched(recipe, lambda watch: api.resume(begun.path, recipe=recipe, observer=watch))
    recipe = build(seed=given.seed)
    return _watched(recipe, lambda watch: api.run(recipe, given.out, observer=watch))


def _threads(count: int | None) -> None:
    import torch

    torch.set_num_threads(count or len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    sys.exit(main())
