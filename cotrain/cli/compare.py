"""``cotrain compare`` and ``cotrain study``: the commands that make many runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from cotrain.cli.common import (
    add_answer_flags,
    add_column_flags,
    add_device_flag,
    add_json_flag,
    answer_format_of,
    device_of,
    load_libraries,
)
from cotrain.cli.flags import (
    Parser,
    add_changed_code_flag,
    add_count,
    check_set_paths,
    real_number,
    typed_flags,
    whole_number,
)
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import print_lines, print_notice, print_progress, tell_result
from cotrain.reports.compare_words import EQUAL

SMOKE = {"seeds": 1, "equal": "batches", "evaluate_every": 0}  # settings of a trial, where the user says nothing else


def compare(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain compare", description="Run several recipes with several seeds and compare them.")
    parser.add_argument("arms", nargs="+", metavar="RECIPE", help="name, or name:parameter=value,… for a variant")
    parser.add_argument("--out", required=True, metavar="DIR", help="a new directory, or a comparison to go on with")
    add_count(parser, "--seeds", "runs of each arm", default=5)
    add_count(parser, "--first-seed", "seeds are N, N + 1, …; each has test problems of its own", least=0, default=0)
    size = parser.add_argument_group("length")
    add_count(size, "--batches", "steps over which decays run (default: 60)")
    size.add_argument("--equal", default="flops", metavar="COST", help=f"the cost that is equal: {', '.join(EQUAL)}")
    size.add_argument(
        "--budget",
        type=real_number(above=0),
        metavar="X",
        help="amount of that cost (default: what the dearest arm spends)",
    )
    rates = parser.add_argument_group("learning rates")
    rates.add_argument("--rates", metavar="R,R,R", help="learning rates to try, of which each arm takes its best")
    add_count(rates, "--rate-seeds", "runs of each arm at each rate", default=1)
    rates.add_argument(
        "--measure", default="", metavar="FIGURE", help="figure by which the learning rate is chosen (default: pass@1)"
    )
    add_count(parser, "--evaluate-every", "steps between points of the curves; 0: no curves", least=0, default=10)
    parser.add_argument("--tasks", metavar="SOURCE", help="problems of every arm, as `cotrain run` takes them")
    parser.add_argument(
        "--data", metavar="FILE", help="problems: JSON lines, a JSON array, CSV or parquet, or owner/name of the Hub"
    )
    add_column_flags(parser)
    parser.add_argument(
        "--operations", type=whole_number(1), nargs=2, metavar="N", help="fewest and most steps of word problems"
    )
    parser.add_argument(
        "--lenient", action="store_true", help="set malformed rows of --data aside, in quarantine.jsonl of each run"
    )
    add_answer_flags(parser, "auto, once for each model; of the package's own models tags")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="a setting of every arm")
    add_device_flag(parser)
    add_count(parser, "--threads", "CPU threads of a run", default=1)
    add_count(parser, "--checkpoint-every", "steps of a run between its checkpoints", default=25)
    add_count(parser, "--workers", "runs at a time (default: one a core)")
    add_changed_code_flag(parser)
    parser.add_argument("--smoke", action="store_true", help="a trial: one seed, few steps, little is measured")
    add_json_flag(parser)
    arguments = parser.parse_strictly(argv, _setting_meant)
    typed = set(typed_flags(argv, parser))
    if arguments.smoke:
        for name, short in SMOKE.items():
            if name not in typed:
                setattr(arguments, name, short)
    _check_set(parser, arguments.set)
    if arguments.rates is None:
        for name in sorted({"rate_seeds", "measure"} & typed):  # no error, since comparisons were begun so
            print_notice(
                f"note: --{name.replace('_', '-')} is about the choice of a learning rate; without --rates unused"
            )
    from cotrain.analysis.comparison.arms import parse_arm
    from cotrain.config.registry import find_recipe

    for arm in arguments.arms:
        find_recipe(parse_arm(arm).target)  # raises here, before seconds of loading
    load_libraries()
    from cotrain import analysis
    from cotrain.data.sources import with_columns

    batches = arguments.batches
    budget = arguments.budget
    if arguments.equal in ("batches", "updates") and budget is not None:
        if batches is not None or budget != int(budget):
            raise ConfigError(
                f"cotrain compare: with --equal {arguments.equal} give one whole number, --batches or --budget",
                code="E_ONE_LENGTH",
            )
        batches = int(budget)
        budget = None

    formats = answer_format_of(arguments)

    def run_comparison() -> dict[str, Any]:
        return analysis.compare(
            arguments.arms,
            seeds=arguments.seeds,
            first_seed=arguments.first_seed,
            out=arguments.out,
            batches=batches,
            smoke=arguments.smoke,
            equal=arguments.equal,
            budget=budget,
            rates=_parse_numbers("--rates", arguments.rates),
            rate_seeds=arguments.rate_seeds,
            measure=arguments.measure,
            evaluate_every=arguments.evaluate_every,
            overrides=tuple(arguments.set),
            tasks=with_columns(arguments.tasks, arguments.question_column, arguments.answer_column),
            data=arguments.data,
            operations=tuple(arguments.operations) if arguments.operations else None,
            lenient=arguments.lenient,
            answer_format=formats.answer,
            prompt=formats.prompt,
            steps_as=formats.steps_as,
            verdict=formats.verdict,
            verifier_prompt=formats.verifier_prompt,
            device=device_of(arguments.device),
            threads=arguments.threads,
            checkpoint_every=arguments.checkpoint_every,
            workers=arguments.workers,
            changed_code=arguments.changed_code,
            say=print_progress,
        )

    return _run_and_print(run_comparison, Path(arguments.out))


def _check_set(parser: Parser, overrides: Sequence[str]) -> None:
    """Raise ConfigError for a ``--set`` that means a flag of the command, or a setting that arms are given."""
    from cotrain.config.recipe import Recipe
    from cotrain.config.run_config import RUN_CONFIG_NAMES

    settings = [field.name for field in fields(Recipe)]
    for one in overrides:
        path, _, value = one.partition("=")
        if path in RUN_CONFIG_NAMES and path not in settings:
            raise ConfigError(f"--set {one!r}: {_setting_meant(path, value)}", code="E_NO_SUCH_SETTING")
    check_set_paths(parser, overrides, settings)


def _setting_meant(flag: str, value: str) -> str:
    """How a comparison is given a setting that is a flag of `cotrain run`."""
    from cotrain.analysis.comparison.arms import SET_BY_COMPARISON
    from cotrain.config.run_config import RUN_CONFIG_NAMES

    name = flag.removeprefix("--").replace("-", "_")
    if name in SET_BY_COMPARISON:
        return f"give {SET_BY_COMPARISON[name]}"
    return f"give it to an arm, as in RECIPE:{name}={value or '…'}" if name in RUN_CONFIG_NAMES else ""


def study(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain study", description="Run a study that was written down before, or go on with it.")
    parser.add_argument(
        "study",
        metavar="STUDY",
        help="name of a study that comes with cotrain, or FILE.toml: hypothesis, arms, measure, gate",
    )
    add_device_flag(parser)
    add_count(parser, "--workers", "runs at a time (default: one a core)")
    add_changed_code_flag(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="check file and arms, print what they run, and stop")
    instead.add_argument(
        "--finished",
        action="store_true",
        help="end it at the first seeds that are finished in every arm; the tables say how many of how many",
    )
    add_json_flag(parser)
    arguments = parser.parse_strictly(argv)
    from cotrain.analysis.comparison.study_path import study_path

    file = study_path(arguments.study)
    load_libraries()
    from cotrain.analysis.comparison.forecast import forecast
    from cotrain.analysis.comparison.study import run_study
    from cotrain.analysis.comparison.study_file import git_status, read_study

    plan = read_study(
        file,
        workers=arguments.workers,
        device=device_of(arguments.device),
        changed_code=arguments.changed_code,
    )
    if arguments.dry_run:
        lines = [*forecast(plan), git_status(plan.path)["words"]]
        tell_result({"study": str(plan.path), "lines": lines})
        print_lines(lines)
        return 0
    return _run_and_print(lambda: run_study(plan, say=print_progress, finished_only=arguments.finished), plan.out)


def _run_and_print(work: Callable[[], dict[str, Any]], out: Path) -> int:
    """Do the work, print its lines and where the page is; the code of an interruption where it was interrupted."""
    from cotrain.trainer.failures import StoppedBySignal

    try:
        with _one_at_a_time(out):
            result = work()
    except StoppedBySignal as stopped:
        return stopped.exit_code
    tell_result(result)
    print_lines(result["lines"])
    print(f"report: {out / 'report.html'}")
    return 0


@contextmanager
def _one_at_a_time(out: Path) -> Iterator[None]:
    """Hold the directory of a comparison while the block runs: two commands in it would stop each other's runs. Raises
    RunDirectoryError. A directory that was made for this alone is removed again."""
    from cotrain.storage.lock import RunLock

    if out.exists() and not out.is_dir():
        yield  # the comparison refuses it
        return
    was_there = out.is_dir()
    lock = RunLock(out)
    try:
        yield
    finally:
        lock.remove()
        if not was_there:
            with suppress(OSError):  # it holds a comparison
                out.rmdir()


def _parse_numbers(flag: str, text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(
            f"cotrain compare: {flag} {text}: expected numbers with commas, as in 1e-4,2e-4,4e-4", code="E_FLAG_NUMBERS"
        ) from None
