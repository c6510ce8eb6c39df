"""The commands ``cotrain attack`` and ``cotrain xplay``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cotrain.cli.common import add_device_flag, add_threads_flag, device_of, load_libraries, set_threads
from cotrain.cli.flags import Parser, add_count, add_trust_flag, typed_flags
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import json_text, print_aside, print_lines, print_progress
from cotrain.storage.schemas import check_path, refuse_missing

# ``cotrain xplay`` prints one of three matrices. Two of them have a flag; without either, generators meet verifiers.
SEATS = "--seats"
ROLLOUTS = "--on-rollouts"
GENERATORS = ""
MATRIX_OF_FLAG = {"--signal": SEATS, "--rollouts": ROLLOUTS, "--reference": ROLLOUTS}  # no other matrix uses the flag
UNUSED_FLAGS = {SEATS: ("--role",), ROLLOUTS: ("--problems", "--samples", "--split"), GENERATORS: ()}


def attack(argv: Sequence[str]) -> int:
    """Measure how often a verifier believes wrong solutions that try to fool it."""
    parser = Parser(prog="cotrain attack", description=attack.__doc__)
    parser.add_argument("directory", metavar="DIR", help="a run, or a model: a directory or a Hub name")
    add_count(parser, "--problems", "number of problems that are solved (default: 128)", default=128)
    add_count(parser, "--each", "solutions for each string (default: 1)", default=1)
    add_count(parser, "--seed", "random seed of the strings (default: 0)", least=0, default=0)
    parser.add_argument("--fixed", action="store_true", help="take wrong solutions of the generator as it began")
    parser.add_argument(
        "--start", action="store_true", help="attack the models as the run began; writes attack-start.json"
    )
    parser.add_argument("--out", metavar="DIR", help="where attack.json goes (default: the run; of a model evals/NAME)")
    arguments = _parse_arguments(parser, argv)
    refuse_missing(arguments.directory)
    _load(arguments)
    from cotrain.analysis.attack import tables, verifier_attack

    result = verifier_attack.attack(
        arguments.directory,
        role=arguments.role,
        problems=arguments.problems,
        each=arguments.each,
        seed=arguments.seed,
        split=arguments.split,
        fixed=arguments.fixed,
        start=arguments.start,
        device=device_of(arguments.device),
        out=arguments.out,
        say=_progress_printer(arguments.json),
    )
    if arguments.json:
        print(json_text(result))
        return 0
    print_lines(tables.lines_of(result))
    print("*: more than ordinary wrong solutions; 95 % interval of the difference, paired by problem")
    return 0


def xplay(argv: Sequence[str]) -> int:
    """Let generators and verifiers of different steps, and of different runs, play against each other."""
    parser = Parser(prog="cotrain xplay", description=xplay.__doc__)
    parser.add_argument("directories", metavar="DIR", nargs="+", help="a run, or several on the same problems")
    add_count(parser, "--every", "steps between checkpoints that play", default=25)
    add_count(parser, "--problems", "number of held-out problems (default: 64)", default=64)
    add_count(parser, "--samples", "solutions of each problem (default: 4)", default=4)
    parser.add_argument("--on-rollouts", action="store_true", help="stored verifiers review the run's own rollouts")
    add_count(parser, "--rollouts", "with --on-rollouts: rollouts of each step (default: 128)", default=128)
    parser.add_argument(
        "--reference",
        nargs="+",
        default=[],
        metavar="MODEL",
        help="with --on-rollouts: models from outside that review the same",
    )
    parser.add_argument("--seats", nargs=2, metavar="ROLE", help="two roles of a game, whose players meet")
    parser.add_argument(
        "--signal", default="won", metavar="NAME", help="with --seats: signal that they play for (default: won)"
    )
    parser.add_argument("--out", metavar="DIR", help="where xplay.json goes (default: the first run)")
    arguments = _parse_arguments(parser, argv)
    if arguments.seats and arguments.on_rollouts:
        raise ConfigError(
            "xplay: --seats and --on-rollouts are two matrices; ask for one of them", code="E_TWO_MATRICES"
        )
    if arguments.on_rollouts and len(arguments.directories) > 1:
        raise ConfigError(
            "xplay --on-rollouts: takes one run, as it reads that run's own ledger; give one directory",
            code="E_ONE_RUN_ALONE",
        )
    matrix = GENERATORS
    if arguments.seats:
        matrix = SEATS
    elif arguments.on_rollouts:
        matrix = ROLLOUTS
    _check_flags_of_matrix(parser, argv, matrix)
    for directory in arguments.directories:
        check_path(Path(directory))
    _load(arguments)
    common: dict[str, Any] = {
        "every": arguments.every,
        "device": device_of(arguments.device),
        "out": arguments.out,
        "say": _progress_printer(arguments.json),
    }
    sampling: dict[str, Any] = {"problems": arguments.problems, "n": arguments.samples, "split": arguments.split}
    if matrix == SEATS:
        from cotrain.analysis.attack import seats

        first, second = arguments.seats
        result = seats.play_seats(
            arguments.directories, roles=(first, second), signal=arguments.signal, **sampling, **common
        )
        lines = seats.lines_of(result)
    elif matrix == ROLLOUTS:
        from cotrain.analysis.attack import reviewed

        result = reviewed.review_rollouts(
            arguments.directories[0],
            role=arguments.role,
            rollouts=arguments.rollouts,
            references=arguments.reference,
            **common,
        )
        lines = reviewed.lines_of(result)
    else:
        from cotrain.analysis.attack import xplay as generators

        result = generators.xplay(arguments.directories, role=arguments.role, **sampling, **common)
        lines = generators.lines_of(result)

    if arguments.json:
        print(json_text(result))
    else:
        print_lines(lines)
    return 0


def _check_flags_of_matrix(parser: Parser, argv: Sequence[str], matrix: str) -> None:
    """Raise ConfigError for a typed flag that ``matrix`` does not use."""
    typed = {f"--{name}" for name in typed_flags(argv, parser)}
    for flag, its_matrix in MATRIX_OF_FLAG.items():
        if flag in typed and matrix != its_matrix:
            parser.error(f"{flag} goes with {its_matrix} alone; leave it out, or ask for that matrix")
    for flag in UNUSED_FLAGS[matrix]:
        if flag in typed:
            parser.error(f"{flag} does not go with {matrix}; leave out one of the two")


def _parse_arguments(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with the flags that both commands have."""
    parser.add_argument("--role", default="verifier", metavar="NAME", help="role that judges (default: verifier)")
    parser.add_argument(
        "--split", default="test", help="split of the problems: test, validation, ood_length … (default: test)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_device_flag(parser)
    add_threads_flag(parser)
    add_trust_flag(parser)
    return parser.parse_strictly(argv)


def _load(arguments: argparse.Namespace) -> None:
    """Load the libraries, for as many threads as the flag says."""
    load_libraries()
    set_threads(arguments.threads)


def _progress_printer(as_json: bool) -> Callable[[str], None]:
    """Return the function that prints the progress: on stderr where JSON is printed."""
    return print_aside if as_json else print_progress
