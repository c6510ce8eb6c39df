"""Alarms of sound runs and of sick ones: how many of the sick raise one (recall), and how many of the sound (false).

    python -m tests.torture.alarms --sick 20 --sound 50 --log runs/torture/alarms.jsonl

Each run trains the tiny model of the tests on its easy problems, with a seed of its own, through the very steps and
alarms of a run; nothing is written but its rows, as a line of the log, behind which the next call goes on: a changed
rule reads them anew. A *sound* run is GRPO,
or RL Tango with a verifier that learns, as their recipes have them. A *sick* one is the same with one thing wrong from
the first step on (``SICK``): nothing of it is made up afterwards, the rows are those of the run. An alarm counts for a
sickness where its name is among those listed with it; others that it raised are shown too.

Of *fooled* runs, in which the generator learns to please a judge, the table also has how far the accuracy had fallen
when the first alarm came: the last ten steps' against the first ten's.

Left out: models of a size that anybody uses, and sicknesses that come late in a run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from cotrain.config.policies import program
from cotrain.config.recipe import Recipe
from cotrain.config.schedule import constant_schedule
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.statistics import wilson_interval
from cotrain.core.types import Task
from cotrain.metrics.alarms import Monitor
from cotrain.recipes.grpo import grpo
from cotrain.recipes.judged import judged
from cotrain.recipes.tango import tango
from cotrain.rollout.protocols import examine
from cotrain.rollout.runner import Roles
from cotrain.trainer.failures import NotFinite
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY

ROOT = Path(__file__).resolve().parents[2]
STEPS = 30  # of a sound run, and of a sickness that shows in windows of ten
SIZE: dict[str, Any] = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "group_size": 8, "evaluation_tasks": 1}
STOPPED = "run stopped"  # what counts as an alarm where a run ends by itself with a reason


def plain(seed: int, **changes: Any) -> Recipe:
    return grpo(**{**SIZE, "steps": STEPS, "seed": seed, "kl": 0.0, "lr": 1e-4, **changes})


def with_verifier(seed: int) -> Recipe:
    return tango(**{**SIZE, "steps": STEPS, "seed": seed, "lr": 1e-4, "warmup": 0, "ratio": (1, 0), "group_size": 4})


SOUND: tuple[Callable[[int], Recipe], ...] = (plain, with_verifier)


@gives(OUTCOME.to("solver"))
async def paid_always(task: Task, roles: Roles) -> None:
    """Every answer earns 1."""
    solution = await roles.solver(problem=task.prompt)
    if await examine(task, roles, solution) is not None:
        solution.reward(OUTCOME, 1.0)


@gives(OUTCOME.to("solver"))
async def paid_for_one_answer(task: Task, roles: Roles) -> None:
    """Answers that begin with 1 earn 1, whatever was asked."""
    solution = await roles.solver(problem=task.prompt)
    if await examine(task, roles, solution) is not None:
        solution.reward(OUTCOME, float(solution.parsed.ok and solution.parsed.answer.startswith("1")))


def hot(seed: int, temperature: float) -> Recipe:
    made = plain(seed, steps=6)
    solver = made.roles["solver"]
    return replace(made, roles={"solver": replace(solver, sampling=replace(solver.sampling, temperature=temperature))})


def short(seed: int) -> Recipe:
    made = plain(seed, steps=6)
    solver = made.roles["solver"]
    return replace(made, roles={"solver": replace(solver, sampling=replace(solver.sampling, max_tokens=12))})


def played(made: Recipe, protocol: Any) -> Recipe:
    return replace(made, schedule=constant_schedule(protocol, "generator", name="generator"))


def yes(fields: Mapping[str, Any], chance: Random) -> str:
    return "Yes"


def likes_twos(fields: Mapping[str, Any], chance: Random) -> str:
    """Yes to an answer that begins with 2: about as often as answers are right, at first."""
    found = re.findall(r"\d+", str(fields["solution"]))
    return "Yes" if found and found[-1].startswith("2") else "No"


def judged_by(seed: int, judge: Any, lr: float, steps: int) -> Recipe:
    made = judged(
        **{**SIZE, "steps": steps, "seed": seed, "kl": 0.0, "lr": lr},
        verifier="frozen", warmup=0, reviews=2, review_format="genrm",
    )  # fmt: skip
    return replace(made, policies={**made.policies, "verifier": program(judge)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sick:
    """One thing that is wrong."""

    what: str
    make: Callable[[int], Recipe]
    told_by: tuple[str, ...]  # alarms, any of which tells it


NO_SPREAD = ("constant reward", "no spread", "groups without spread", "no samples")
SICK = {
    "constant": Sick(
        what="every answer earns 1", make=lambda seed: played(plain(seed, steps=6), paid_always), told_by=NO_SPREAD
    ),
    "hot": Sick(
        what="temperature 3: answers cannot be read", make=lambda seed: hot(seed, 3.0), told_by=("unreadable answers",)
    ),
    "short": Sick(
        what="12 tokens for an answer", make=short, told_by=("mostly cut off", "cut off", "unreadable answers")
    ),
    "diverging": Sick(
        what="learning rate 10",
        make=lambda seed: plain(seed, steps=5, lr=10.0),
        told_by=("update skipped", "unreadable answers", "cut off", "mostly cut off", *NO_SPREAD, STOPPED),
    ),
    "collapse": Sick(
        what="one answer to all problems is paid, at learning rate 1e-3",
        make=lambda seed: played(plain(seed, lr=1e-3), paid_for_one_answer),
        told_by=("collapsing entropy", "consensus collapse", "reward hacking", *NO_SPREAD),
    ),
    "one-sided": Sick(
        what="a judge that always says yes", make=lambda seed: judged_by(seed, yes, 1e-4, 12),
        told_by=("one-sided verdicts",),
    ),
    "fooled": Sick(
        what="a judge that likes answers that begin with 2, at learning rate 1e-3",
        make=lambda seed: judged_by(seed, likes_twos, 1e-3, 40),
        told_by=("rising gap", "reward hacking", "one-sided verdicts", "consensus collapse"),
    ),
}  # fmt: skip


def one(made: Recipe) -> dict[str, Any]:
    """The rows of a run, and why it ended before its time."""
    trainer, rows, ended = CoTrainer(made), list[Mapping[str, Any]](), ""
    try:
        while not trainer.is_done:
            rows.append(trainer.step().row)
    except NotFinite as error:
        ended = str(error)
    finally:
        trainer.close()
    return {"ended": ended, "rows": [{key: _short(value) for key, value in row.items()} for row in rows]}


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def read(line: Mapping[str, Any]) -> dict[str, Any]:
    """What a run raised, by the alarms as they are now: (alarm, step, what it read) in their order."""
    monitor = Monitor()
    raised = [alarm for row in line["rows"] for alarm in monitor.add_row(row)]
    found = [(alarm.band, alarm.step, f"{alarm.key} {alarm.reading}") for alarm in raised]
    if line["ended"]:
        found.append((STOPPED, len(line["rows"]), line["ended"]))
    return {**line, "raised": found, "accuracy": [row.get("solver/accuracy", 0.0) for row in line["rows"]]}


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def work(sick: int, sound: int, log: Path) -> None:
    """The runs that the log does not have."""
    done = {(line["kind"], line["seed"]) for line in lines(log)}
    todo = [("sound", seed, SOUND[seed % len(SOUND)]) for seed in range(sound)]
    todo += [(kind, seed, made.make) for kind, made in SICK.items() for seed in range(sick)]
    for kind, seed, make in todo:
        if (kind, seed) not in done:
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "seed": seed, **one(make(seed))}) + "\n")


def told(log: Path) -> tuple[str, bool]:
    """The tables, and whether nineteen of twenty sick runs were told and at most one sound run of ten raised alarms."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines(log):
        found.setdefault(line["kind"], []).append(read(line))
    rows = ["| what is wrong | runs | told | recall | first alarm at step | alarms |", "|---|---|---|---|---|---|"]
    every = right = 0
    for kind, made in SICK.items():
        runs = found.get(kind, [])
        first = [min((s for band, s, _ in run["raised"] if band in made.told_by), default=None) for run in runs]
        steps = sorted(step for step in first if step is not None)
        every, right = every + len(runs), right + len(steps)
        bands = Counter(band for run in runs for band in {band for band, *_ in run["raised"]})
        said = ", ".join(f"{band} {n}" for band, n in bands.most_common())
        when = f"{steps[len(steps) // 2]} ({steps[0]}–{steps[-1]})" if steps else "–"
        rows.append(f"| {made.what} | {len(runs)} | {len(steps)} | {_share(len(steps), len(runs))} | {when} | {said} |")
    rows.append(f"| all | {every} | {right} | {_share(right, every)} | | |")
    sound = found.get("sound", [])
    false = [run for run in sound if run["raised"]]
    rows.append(f"\n{len(false)} of {len(sound)} sound runs raised an alarm: {_share(len(false), len(sound))}")
    rows += [f"seed {run['seed']}: {'; '.join(f'{b} at {s}: {text}' for b, s, text in run['raised'])}" for run in false]
    falls = [_fall(run) for run in found.get("fooled", []) if run["raised"]]
    if falls:
        rows.append(
            f"fooled: accuracy had fallen by {sum(falls) / len(falls):.3f} when the first alarm came, by more than "
            f"0.05 in {sum(fall > 0.05 for fall in falls)} of {len(falls)}"
        )
    return "\n".join(rows), right >= 0.95 * every and len(false) <= 0.1 * len(sound)


def _fall(run: Mapping[str, Any]) -> float:
    """Accuracy of the first ten steps minus that of the ten before the first alarm."""
    until = min(step for _, step, _ in run["raised"]) + 1
    before, now = run["accuracy"][:10], run["accuracy"][max(0, until - 10) : until]
    return sum(before) / len(before) - sum(now) / len(now)


def _share(count: int, of: int) -> str:
    if not of:
        return "–"
    low, high = wilson_interval(count / of, of)
    return f"{count / of:.2f} [{low:.2f}, {high:.2f}]"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sick", type=int, default=20, help="runs of each sickness (default: 20)")
    parser.add_argument("--sound", type=int, default=50, help="sound runs (default: 50)")
    parser.add_argument("--log", type=Path, default=ROOT / "runs" / "torture" / "alarms.jsonl")
    parser.add_argument("--told", action="store_true", help="only the tables of what the log has")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    given.log.parent.mkdir(parents=True, exist_ok=True)
    if not given.told:
        work(given.sick, given.sound, given.log)
    table, good = told(given.log)
    print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
