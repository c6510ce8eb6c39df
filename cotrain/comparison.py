"""Compare recipes fairly: the same seeds, the same problems, equal updates and equal tokens, paired differences.

Each arm is ``name`` or ``name:parameter=value,…``. Every (arm, seed) is an ordinary run in a process of its own, on
one thread, as many at a time as there are cores; a run that was interrupted is resumed, a finished one is not repeated.
An arm that spends fewer tokens an update than the dearest one (GRPO has no verifier to pay for) is run on until it has
spent as many, so that both questions have an answer: who is better after U updates of the generator, and who after
the same number of sampled tokens. Where costs differ too much for that, every run ends at a number of tokens instead.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cotrain.core.errors import ConfigError, UserError
from cotrain.disk.jsonl import read_jsonl
from cotrain.loop import seal
from cotrain.loop.directory import RunDirectory
from cotrain.loop.override import override
from cotrain.loop.recipe import Recipe
from cotrain.loop.run import Interrupted, check_problems
from cotrain.loop.signals import stop_on_signal
from cotrain.recipes import find, make
from cotrain.report.compare_markdown import comparison_markdown
from cotrain.report.compare_page import write_compare_page
from cotrain.report.compare_reach import json_of, levels
from cotrain.report.compare_svg import curves_svg, differences_svg
from cotrain.report.compare_table import AXES, comparison_table, runs_of
from cotrain.report.training_svg import training_svg
from cotrain.tasks.sources import task_source

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One variant of one recipe."""

    label: str
    target: str
    arguments: Mapping[str, Any]

    def flags(self) -> list[str]:
        words: list[str] = []
        for name, value in self.arguments.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            elif isinstance(value, tuple):
                words += [f"--{flag}", *map(str, value)]
            elif value is not None:  # None is what a flag left out means
                words.append(f"--{flag}={value}")
        return words


OURS = {  # parameter → how a comparison sets it
    "seed": "--seeds",
    "steps": "--updates",
    "evaluate_every": "--evaluate-every",
    "tasks": "--tasks and --data",
}


def parse_arm(text: str) -> Arm:
    """``tango:verifier=frozen,alpha=0.5`` → an Arm. A path recipe keeps its own colon: ``file.py:mine:lr=1e-4``."""
    head, *rest = text.split(":")
    if head.endswith(".py") and rest:
        head, rest = f"{head}:{rest[0]}", rest[1:]
    if len(rest) > 1:
        raise ConfigError(f"arm {text!r}: expected name:parameter=value,parameter=value")
    if text.count("[") != text.count("]"):
        raise ConfigError(f"arm {text!r}: a bracket is not closed; write lists as in ratio=[2,1]")
    arguments: dict[str, Any] = {}
    for pair in re.split(r",(?![^\[]*\])", rest[0]) if rest else []:  # no comma within brackets
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"arm {text!r}: {pair!r} is not parameter=value")
        if name in arguments:
            raise ConfigError(f"arm {text!r}: {name} is given twice")
        if name in OURS:
            raise ConfigError(f"arm {text!r}: {name} is the same for every arm; leave it out and give {OURS[name]}")
        arguments[name] = _value(value)
    return Arm(label=text, target=head, arguments=arguments)


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)
    return tuple(value) if isinstance(value, list) else value


def compare(
    arms: Sequence[str],
    *,
    seeds: int,
    out: Path,
    updates: int = 60,
    tokens: int | None = None,
    equal_tokens: bool = True,
    evaluate_every: int = 10,
    settings: Sequence[str] = (),
    tasks: str | None = None,
    data: str | None = None,
    lenient: bool = False,
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run every arm with seeds 0 … seeds−1 and write ``compare.json``, ``report.html``, ``table.md`` and the curves as
    SVG in ``out``. Returns the content of the first.

    With ``tokens`` every run ends when it has sampled so many, however many updates that makes; ``updates`` is then
    how long decays run, and what the figures at equal updates go up to. ``tasks`` and ``data`` are those of ``cotrain run``.
    Raises ConfigError before anything is run, and Interrupted on a signal, when every run has been stopped."""
    for name, value in (("seeds", seeds), ("updates", updates), ("tokens", tokens), ("workers", workers)):
        if value is not None and value < 1:
            raise ConfigError(f"compare: {name} is {value}, expected at least 1")
    parsed = _distinct([parse_arm(text) for text in arms])
    problems = [f"--{name}={value}" for name, value in (("tasks", tasks), ("data", data)) if value is not None]
    problems += ["--lenient"] if lenient else []
    if lenient and data is None:
        raise ConfigError("compare: --lenient is about the rows of --data FILE; leave it out")
    source = {"tasks": task_source(tasks or "jsonl", data, lenient=lenient)} if problems else {}
    recipes = {arm.label: _recipe(arm, source, settings).for_updates(updates) for arm in parsed}
    claim = {"arms": list(arms), "updates": updates, "evaluate_every": evaluate_every, "settings": list(settings)}
    further = {"tokens": tokens, "tasks": tasks, "data": data, "lenient": lenient or None}
    _claim(out, claim | {name: value for name, value in further.items() if value is not None})
    count = workers or len(os.sched_getaffinity(0))
    say(
        f"{len(parsed)} {'arm' if len(parsed) == 1 else 'arms'}, {seeds} {'seed' if seeds == 1 else 'seeds'}, {count} "
        f"{'run' if count == 1 else 'runs'} at a time; what each says is in {out}/ARM/seed-N.log"
    )

    def job(arm: Arm, seed: int, steps: int, folder: Path) -> list[str]:
        if (folder / "recipe.json").exists():
            return [sys.executable, "-m", "cotrain.cli", "resume", str(folder)]
        own = {"seed": seed, "steps": steps, "evaluate_every": evaluate_every}
        takes = inspect.signature(find(arm.target)).parameters
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in own.items() if name in takes]
        fixed = [*flags, "--threads=1", *problems]
        horizon = f"horizon={recipes[arm.label].steps}"  # decays do not stretch when an arm runs on
        budget = () if tokens is None else (f"tokens={tokens}",)
        missing = [f"{name}={value}" for name, value in own.items() if name not in takes]  # of a user's function
        chosen = [f"--set={setting}" for setting in (*settings, *missing, horizon, *budget)]
        return [
            sys.executable,
            "-m",
            "cotrain.cli",
            "run",
            arm.target,
            "--out",
            str(folder),
            *arm.flags(),
            *fixed,
            *chosen,
        ]

    pairs = [(arm, seed) for seed in range(seeds) for arm in parsed]
    base = {(arm.label, seed): out / _slug(arm.label) / f"seed-{seed}" for arm, seed in pairs}
    most = max(len(recipe.roles) for recipe in recipes.values())  # more roles, more tokens an update
    dear = [arm for arm in parsed if len(recipes[arm.label].roles) == most]
    cheap = [arm for arm in parsed if arm not in dear] if equal_tokens and tokens is None else []
    steps = {label: recipe.steps if tokens is None else tokens for label, recipe in recipes.items()}
    first = [(a, s, steps[a.label], base[a.label, s]) for a, s in pairs if a not in cheap]
    _work([(folder, job(a, s, n, folder)) for a, s, n, folder in first if not _done(folder)], count, say)
    if cheap:
        budget = max(_summary(base[a.label, s])["tokens"] for a, s in pairs if a in dear)
        for arm in cheap:
            steps[arm.label] = _steps_for(recipes[arm.label], budget, out / _slug(arm.label))
        later = [(a, s, steps[a.label], base[a.label, s]) for a, s in pairs if a in cheap]
        _work([(folder, job(a, s, n, folder)) for a, s, n, folder in later if not _done(folder)], count, say)
    result: dict[str, Any] = {
        "updates": updates,
        "tokens": tokens,
        "seeds": seeds,
        "settings": list(settings),
        "recipes": {},
    }
    for arm in parsed:
        leading = recipes[arm.label].objectives[recipes[arm.label].leading].policy
        result["recipes"][arm.label] = {"seeds": [_collect(base[arm.label, s], s, leading) for s in range(seeds)]}
    result |= comparison_table(result)
    folders = {arm.label: [base[arm.label, s] for s in range(seeds)] for arm in parsed}
    first_policy = recipes[parsed[0].label].objectives[recipes[parsed[0].label].leading].policy
    write_results(result, out, {"training.svg": training_svg(folders, first_policy)})
    return result


def write_results(result: dict[str, Any], out: Path, further: Mapping[str, str]) -> None:
    """Write a comparison with its table, and ``further`` pictures. The Markdown and the pictures hold no paths of this
    machine."""
    runs = runs_of(result)
    result["levels"] = [
        level for axis in AXES for level in json_of(levels(runs, axis, result["budgets"].get(axis, math.nan)))
    ]
    (out / "compare.json").write_text(json.dumps(result, indent=1, ensure_ascii=False), encoding="utf-8")
    write_compare_page(result, out / "report.html")
    drawn = {"curves.svg": curves_svg(runs), "differences.svg": differences_svg(runs), **further}
    pictures = {name: svg for name, svg in drawn.items() if svg}
    for name, svg in pictures.items():
        (out / name).write_text(svg, encoding="utf-8")
    (out / "table.md").write_text(comparison_markdown(result, list(pictures)), encoding="utf-8")


def _distinct(arms: list[Arm]) -> list[Arm]:
    """The arms, when no two of them are the same runs or would share a directory."""
    for i, arm in enumerate(arms):
        for other in arms[:i]:
            same = (arm.target, arm.arguments) == (other.target, other.arguments)
            if same or _slug(arm.label) == _slug(other.label):
                what = "an arm is named twice" if same else "two arms would share a directory"
                raise ConfigError(f"compare: {what}: {other.label!r} and {arm.label!r}; leave out or rename one")
    return arms


def _recipe(arm: Arm, source: Mapping[str, Any], settings: Sequence[str]) -> Recipe:
    """What an arm will run, so that whatever is wrong with it is said before anything has been run."""
    try:
        made = override(make(arm.target, {**arm.arguments, **source}), settings)
        check_problems(made)
        return made
    except UserError as error:
        raise ConfigError(f"arm {arm.label!r}: {error}") from error


TOKENS_PER_EPISODE = 75.0  # of a first guess, before any run of an arm has told how many it samples


def _steps_for(recipe: Recipe, budget: int, folder: Path) -> int:
    """Steps after which an arm has sampled ``budget`` tokens, with a margin: lengths drift as the generator learns."""
    per_step = recipe.tasks_per_step * recipe.group_size * TOKENS_PER_EPISODE
    for metrics in sorted(folder.glob("seed-*/metrics.jsonl")):
        rows = [row for row in read_jsonl(metrics) if "kind" not in row]
        if rows:
            per_step = rows[-1]["tokens"] / len(rows)
            break
    return max(recipe.steps, math.ceil(1.1 * budget / per_step))


def _claim(out: Path, settings: dict[str, Any]) -> None:
    """A comparison directory belongs to one set of settings; more seeds and other arms may be added later."""
    path = out / "settings.json"
    if out.is_file() or (out.is_dir() and not path.exists() and any(out.iterdir())):
        raise ConfigError(f"{out} holds something else than a comparison; choose another --out")
    try:
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        if held is not None and not isinstance(held, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it, or choose another --out") from error
    if held is not None and _by_name({**held, "arms": settings["arms"]}) != _by_name(settings):
        names = sorted(name for name in {*held, *settings} - {"arms"} if held.get(name) != settings.get(name))
        was = ", ".join(f"{name} {json.dumps(held.get(name))}" for name in names)
        raise ConfigError(f"{out} holds a comparison with other settings ({was}); give those, or choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write a comparison to {out}: {error.strerror}; choose another --out") from error


def _by_name(settings: dict[str, Any]) -> dict[str, Any]:
    """With the changed settings by name: their order is free, of two for one name the last counts."""
    changed = settings.get("settings")
    if not isinstance(changed, list):
        return settings
    return {**settings, "settings": {(found := str(each).partition("="))[0]: found[2] for each in changed}}


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label)


def _done(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def _summary(folder: Path) -> dict[str, Any]:
    """The summary of a run whose files are as it wrote them."""
    seal.verify(RunDirectory(folder))
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def _work(jobs: Sequence[tuple[Path, list[str]]], workers: int, say: Callable[[str], None]) -> None:
    """Run commands, ``workers`` at a time, each on one thread; stop all when one fails or we are interrupted. They run in
    sessions of their own: of a Ctrl-C in the terminal they hear from us, once, and have time to save where they are."""
    waiting, began = list(jobs), time.monotonic()
    running: dict[subprocess.Popen[bytes], tuple[Path, BinaryIO]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def tell(folder: Path, what: str) -> None:
        say(f"[{time.monotonic() - began:6.0f} s] {folder.parent.name} {folder.name} {what}")

    with stop_on_signal() as asked, _ended_with_us(running):
        while waiting or running:
            if asked():
                raise Interrupted(asked())
            while waiting and len(running) < workers:
                folder, command = waiting.pop(0)
                folder.parent.mkdir(parents=True, exist_ok=True)
                output: BinaryIO = (folder.parent / f"{folder.name}.log").open("ab")
                process = subprocess.Popen(
                    command, stdout=output, stderr=output, env=environment, start_new_session=True
                )
                running[process] = (folder, output)
                tell(folder, "goes on" if command[3] == "resume" else "begins")
            time.sleep(POLL_SECONDS)
            for process in [p for p in running if p.poll() is not None]:
                folder, log = running.pop(process)
                log.close()
                if process.returncode != 0:
                    tail = Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                    raise UserError(
                        f"compare: {folder} ended with code {process.returncode}: {' '.join(tail)}; see {log.name}"
                    )
                tell(folder, f"is done, {len(waiting) + len(running)} to go")


@contextmanager
def _ended_with_us(running: Mapping[subprocess.Popen[bytes], tuple[Path, BinaryIO]]) -> Iterator[None]:
    """Whatever happens inside, no run goes on alone afterwards."""
    try:
        yield
    finally:
        for process, (_, opened) in running.items():
            process.terminate()
            opened.close()
        for process in running:
            process.wait()


def _collect(folder: Path, seed: int, policy: str) -> dict[str, Any]:
    """One run as the comparison reads it: its validation curve over updates and tokens, its before and after."""
    summary = _summary(folder)
    curve = []
    for row in read_jsonl(folder / "metrics.jsonl"):
        if row.get("kind") == "evaluation":
            figures = {key.removeprefix("eval/"): value for key, value in row.items() if key.startswith("eval/")}
            curve.append([int(row[f"updates/{policy}"]), int(row["tokens"]), figures])
    laps = [
        value
        for row in read_jsonl(folder / "timings.jsonl")
        for key, value in row.items()
        if "/" not in key and key != "step" and isinstance(value, int | float)
    ]
    return {
        "seed": seed,
        "curve": curve,
        "tokens": summary["tokens"],
        "steps": summary["steps"],
        "updates": summary["updates"].get(policy, 0),
        "minutes": sum(laps) / 60,
        "before": {key: value["value"] for key, value in summary["before"].items()},
        "after": {key: value["value"] for key, value in summary["after"].items()},
    }
