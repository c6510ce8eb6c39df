"""Commands that train nothing: ``list``, ``eval``, ``report``, ``chat``, ``export`` and ``doctor``."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotrain.cli.common import (
    add_answer_flags,
    add_device_flag,
    add_json_flag,
    add_threads_flag,
    add_tool_flag,
    answer_format_of,
    device_of,
    load_libraries,
    say,
    set_threads,
)
from cotrain.cli.flags import Parser, add_count, add_trust_flag, one_of, real_number
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import first_sentence, print_aside, print_lines, tell_result
from cotrain.reports.summary import figure_text
from cotrain.storage.schemas import refuse_missing

IN_ZOO = "in the zoo, a package of its own"


def _hint_to_recipe(word: str, _: str) -> str:
    """The hint for an argument that ``list`` does not take and that may be a recipe's name; "" for a flag."""
    if word.startswith("-"):
        return ""
    return f"`cotrain run {word} --help` lists what a recipe takes"


def list_recipes(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain list", description="The recipes of cotrain, by what they are for, and of its zoo.")
    add_json_flag(parser)
    parser.parse_strictly(argv, _hint_to_recipe)
    from cotrain.config.registry import recipe_names
    from cotrain.config.run_config import RunConfig
    from cotrain.core.registry import RECIPES, ZOO
    from cotrain.recipes import QUESTIONS

    width = max(60, min(100, shutil.get_terminal_size().columns)) - 2
    installed = recipe_names()
    grouped = {name for names in QUESTIONS.values() for name in names}.union(ZOO[RECIPES])
    groups: dict[str, Sequence[str]] = {**QUESTIONS, IN_ZOO: ZOO[RECIPES]}
    from_other_packages = [name for name in installed if name not in grouped]
    if from_other_packages:
        groups["of other packages"] = from_other_packages

    listed = []
    for title, names in groups.items():
        print(title)
        for name in names:
            try:
                row = _recipe_row(name) if name in installed else _zoo_row(name)
            except ConfigError as error:  # a recipe of an installed package does not load
                print_lines([_wrap_entry(str(error), width)])
                continue
            print(_wrap_entry(f"{name}  {row['about']}", width))
            listed.append({"name": name, "question": title, **row})
        if title == IN_ZOO and not set(names) <= set(installed):
            print(_wrap_entry(_how_to_install_zoo(), width))
        print()

    settings = {name: value for name, value in RunConfig().values().items() if value is not None}
    tell_result({"recipes": listed, "settings": settings})
    print("`cotrain run RECIPE --help` says more of one, with its flags; `cotrain run RECIPE --out DIR` runs it")
    return 0


def _recipe_row(name: str) -> dict[str, Any]:
    """What a recipe is about, and its parameters with a default that ``RunConfig`` does not have, or has otherwise.
    Raises ConfigError where it does not load."""
    from cotrain.config.registry import find_recipe
    from cotrain.config.run_config import RunConfig

    build = find_recipe(name)
    shared_defaults = RunConfig().values()
    own_defaults = {}
    for parameter, argument in build.parameters.items():
        if parameter == "tasks" or argument.is_required:  # a task source is no JSON
            continue
        if argument.default is not None and argument.default != shared_defaults.get(parameter):
            own_defaults[parameter] = argument.default
    return {"about": first_sentence(build.description), "installed": True, "parameters": own_defaults}


def _zoo_row(name: str) -> dict[str, Any]:
    """The same of a recipe of the zoo where that is not installed."""
    from cotrain.core.registry import ZOO_RECIPES

    return {"about": ZOO_RECIPES[name], "installed": False, "parameters": {}}


def _how_to_install_zoo() -> str:
    from cotrain.core.registry import zoo_folder

    folder = zoo_folder()
    if folder is None:
        return "not installed: they are in zoo/ of cotrain's repository; `pip install -e zoo` in a clone brings them"
    return f"not installed: they are in {folder}; `pip install -e {shlex.quote(str(folder))}` brings them"


def _wrap_entry(text: str, width: int) -> str:
    """``text`` in lines of this width. A path that is longer stays whole, to be copied."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent="  ",
        subsequent_indent="      ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join(lines)


NEED_SUITE = (  # arguments of ``cotrain eval`` that are for ``--suite`` alone
    *("data", "reviews", "verifier", "comparer", "out", "lenient", "max_tokens", "temperature", "tool"),
    *("answer_format", "prompt", "steps_as", "verdict", "verifier_prompt", "shots"),
)
TAKEN_BY_CORE = (  # arguments of ``cotrain eval`` that ``--suite core`` uses
    *("directory", "suite", "data", "problems", "shots", "device", "threads", "lenient", "out", "json", "log_level"),
)
OF_SOLVERS = (  # arguments of ``cotrain eval --suite`` that are about answers, of which ``JUDGED`` suites have none
    *("samples", "solver", "comparer", "max_tokens", "tool", "answer_format", "prompt", "steps_as"),
)


def _is_given(value: object) -> bool:
    """Whether somebody typed this value of an argument. 0 is one, though it equals False: ``--temperature 0``."""
    return value is not None and value is not False and value != []


def evaluate(argv: Sequence[str]) -> int:
    parser = _eval_parser()
    arguments = parser.parse_strictly(argv)
    _check_eval_flags(parser, arguments)
    refuse_missing(arguments.directory)
    load_libraries()
    set_threads(arguments.threads)
    arguments.device = device_of(arguments.device)
    if arguments.suite is not None:
        return _on_suites(parser, arguments)
    from cotrain.runs import opening

    if opening.is_model(arguments.directory):
        parser.error("a model has no problems of its own; name some, as in --suite gsm8k or --suite jsonl --data FILE")
    result = opening.evaluate(
        arguments.directory,
        split="test" if arguments.split is None else arguments.split,
        samples=arguments.samples,
        solver=arguments.solver or "solver",
        step=arguments.step,
        tasks=arguments.problems,
        device=arguments.device,
        say=print_aside if arguments.json else say,
    )
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"split {result['split']}, after step {result['step']}")
    longest = max(map(len, result["figures"]), default=0)
    for key, value in result["figures"].items():
        print(f"{key:{longest}s} {figure_text(value):>22s}  n={value['n']}")
    return 0


def _check_eval_flags(parser: Parser, arguments: argparse.Namespace) -> None:
    """Refuse flags that do not go together, before anything is loaded."""
    if arguments.suite is not None:
        if arguments.split is not None:
            parser.error("--split does not go with --suite; leave out one of the two")
        names = _suite_names(arguments)
        if "core" in names and len(names) > 1:
            parser.error("--suite core is measured by itself; run the other suites with a command of their own")
        if "core" not in names and arguments.shots is not None:
            parser.error("--shots goes with --suite core; leave it out")
        _check_used_by_suites(parser, arguments, names)
        return

    misplaced = [name for name in NEED_SUITE if _is_given(getattr(arguments, name))]
    if misplaced:
        parser.error(f"--{misplaced[0].replace('_', '-')} goes with --suite; name the suites")
    # 0 is for suites, which are answered greedily as well. Of a run, --samples is another measurement than its usual
    # one, and --solver says whose.
    if arguments.samples == 0 or (arguments.solver is not None and arguments.samples is None):
        parser.error("--samples K of a run is at least 1, and --solver goes with it; as in --samples 256")


def _check_used_by_suites(parser: Parser, arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuse flags about answers where each suite gives the solutions that are judged."""
    from cotrain.data.suite_files import JUDGED

    if not all(name in JUDGED for name in names):
        return
    unused = [name for name in OF_SOLVERS if _is_given(getattr(arguments, name))]
    if unused:
        parser.error(
            f"--{unused[0].replace('_', '-')} is about answers, and {', '.join(names)} has none: its solutions are "
            "given; leave it out"
        )


def _suite_names(arguments: argparse.Namespace) -> list[str]:
    return [name.strip() for name in arguments.suite.split(",")]


def _on_suites(parser: Parser, arguments: argparse.Namespace) -> int:
    from cotrain.analysis.benchmarks import run_suites

    if "core" in _suite_names(arguments):
        return _on_core(parser, arguments)
    # Not argparse's defaults: without a suite, a given --samples or --solver has another meaning than none.
    defaults = {"samples": 8, "reviews": 1, "solver": "solver", "verifier": "verifier", "comparer": "comparer"}
    for name, default in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    return run_suites(arguments, answer_format_of(arguments))


def _on_core(parser: Parser, arguments: argparse.Namespace) -> int:
    """``--suite core``: a base model on its own log-probabilities, without a role or an answer."""
    from cotrain.data.malformed_rows import Quarantine
    from cotrain.pretraining.core_tasks import measure_core, what_scores_depend_on
    from cotrain.runs import opening
    from cotrain.runs.directory import RunDirectory
    from cotrain.storage.kept_work import claim_place, kept_work
    from cotrain.storage.schemas import QUARANTINE

    misplaced = [name for name, value in vars(arguments).items() if name not in TAKEN_BY_CORE and _is_given(value)]
    if misplaced:
        parser.error(f"--{misplaced[0].replace('_', '-')} does not go with --suite core; leave it out")
    if not arguments.data:
        parser.error("--suite core needs its tasks, a file each; add --data FILE …")
    if not opening.is_model(arguments.directory):
        parser.error(
            f"--suite core measures a model; first `cotrain export {arguments.directory} --role ROLE --out MODEL`"
        )
    folder = RunDirectory(arguments.out or Path("evals") / Path(arguments.directory).name)
    claim_place(folder.path)
    aside = Quarantine() if arguments.lenient else None
    shots = arguments.shots or 0
    tell = print_aside if arguments.json else say
    depends_on = what_scores_depend_on(arguments.directory, arguments.data, arguments.problems, shots)
    with kept_work(folder.path / "suite-core.json", depends_on, tell) as work:
        result = measure_core(
            arguments.directory,
            arguments.data,
            problems=arguments.problems,
            shots=shots,
            device=arguments.device,
            aside=aside,
            say=tell,
            work=work,
        )
        folder.write_measurement("suite-core.json", result)
    if aside is not None and aside.refused:
        aside.write(folder.path / QUARANTINE)
        print(f"note: {aside.summary_line()}; all in {folder.path / QUARANTINE}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    for key, value in result["figures"].items():
        print(f"{key:30s} {figure_text(value):>22s}  n={value['n']}")
    print(f"core: {result['core']:.3f}, the mean of the centred accuracies")
    return 0


def _eval_parser() -> Parser:
    parser = Parser(prog="cotrain eval", description="Measure a checkpoint of a run, or a model, on held-out problems.")
    parser.add_argument("directory", metavar="DIR", help="a run, or with --suite a model: a directory or a Hub name")
    parser.add_argument(
        "--split", help="split of the problems: test, validation, ood_length, ood_template … (default: test)"
    )
    add_count(parser, "--problems", "number of held-out problems (default: as the recipe says, or all)")
    add_device_flag(parser)
    add_threads_flag(parser)
    add_answer_flags(parser)
    add_tool_flag(parser)
    add_trust_flag(parser)
    parser.add_argument(
        "--suite", metavar="A,B", help="benchmarks instead of a split: gsm8k,math500,processbench … or core"
    )
    parser.add_argument("--data", nargs="+", default=[], metavar="PATH", help="files of suites: PATH or NAME=PATH each")
    add_count(
        parser,
        "--samples",
        "samples of each problem, for avg@K, pass@K, maj@K, best@K … (default: 8); without --suite for pass@1, 2, "
        "4, … K",
        least=0,
        metavar="K",
    )
    add_count(parser, "--step", "measure the checkpoint after N steps; 0: the start (default: the end)", least=0)
    add_count(parser, "--reviews", "reviews of each solution by the verifier (default: 1)")
    add_count(parser, "--max-tokens", "tokens of an answer, at most (default: as the role has it)")
    parser.add_argument(
        "--temperature",
        type=real_number(0.0),
        metavar="X",
        help="temperature of samples and of reviews (default: as roles have it)",
    )
    add_count(parser, "--shots", "with --suite core: solved rows before each row (default: 0)", least=0)
    parser.add_argument("--solver", metavar="ROLE", help="role that answers (default: solver)")
    parser.add_argument("--verifier", metavar="ROLE", help="role that judges (default: verifier)")
    parser.add_argument(
        "--comparer", metavar="ROLE", help="role that judges pairs, in a tournament (default: comparer)"
    )
    parser.add_argument("--out", metavar="DIR", help="where scores go (default: the run; of a model evals/NAME)")
    parser.add_argument("--lenient", action="store_true", help="leave out malformed rows of --data")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def report(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="cotrain report",
        description="Write report.html of a run, comparison or study anew, or report.md of a folder of stages.",
    )
    parser.add_argument("directory", metavar="DIR", help="a run, comparison or study, or a folder of stages")
    arguments = parser.parse_strictly(argv)
    from cotrain.reports import any_report

    print(f"report: {any_report.write_any_page(arguments.directory)}")
    return 0


def chat(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain chat", description="Type a problem; see the steps and the verdict on each.")
    parser.add_argument("directory", metavar="DIR", help="a run, or a model: a directory or a Hub name")
    add_answer_flags(parser, "as the run has it, of a model phrase")
    add_tool_flag(parser)
    parser.add_argument(
        "--temperature", type=real_number(0.0), default=0.0, metavar="X", help="temperature; 0: the likeliest words"
    )
    parser.add_argument("--once", metavar="PROBLEM", help="answer this one problem and leave")
    add_device_flag(parser)
    add_threads_flag(parser)
    add_trust_flag(parser)
    arguments = parser.parse_strictly(argv)
    refuse_missing(arguments.directory)
    answer_format = answer_format_of(arguments)
    load_libraries()
    set_threads(arguments.threads)
    from cotrain.serving.chat import run_chat

    device = device_of(arguments.device)
    return run_chat(
        arguments.directory,
        temperature=arguments.temperature,
        once=arguments.once,
        answer_format=answer_format,
        device=device,
        tool=arguments.tool,
    )


def export(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain export", description="Write a policy of a run as a plain model directory.")
    parser.add_argument("directory", metavar="DIR", help="a run, or a model: a directory or a Hub name")
    parser.add_argument("--role", required=True, help="a role or a policy: solver, generator, policy/start …")
    parser.add_argument("--out", required=True, metavar="MODEL", help="a new directory for the model")
    parser.add_argument("--merged", action="store_true", help="write an adapter within its base, as one plain model")
    parser.add_argument(
        "--to",
        **one_of("format", "transformers", "nanochat"),
        default="transformers",
        help="format; nanochat: a nanochat model as its own code reads it, with NANOCHAT_BASE_DIR=MODEL",
    )
    parser.add_argument(
        "--model", metavar="NEW", help="where a model of the run was moved to; OLD=NEW if it has several"
    )
    add_json_flag(parser)
    add_trust_flag(parser)
    arguments = parser.parse_strictly(argv)
    refuse_missing(arguments.directory)
    from cotrain.storage.kept_work import check_can_be_filled

    check_can_be_filled(Path(arguments.out))
    load_libraries()
    from cotrain.serving.export import export_policy

    directory = export_policy(
        arguments.directory,
        arguments.role,
        arguments.out,
        merged=arguments.merged,
        to=arguments.to,
        model=arguments.model,
        say=say,
    )
    files = [file for file in sorted(directory.rglob("*")) if file.is_file()]
    sizes = {str(file.relative_to(directory)): file.stat().st_size for file in files}
    tell_result({"directory": str(directory), "bytes": sizes})
    print(f"written to {directory}")
    if arguments.to == "nanochat":
        (weights,) = directory.glob("*_checkpoints")  # such as chatrl_checkpoints, which is "-i rl"
        source = weights.name.removeprefix("chat").removesuffix("_checkpoints")
        print(f"in nanochat: NANOCHAT_BASE_DIR={directory} python -m scripts.chat_cli -i {source}")
    return 0


def doctor(argv: Sequence[str]) -> int:
    parser = Parser(prog="cotrain doctor", description="What is installed, what device there is, what will be used.")
    parser.add_argument(
        "--cluster",
        nargs="?",
        const="local",
        metavar="FILE",
        help="also what each machine of a cluster has, and whether new weights arrive in the engine: local, or a file "
        "as of `cotrain run --backend ray`",
    )
    parser.add_argument("--model", metavar="MODEL", help="also look at this model: a directory or a name of the Hub")
    add_device_flag(parser)
    add_json_flag(parser)
    arguments = parser.parse_strictly(argv)
    load_libraries()
    from cotrain.cli.doctor import examine_installation

    device = device_of(arguments.device, must_exist=arguments.cluster is None)
    code = examine_installation(() if arguments.model is None else (arguments.model,))
    if arguments.cluster is None:
        return code
    from cotrain.cli.cluster_doctor import examine_cluster

    return max(code, examine_cluster(arguments.cluster, arguments.model or "shipped", device))
