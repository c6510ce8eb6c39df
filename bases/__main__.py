"""``python -m bases``: how the models that ship with cotrain were made, from nothing (docs/bases.md)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from cotrain.cli.common import add_threads_flag, set_threads
from cotrain.cli.flags import Parser, whole_number
from cotrain.cli.stages import check_unused
from cotrain.core.errors import ConfigError, CotrainError


def games_of_the_zoo() -> ModuleType:
    """``bases.gaming``, whose model learns the games of the zoo too. Raises ConfigError where that is not installed."""
    try:
        from bases import gaming
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cotrain_zoo":
            raise
        raise ConfigError("bases: this model learns games of the zoo; install it with `pip install -e zoo`") from error
    return gaming


def main(argv: Sequence[str]) -> int:
    """Make shipped-checker from nothing: tokenizer, practice, settling, mending, sharpening."""
    parser = Parser(prog="python -m bases", description=main.__doc__)
    parser.add_argument("--out", required=True, metavar="DIR", help="where the models go")
    parser.add_argument("--size", choices=("0.1M", "0.3M", "1M", "3M", "8M"), default="1M", help="parameters")
    parser.add_argument(
        "--tokens", type=whole_number(1), metavar="N", help="of practice (default: those of the shipped base)"
    )
    parser.add_argument("--seed", type=whole_number(), default=0, metavar="N", help="of weights and problems")
    parser.add_argument("--resume", action="store_true", help="go on where it was interrupted")
    parser.add_argument("--settle", action="store_true", help="end the practice in --out where it was interrupted")
    parser.add_argument(
        "--noisy",
        action="store_true",
        help="make shipped, whose errors are taught ones, and the models of further roles",
    )
    parser.add_argument(
        "--habits", action="store_true", help="make shipped-habits: shipped-checker, taught two habits that are wrong"
    )
    parser.add_argument(
        "--step-habits",
        action="store_true",
        help="make base-step-habits: shipped-checker, taught a wrong habit that every step triggers; it does not ship",
    )
    parser.add_argument(
        "--start", metavar="MODEL", help="with --step-habits: what is taught (default: shipped-checker)"
    )
    parser.add_argument(
        "--proposer", action="store_true", help="make shipped-proposer: shipped-habits, taught to write problems"
    )
    parser.add_argument(
        "--games",
        action="store_true",
        help="make shipped-games: shipped-habits, taught the formats of games",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="make shipped-search: shipped-games, taught to work out the questions of ssp before it writes them",
    )
    parser.add_argument("--install", action="store_true", help="copy the result into the installed package")
    add_threads_flag(parser)
    given = parser.parse_strictly(argv)
    if not (given.resume or given.settle) or Path(given.out).is_file():
        check_unused(given.out, resumable=True)
    if given.noisy and (given.settle or given.size != "1M"):
        parser.error("--noisy has one size and no --settle; leave them out")
    lessons = ("habits", "step_habits", "proposer", "games", "search")
    taught_on = [f"--{name.replace('_', '-')}" for name in lessons if getattr(given, name)]
    if len(taught_on) > 1:
        parser.error(f"{' and '.join(taught_on)} make a model each; leave all but one out")
    if taught_on and (given.noisy or given.settle or given.size != "1M" or given.tokens is not None):
        parser.error(f"{taught_on[0]} has one size and length, no --noisy and no --settle; leave them out")
    if given.step_habits and given.install:
        parser.error("--step-habits makes a model that does not ship; leave out --install")
    if given.start is not None and not given.step_habits:
        parser.error("--start is for --step-habits, whose lesson any base can be taught; leave it out")
    set_threads(given.threads)
    from bases import base as stage
    from bases import habits, noisy, proposing
    from cotrain.core.shipped import CHECKOUT_MODELS, DEMO_MODELS, SHIPPED_CHECKER

    out = Path(given.out)
    say = functools.partial(print, flush=True)
    if given.noisy:
        past = noisy.NoisySettings(seed=given.seed)
        past = past if given.tokens is None else replace(past, practice_tokens=given.tokens)
        made = noisy.build_noisy(out, past, resume=given.resume, report=say)
    elif given.habits:
        made = habits.build_habits(out, habits.HabitSettings(seed=given.seed), resume=given.resume, report=say)
    elif given.step_habits:
        lesson = habits.StepHabitSettings(seed=given.seed, start=given.start or SHIPPED_CHECKER)
        made = habits.build_habits(out, lesson, resume=given.resume, report=say)
    elif given.proposer:
        made = proposing.build_proposer(
            out, proposing.ProposerSettings(seed=given.seed), resume=given.resume, report=say
        )
    elif given.games:
        gaming = games_of_the_zoo()
        made = gaming.build_games(out, gaming.GameSettings(seed=given.seed), resume=given.resume, report=say)
    elif given.search:
        gaming = games_of_the_zoo()
        made = gaming.build_search(out, gaming.SearchSettings(seed=given.seed), resume=given.resume, report=say)
    else:
        settings = stage.BaseSettings(seed=given.seed, size=given.size)
        settings = settings if given.tokens is None else replace(settings, practice_tokens=given.tokens)
        make = stage.settle if given.settle else stage.build_base
        made = make(out, settings, resume=given.resume, report=say)
    if not made["finished"]:
        print(f"stopped during {made['stage']}; nothing is lost. Go on with the same command and --resume")
        return 130
    if given.install:
        if given.noisy:
            noisy.install_noisy(out, DEMO_MODELS, CHECKOUT_MODELS)
        else:
            stage.install_base(out, DEMO_MODELS if given.habits else CHECKOUT_MODELS, *made["models"])
    print(f"models: {', '.join(f'{out}/{name}' for name in made['models'])}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CotrainError as error:
        print(f"bases: {error}", file=sys.stderr)
        sys.exit(2)
