"""Compare recipes fairly: the same seeds, the same problems, equal updates and equal tokens, paired differences.

Each arm is ``name`` or ``name:parameter=value,…``. Every (arm, seed) is an ordinary run in a process of its own, on
one thread, as many at a time as there are cores; a run that was interrupted is resumed, a finished one is not repeated.
An arm that spends fewer tokens an update than the dearest one (GRPO has no verifier to pay for) is run on until it has
spent as many, so that both questions have an answer: who is better after U updates of the generator, and who after
the same number of sampled tokens. Where costs differ too much for that, every run ends at a number of tokens instead.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cotrain.core.errors import ConfigError, UserError
from cotrain.disk.jsonl import read_jsonl
from cotrain.loop.recipe import Recipe
from cotrain.recipes import find
from cotrain.report.compare_markdown import comparison_markdown
from cotrain.report.compare_page import write_compare_page
from cotrain.report.compare_reach import json_of, levels
from cotrain.report.compare_svg import curves_svg, differences_svg
from cotrain.report.compare_table import AXES, comparison_table, runs_of
from cotrain.report.training_svg import training_svg

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
            else:
                words += [f"--{flag}", str(value)]
        return words


def parse_arm(text: str) -> Arm:
    """``tango:verifier=frozen,alpha=0.5`` → an Arm. A path recipe keeps its own colon: ``file.py:mine:lr=1e-4``."""
    head, *rest = text.split(":")
    if head.endswith(".py") and rest:
        head, rest = f"{head}:{rest[0]}", rest[1:]
    if len(rest) > 1:
        raise ConfigError(f"arm {text!r}: expected name:parameter=value,parameter=value")
    arguments: dict[str, Any] = {}
    for pair in re.split(r",(?![^\[]*\])", rest[0]) if rest else []:  # no comma within brackets
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"arm {text!r}: {pair!r} is not parameter=value")
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
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run every arm with seeds 0 … seeds−1 and write ``compare.json``, ``report.html``, ``table.md`` and the curves as
    SVG in ``out``. Returns the content of the first.

    With ``tokens`` every run ends when it has sampled so many, however many updates that makes; ``updates`` is then
    how long decays run, and what the figures at equal updates go up to."""
    if seeds < 1 or updates < 1 or (tokens is not None and tokens < 1):
        raise ConfigError(f"compare: seeds {seeds}, updates {updates} and tokens {tokens} must be at least 1")
    parsed = [parse_arm(text) for text in arms]
    if len({arm.label for arm in parsed}) < len(parsed):
        raise ConfigError(f"compare: an arm is named twice in {list(arms)}")
    recipes = {arm.label: find(arm.target)(**arm.arguments).for_updates(updates) for arm in parsed}
    out.mkdir(parents=True, exist_ok=True)
    claim = {"arms": list(arms), "updates": updates, "evaluate_every": evaluate_every, "settings": list(settings)}
    _claim(out, claim | ({} if tokens is None else {"tokens": tokens}))
    count = workers or len(os.sched_getaffinity(0))

    def job(arm: Arm, seed: int, steps: int, folder: Path) -> list[str]:
        if (folder / "recipe.json").exists():
            return [sys.executable, "-m", "cotrain.cli", "resume", str(folder)]
        fixed = ["--seed", str(seed), "--steps", str(steps), "--evaluate-every", str(evaluate_every), "--threads", "1"]
        horizon = f"horizon={recipes[arm.label].steps}"  # decays do not stretch when an arm runs on
        budget = () if tokens is None else (f"tokens={tokens}",)
        chosen = [word for setting in (*settings, horizon, *budget) for word in ("--set", setting)]
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
    if path.exists():
        held = json.loads(path.read_text(encoding="utf-8"))
        if {**held, "arms": settings["arms"]} != settings:
            raise ConfigError(f"{out} holds a comparison with other settings ({path}); choose another --out")
    path.write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label)


def _done(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def _summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def _work(jobs: Sequence[tuple[Path, list[str]]], workers: int, say: Callable[[str], None]) -> None:
    """Run commands, ``workers`` at a time, each on one thread; stop all when one fails or we are interrupted."""
    waiting, began = list(jobs), time.monotonic()
    running: dict[subprocess.Popen[bytes], tuple[Path, BinaryIO]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                folder, command = waiting.pop(0)
                folder.parent.mkdir(parents=True, exist_ok=True)
                output: BinaryIO = (folder.parent / f"{folder.name}.log").open("ab")
                running[subprocess.Popen(command, stdout=output, stderr=output, env=environment)] = (folder, output)
            time.sleep(POLL_SECONDS)
            for process in [p for p in running if p.poll() is not None]:
                folder, log = running.pop(process)
                log.close()
                if process.returncode != 0:
                    tail = Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                    raise UserError(
                        f"compare: {folder} ended with code {process.returncode}: {' '.join(tail)}; see {log.name}"
                    )
                left = len(waiting) + len(running)
                say(f"[{time.monotonic() - began:6.0f} s] {folder.parent.name} {folder.name} done, {left} to go")
    finally:
        for process, (_, opened) in running.items():
            process.terminate()
            opened.close()
        for process in running:
            process.wait()


def _collect(folder: Path, seed: int, policy: str) -> dict[str, Any]:
    """One run as the comparison reads it: its validation curve over updates and tokens, its before and after."""
    curve = []
    for row in read_jsonl(folder / "metrics.jsonl"):
        if row.get("kind") == "evaluation":
            figures = {key.removeprefix("eval/"): value for key, value in row.items() if key.startswith("eval/")}
            curve.append([int(row[f"updates/{policy}"]), int(row["tokens"]), figures])
    summary = _summary(folder)
    laps = [
        value
        for row in read_jsonl(folder / "timings.jsonl")
        for key, value in row.items()
        if "/" not in key and key != "step"
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
