"""The commands that read: recipes, data, and the runs that there are."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence

from cotrain.commands.common import figure, quiet
from cotrain.core.flags import Parser


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


def evaluate(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain eval", description="Measure a run's latest checkpoint on held-out problems.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--split", default="test", help="test, validation, ood_length, ood_template …")
    parser.add_argument("--problems", type=int, help="how many; None: as the recipe says")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--suite", metavar="A,B", help="benchmarks instead of a split: gsm8k,math500,processbench …")
    parser.add_argument("--data", nargs="+", default=[], metavar="PATH", help="of the suites: PATH or NAME=PATH each")
    parser.add_argument("--samples", type=int, default=8, metavar="K", help="of avg@K, pass@K, maj@K, best@K")
    parser.add_argument("--reviews", type=int, default=1, help="of each solution, by the verifier")
    parser.add_argument("--solver", default="solver", metavar="ROLE")
    parser.add_argument("--verifier", default="verifier", metavar="ROLE")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.strict(words)
    quiet()
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
        print(f"{key:44s} {figure(value):>22s}  n={value['n']}")
    return 0


def check(words: Sequence[str]) -> int:
    from cotrain.tasks.lint import command

    return command(words)


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
    quiet()
    from cotrain.chat import talk

    return talk(given.directory, temperature=given.temperature, once=given.once)


def export(words: Sequence[str]) -> int:
    parser = Parser(prog="cotrain export", description="Write a policy of a run as a plain model directory.")
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--role", required=True, help="a role of the recipe, or the name of a policy")
    parser.add_argument("--out", required=True, metavar="MODEL", help="a new directory")
    given = parser.strict(words)
    quiet()
    from cotrain.export import export as write

    print(f"written to {write(given.directory, given.role, given.out)}")
    return 0


def doctor(words: Sequence[str]) -> int:
    Parser(prog="cotrain doctor", description="What is installed, what device there is, what will be used.").strict(
        words
    )
    quiet()
    from cotrain.doctor import examine

    return examine()
