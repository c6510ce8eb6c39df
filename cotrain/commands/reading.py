"""The commands that read: recipes, data, and the runs that there are."""

from __future__ import annotations

import inspect
import json
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from cotrain.commands.common import figure, quiet
from cotrain.core.errors import RunDirectoryError
from cotrain.core.flags import Parser, real, whole, words_of


def list_recipes(words: Sequence[str]) -> int:
    Parser(prog="cotrain list", description="The recipes that ship with cotrain.").strict(words)
    from cotrain.recipes import SHIPPED, find

    width = max(60, min(100, shutil.get_terminal_size().columns)) - 2
    for name in SHIPPED:
        build = find(name)
        about = inspect.getdoc(inspect.getmodule(build)) or ""
        print(textwrap.fill(f"{name}  {about.splitlines()[0]}", width, subsequent_indent="    "))
        flags = [_flag(p) for p in inspect.signature(build).parameters.values() if p.default is not None]
        print(_filled(flags, width), end="\n\n")
    print("`cotrain run RECIPE --help` says more of one; `cotrain run RECIPE --out DIR` runs it")
    return 0


def _flag(parameter: inspect.Parameter) -> str:
    """A parameter with its default, as one would type it."""
    flag, default = parameter.name.replace("_", "-"), parameter.default
    if isinstance(default, bool):
        return f"--{flag}" if default else f"--no-{flag}"
    return f"--{flag} {words_of(default)}"


def _filled(words: Sequence[str], width: int) -> str:
    """Words in lines of at most ``width`` characters, none of them broken."""
    lines = [" " * 3]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append(" " * 3)
        lines[-1] += f" {word}"
    return "\n".join(lines)


def evaluate(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain eval", description="Measure a run's latest checkpoint on held-out problems.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--split", help="test, validation, ood_length, ood_template … (default: test)")
    parser.add_argument("--problems", type=whole(1), metavar="N", help="how many (default: as the recipe says, or all)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 …")
    parser.add_argument("--suite", metavar="A,B", help="benchmarks instead of a split: gsm8k,math500,processbench …")
    parser.add_argument("--data", nargs="+", default=[], metavar="PATH", help="of the suites: PATH or NAME=PATH each")
    parser.add_argument("--samples", type=whole(0), metavar="K", help="of avg@K, pass@K, maj@K, best@K (default: 8)")
    parser.add_argument("--reviews", type=whole(1), metavar="N", help="of each solution, by the verifier (default: 1)")
    parser.add_argument("--solver", metavar="ROLE", help="who answers (default: solver)")
    parser.add_argument("--verifier", metavar="ROLE", help="who judges (default: verifier)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.strict(words)
    quiet()
    of_suites = {"samples": 8, "reviews": 1, "solver": "solver", "verifier": "verifier"}  # and their defaults
    if given.suite is not None:
        from cotrain.suites import command

        if given.split is not None:
            parser.error("--split does not go with --suite; leave out one of the two")
        for name, default in of_suites.items():
            setattr(given, name, default if getattr(given, name) is None else getattr(given, name))
        return command(given)
    lost = [name for name in ("data", *of_suites) if getattr(given, name) not in (None, [])]
    if lost:
        parser.error(f"--{lost[0]} goes with --suite; name the suites")
    from cotrain import api

    split = "test" if given.split is None else given.split
    result = api.evaluate(given.directory, split=split, tasks=given.problems, device=given.device)
    if given.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"split {result['split']}, after step {result['step']}")
    longest = max(map(len, result["figures"]), default=0)
    for key, value in result["figures"].items():
        print(f"{key:{longest}s} {figure(value):>22s}  n={value['n']}")
    return 0


def check(words: Sequence[str]) -> int:
    from cotrain.tasks.lint import command

    return command(words)


def report(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain report", description="Write a run's report.html anew.")
    parser.add_argument("directory", metavar="DIR")
    given = parser.strict(words)
    folder = Path(given.directory)
    if folder.is_dir() and not (folder / "recipe.json").is_file():
        raise RunDirectoryError(f"{folder} is not a run directory (no recipe.json in it)")
    from cotrain.view.report import write_report

    print(f"report: {write_report(folder)}")
    return 0


def chat(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain chat", description="Type a problem; see the steps and the verdict on each.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--temperature", type=real(0.0), default=0.0, metavar="X", help="0: the likeliest words")
    parser.add_argument("--once", metavar="PROBLEM", help="answer this one problem and leave")
    given = parser.strict(words)
    quiet()
    from cotrain.chat import talk

    return talk(given.directory, temperature=given.temperature, once=given.once)


def export(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain export", description="Write a policy of a run as a plain model directory.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--role", required=True, help="a role of the recipe, or the name of a policy")
    parser.add_argument("--out", required=True, metavar="MODEL", help="a new directory")
    parser.add_argument("--merged", action="store_true", help="an adapter within its base, as one plain model")
    given = parser.strict(words)
    quiet()
    from cotrain.export import export as write

    print(f"written to {write(given.directory, given.role, given.out, merged=given.merged)}")
    return 0


def doctor(words: Sequence[str]) -> int:
    Parser(prog="cotrain doctor", description="What is installed, what device there is, what will be used.").strict(
        words
    )
    quiet()
    from cotrain.doctor import examine

    return examine()
