"""``cotrain run``: a recipe and its flags, and a run that is watched."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.cli.common import (
    add_answer_flags,
    add_async_steps_flag,
    add_backend_flags,
    add_column_flags,
    add_device_flag,
    add_threads_flag,
    add_view_flag,
    backend_of,
    device_of,
    load_libraries,
    set_threads,
    with_answer_formats,
)
from cotrain.cli.flags import (
    Parser,
    add_count,
    add_parameters,
    as_flag,
    check_set_paths,
    comments_of,
    named_arguments,
    parsed_values,
    typed_flags,
    whole_number,
    with_flag_names,
)
from cotrain.config.registry import failures_located, find_recipe, recipe_names
from cotrain.core.errors import ConfigError
from cotrain.core.registry import RECIPES, ZOO
from cotrain.core.verbosity import print_error, print_lines, tell_result
from cotrain.reports.summary import outcome_lines

if TYPE_CHECKING:
    from cotrain.cli.config_file import ConfigFile
    from cotrain.config.recipe import Recipe
    from cotrain.config.run_config import RecipeFunction
    from cotrain.core.types import TaskSource
    from cotrain.distributed.multi_process import MultiProcessBackend
    from cotrain.runs.log import Observer
    from cotrain.runs.run import RunResult
    from cotrain.trainer.failures import Diverged, StoppedBySignal

USAGE = """usage: cotrain run RECIPE --out DIR [flags]
       cotrain run --config FILE --out DIR [flags]

Run a recipe into a new directory. RECIPE is a name of `cotrain list` or
path/to/file.py:function. Every parameter of a recipe is a flag:
`cotrain run RECIPE --help` lists them."""


def run(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    command = _read_command(argv)
    parsed = command.parsed

    # The recipe, before anything that takes long is loaded.
    from cotrain.config.idle_arguments import idle_notes
    from cotrain.config.large_model_defaults import size_notes
    from cotrain.config.override import override
    from cotrain.config.recipe import check_due
    from cotrain.config.run_config import problems_read_once
    from cotrain.data.few_problems import few_test_problems_note
    from cotrain.runs.directory import RunDirectory

    values = parsed_values(parsed, command.argument_names)
    arguments = {name: value for name, value in values.items() if name in command.typed}
    arguments = _with_problems(command.build, command.target, parsed, arguments)
    with problems_read_once():
        with failures_located(command.target):
            base_recipe = command.build.make(arguments)
        notes_on_idle = idle_notes(command.build, arguments, as_flag, command.typed_by_user)
    check_set_paths(command.parser, parsed.set, [field.name for field in fields(base_recipe)])
    recipe = override(base_recipe, parsed.set)
    if not parsed.dry_run:
        RunDirectory(parsed.out).check_unused()  # here, since a look at the model's answers may take minutes
        check_due(recipe, warmup_flag=command.warmup_flag)

    # The devices, and what is said as the run begins.
    load_libraries()
    set_threads(parsed.threads)
    from cotrain.trainer.async_rollouts import check_async_steps

    check_async_steps(recipe, parsed.async_steps)
    from cotrain.runs.run import check_before_loading, check_models_if_needed

    plans_for_other_gpu = _planned_elsewhere(parsed)
    backend = backend_of(parsed)
    if not parsed.dry_run:
        check_before_loading(recipe)  # here, too, since a look at the model's answers loads it
    elif not plans_for_other_gpu:  # such a plan is made before a model is downloaded, from its configuration alone
        check_models_if_needed(recipe)
    device = "cuda" if plans_for_other_gpu else device_of(parsed.device, must_exist=parsed.backend == "local")
    notes: list[str] = []
    if parsed.smoke:
        from cotrain.cli.smoke import smoke_note

        notes.append(smoke_note(recipe))
    notes += getattr(recipe.tasks, "notes", [])
    notes += few_test_problems_note(recipe.tasks)
    notes += size_notes(recipe.origin, parsed.set, command.typed)
    notes += notes_on_idle
    if not plans_for_other_gpu and backend is None and not _has_small_models(recipe):
        from cotrain.runs.memory_plan import fit_to_memory

        recipe, memory_notes = fit_to_memory(recipe, device)
        notes += memory_notes

    if parsed.dry_run:
        from cotrain.runs.fitting import idle_setting_notes

        notes += idle_setting_notes(recipe, keep_every=parsed.keep_every)  # of a run, it says so itself
        return _print_plan(command, recipe, backend, device, notes)
    return _start_run(parsed, recipe, backend, device, notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """The command line of a run, as it was read."""

    target: str  # the recipe, as the user named it
    build: RecipeFunction
    parser: Parser
    argument_names: Sequence[str]  # flags that are arguments of the recipe
    parsed: argparse.Namespace
    typed: Collection[str]  # flags that were given, here or in a file, or by --smoke
    typed_by_user: Collection[str]  # those that --smoke did not give

    @property
    def warmup_flag(self) -> str:
        """The flag of the warm-up, where the recipe has it, as errors name it."""
        return "--warmup " if "warmup" in self.build.parameters else ""

    def show_values_of(self, recipe: Recipe) -> None:
        """Overwrite the parsed flags with the values that the recipe was really built with, for ``--dry-run``."""
        if recipe.origin is None:
            return
        for name in self.argument_names:
            value = recipe.origin.arguments.get(name, getattr(self.parsed, name))
            if isinstance(value, dict):
                value = value.get("function") or value.get("object")  # {"function": "my.py:reward"}
            setattr(self.parsed, name, value)
        self.parsed.set = list(recipe.origin.overrides)


def _read_command(argv: Sequence[str]) -> _Command:
    """The flags of ``--config``, then those of ``--smoke``, then those that were typed, which count most."""
    config: ConfigFile | None = None
    if any(word.partition("=")[0] == "--config" for word in argv):
        from cotrain.cli.config_file import config_of

        config = config_of(argv)
    target, argv = _split_target(argv, config)
    build = find_recipe(target)
    parser, argument_names = parser_of(target, build)
    words_of_file = config.words(parser) if config else []
    words = list(words_of_file)
    argv = parser.rename_foreign_flags(argv)

    def explain_unknown(flag: str, value: str) -> str:
        """``debate --game solve`` is the recipe `debate_solve`, and the error of the unknown flag says so."""
        return _variant_meant(target, value)

    if "--smoke" in argv:
        from cotrain.cli.smoke import smoke_words

        # How many steps a short run needs follows from its schedule, and some recipes have one only with their data.
        def make_with_data(parsed: argparse.Namespace, arguments: dict[str, Any]) -> Recipe:
            with failures_located(target):
                return build.make(_with_problems(build, target, parsed, arguments))

        words += smoke_words(
            build,
            parser,
            argument_names,
            argv,
            make_with_data,
            config_words=words_of_file,
            explain_unknown=explain_unknown,
        )
    words += argv

    parsed = parser.parse_strictly(words, explain_unknown)
    if parsed.out is None and not parsed.dry_run:
        parser.error("the following arguments are required: --out")
    return _Command(
        target=target,
        build=build,
        parser=parser,
        argument_names=argument_names,
        parsed=parsed,
        typed=typed_flags(words, parser),
        typed_by_user=typed_flags([*words_of_file, *argv], parser),
    )


def _has_small_models(recipe: Recipe) -> bool:
    from cotrain.config.large_model_defaults import are_small

    return are_small(policy.model for policy in recipe.policies.values() if policy.head)


def _print_plan(
    command: _Command, recipe: Recipe, backend: MultiProcessBackend | None, device: str, notes: list[str]
) -> int:
    """Print the plan of ``--dry-run``; returns the exit code."""
    from cotrain.cli.config_file import config_lines
    from cotrain.cli.dry_run import dry_run
    from cotrain.cli.plan_line import plan_lines
    from cotrain.runs.fitting import with_packing

    parsed = command.parsed
    devices = {"device": device} if backend is None else backend.describe()
    recipe, packing_notes = with_packing(recipe, devices)  # of weights (``packed_weights.py``)
    recipe = with_answer_formats(recipe, parsed, dry=True)
    command.show_values_of(recipe)
    lines = config_lines(command.target, command.parser, parsed)
    all_notes = [*plan_lines(recipe), *notes, *packing_notes]
    return dry_run(recipe, parsed, backend, lines, all_notes, command.warmup_flag)


def _start_run(
    parsed: argparse.Namespace, recipe: Recipe, backend: MultiProcessBackend | None, device: str, notes: list[str]
) -> int:
    """Run the recipe to its end; the exit code."""
    from cotrain import api
    from cotrain.trainer.async_rollouts import NOTE_ASYNC_SAVES_NO_TIME
    from cotrain.trainer.failures import Diverged, StoppedBySignal

    trackers = _checked_trackers(parsed.tracker)
    with cluster_notes_of(backend, recipe) as cluster_notes:
        recipe = with_answer_formats(recipe, parsed)
        notes += cluster_notes
        if parsed.async_steps and backend is None:
            notes.append(NOTE_ASYNC_SAVES_NO_TIME)
        try:
            with watched_run(
                recipe,
                out=parsed.out,
                trackers=trackers,
                tracker_rollouts=parsed.tracker_rollouts,
                notes=notes,
                view=parsed.view,
            ) as observer:
                outcome = api.run(
                    recipe,
                    parsed.out,
                    checkpoint_every=parsed.checkpoint_every,
                    keep_every=parsed.keep_every,
                    async_steps=parsed.async_steps,
                    device=device,
                    backend=backend,
                    observer=observer,
                )
        except (StoppedBySignal, Diverged) as stopped:
            return exit_code_of(stopped)
    return print_outcome(outcome)


def _planned_elsewhere(parsed: argparse.Namespace) -> bool:
    """Whether ``--memory`` asks for a plan for devices that need not be here. Raises ConfigError where it does not go
    with the other flags, or is no size."""
    if not parsed.memory:
        return False
    from cotrain.runs.device_plan import memory_size

    for text in parsed.memory:
        memory_size(text)
    if not parsed.dry_run or parsed.backend != "local" or parsed.device not in ("auto", "cuda"):
        raise ConfigError(
            "--memory is the memory of a GPU to plan for: it goes with --dry-run --device cuda, and not with --backend",
            code="E_MEMORY_WITHOUT_DRY_RUN",
        )
    return True


def _variant_meant(target: str, value: str) -> str:
    """Which recipe was meant by a flag that ``target`` does not have; "" for none."""
    variant = f"{target}_{value}"
    is_name = variant in recipe_names() or variant in ZOO[RECIPES]
    return f"that is the recipe `{variant}`: `cotrain run {variant}`" if is_name else ""


def cluster_notes_of(backend: MultiProcessBackend | None, recipe: Recipe) -> AbstractContextManager[list[str]]:
    """Check the cluster while the block runs; yields notes. A run of one process has no cluster, and no notes."""
    if backend is None:
        return nullcontext([])
    from cotrain.cli.cluster_checks import cluster_ready

    return cluster_ready(backend, recipe)


def _checked_trackers(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        return ()
    from cotrain.trackers.observer import check_trackers

    return check_trackers(names)


def _split_target(argv: Sequence[str], config: ConfigFile | None) -> tuple[str, Sequence[str]]:
    """The recipe's name, by the first word or the file of flags, and the words behind it."""
    if argv and not argv[0].startswith("-"):
        return argv[0], argv[1:]
    if config is None or "recipe" not in config.keys:
        raise ConfigError(
            "cotrain run: name a recipe first, as in `cotrain run tango --out runs/mine`; see `cotrain list`",
            code="E_RECIPE_NOT_NAMED",
        )
    return str(config.keys["recipe"]), argv


def _with_problems(
    build: RecipeFunction, target: str, parsed: argparse.Namespace, arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments, and the problems that the flags name."""
    data_flags = ("tasks", "data", "operations", "question_column", "answer_column")
    names_problems = parsed.lenient or any(getattr(parsed, name) is not None for name in data_flags)
    if not names_problems:
        return arguments
    labelled = arguments.get("labelled")  # which problems have labels: a file may say that of its rows
    return {**arguments, "tasks": _problems_of(build, target, parsed, labelled)}


def _problems_of(build: RecipeFunction, target: str, parsed: argparse.Namespace, labelled: Any) -> TaskSource:
    """The problems that the flags name. Raises ConfigError for a recipe that has its own."""
    if "tasks" not in build.parameters:
        raise ConfigError(
            f"recipe {target!r} has no parameter 'tasks': leave out --tasks, --data, --lenient and --operations",
            code="E_RECIPE_WITHOUT_TASKS",
        )
    from cotrain.data.sources import problem_source, with_columns

    kind = parsed.tasks or (build.reads if parsed.data else None)
    parsed.tasks = with_columns(kind, parsed.question_column, parsed.answer_column)  # as ``--dry-run`` prints it
    return problem_source(parsed.tasks, parsed.data, parsed.operations, parsed.lenient, labelled)


def parser_of(target: str, build: RecipeFunction) -> tuple[Parser, list[str]]:
    """The parser of a recipe's command, and which of its flags are arguments of the recipe."""
    from cotrain.config.run_config import RunConfig

    description = with_flag_names(build.description, build.parameters)
    parser = Parser(prog=f"cotrain run {target}", usage="%(prog)s --out DIR [flags]", description=description)
    its_own = parser.add_argument_group(f"parameters of {build.name}")
    common = parser.add_argument_group("settings of every recipe")
    data = parser.add_argument_group("problems")
    run_group = parser.add_argument_group("the run")
    run_group.add_argument("--out", metavar="DIR", help="a new directory for the run")
    run_group.add_argument("--set", action="append", default=[], metavar="a.b=value", help="any setting; see --dry-run")
    run_group.add_argument(
        "--config", metavar="FILE", help="flags in a TOML file, one key a flag; those given here count more"
    )
    run_group.add_argument(
        "--dry-run",
        action="store_true",
        help="open model and data, print the flags as a file for --config, memory and disk, and all settings",
    )
    run_group.add_argument(
        "--memory",
        action="append",
        default=[],
        metavar="SIZE",
        help="with --dry-run --device cuda: a plan for a GPU of this memory that is not here, such as 24GiB; once for "
        "each of several",
    )
    run_group.add_argument("--smoke", action="store_true", help="a trial: few steps, little is measured")
    run_group.add_argument(
        "--json",
        action="store_true",
        help="print the summary as JSON; with --dry-run the settings as recipe.json will have them",
    )
    add_count(run_group, "--checkpoint-every", "steps between checkpoints", default=25)
    add_count(run_group, "--keep-every", "keep those of every N steps (default: 0, the last two)", least=0, default=0)
    add_view_flag(run_group)
    add_device_flag(run_group)
    add_backend_flags(run_group)
    add_async_steps_flag(run_group)
    add_threads_flag(run_group)
    run_group.add_argument("--tracker", action="append", default=[], metavar="NAME", help="tensorboard, wandb, trackio")
    add_count(
        run_group,
        "--tracker-rollouts",
        "rollouts of every tenth step that a tracker is sent, with texts and verdicts; 0: figures alone (default: 2)",
        least=0,
        default=2,
    )
    data.add_argument("--tasks", metavar="SOURCE", help="words (the default), gym:NAME, jsonl, or a benchmark: gsm8k …")
    data.add_argument(
        "--data",
        metavar="FILE",
        help="JSON lines, a JSON array, CSV or parquet, a directory of them, or owner/name of the Hub",
    )
    add_column_flags(data)
    data.add_argument(
        "--lenient", action="store_true", help="set malformed rows of --data aside, in OUT/quarantine.jsonl"
    )
    data.add_argument(
        "--operations", type=whole_number(1), nargs=2, metavar="N", help="fewest and most steps of --tasks words"
    )
    add_answer_flags(data, verdict="auto, which looks at reviews of the model (the default), ")
    # The help of a flag is the comment behind its parameter in the source.
    names = add_parameters(its_own, build.name, build.own_parameters(), about=comments_of(build.build))
    settings = {name: argument for name, argument in build.settings().items() if name != "tasks"}
    names += add_parameters(common, build.name, settings, about=comments_of(RunConfig))
    parser.show_first([*FIRST, *_first_parameters(build)])
    return parser, names


FIRST = (  # flags that `--help` shows of every recipe
    *("model", "steps", "seed", "tasks_per_step", "group_size", "lr", "lora", "kl"),
    *("tasks", "data", "out", "smoke", "dry_run", "view", "device", "set"),
)
SHOWN = 30  # flags that `--help` shows, the recipe's own among them


def _first_parameters(build: RecipeFunction) -> list[str]:
    """The recipe's own parameters that `--help` shows, as many as there is room for, in this order of precedence:

    1. those that its description gives a value;
    2. those that are not floats, and learning rates: what is done, by whom and how often;
    3. other floats, which are weights.
    """
    own = build.own_parameters()
    listed = list(own)
    described = named_arguments(build.description, own)
    weights = [name for name in listed if isinstance(own[name].default, float) and not name.endswith("lr")]
    others = [name for name in listed if name not in weights]
    by_rank = list(dict.fromkeys([*described, *others, *weights]))  # each once
    chosen = by_rank[: SHOWN - len(FIRST)]
    return [name for name in listed if name in chosen]


class SaysFirst:
    """An observer that gets a line before the run's first message, and none from a run that raises before that."""

    def __init__(self, line: str, observer: Observer) -> None:
        self._lines = [line]
        self._observer = observer

    def message(self, text: str) -> None:
        self._say_first()
        self._observer.message(text)

    def update(self, row: Mapping[str, Any]) -> None:
        self._say_first()
        self._observer.update(row)

    def _say_first(self) -> None:
        while self._lines:
            self._observer.message(self._lines.pop())


@contextmanager
def watched_run(
    recipe: Recipe,
    *,
    out: str,
    trackers: Sequence[str] = (),
    tracker_rollouts: int = 0,
    notes: Sequence[str] = (),
    view: bool = False,
) -> Iterator[Observer]:
    """Yield the observer of a run: a live table, and trackers if there are any. It says how to watch the run.

    Args:
        notes: lines that are said first.
        view: serve the run's page while the block runs.
    """
    from cotrain.cli.plan_line import plan_lines
    from cotrain.reports.live import LiveTable, budgets_of
    from cotrain.runs.figures import latest_costs

    about: dict[str, str | int] = {"recipe": recipe.name, "seed": recipe.seed, "steps": recipe.max_steps}
    with ExitStack() as stack:
        live = stack.enter_context(LiveTable(budgets_of(recipe), spent=latest_costs(Path(out)), directory=Path(out)))
        observer: Observer = live
        if trackers:
            from cotrain.trackers.observer import TrackingObserver, rollouts_note

            observer = stack.enter_context(
                TrackingObserver(live, out, trackers, about=about, rollouts=tracker_rollouts)
            )
            notes = [*notes, *rollouts_note(trackers, tracker_rollouts)]
        address = f"watch it in a browser: cotrain view {shlex.quote(out)}"
        if view:
            from cotrain.cli.view import serve_beside

            address = stack.enter_context(serve_beside(Path(out)))
        for line in [*plan_lines(recipe), *notes]:
            live.message(line)  # on the screen alone: trackers get no notes
        yield SaysFirst(address, observer)


def exit_code_of(stopped: StoppedBySignal | Diverged) -> int:
    """The exit code of a run that was stopped, or that stopped as it could not go on, which is said."""
    from cotrain.trainer.failures import StoppedBySignal

    if isinstance(stopped, StoppedBySignal):
        return stopped.exit_code
    print_error(stopped)
    return 1


def print_outcome(outcome: RunResult) -> int:
    """Print what a finished run has come to, and where its report is; the exit code."""
    tell_result(outcome.summary)
    print_lines(outcome_lines(outcome))
    return 0
