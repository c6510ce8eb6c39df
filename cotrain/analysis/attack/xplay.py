"""``cotrain xplay RUN [RUN …] --every N``: every generator of these runs before every verifier of them, at several
steps and seeds.

A verifier that is good against the generator it was trained with may have learned that generator's mistakes; one that
has moved on may have forgotten earlier ones. The matrix shows it: generators down, verifiers across. All play the same
held-out problems, and every verifier sees the same solutions.

    balanced accuracy, MCC, false-positive and true-positive rate   as in ``metrics/verdicts.py``: what cannot be read
                                                                    is wrong of either class
    best of n        is the solution right that this verifier likes best, of n of one problem; one that cannot be read
                     says one half

Steps are those whose checkpoints the runs still have (``cotrain run --keep-every``), and 0, the start. Written to
``xplay.json`` in the first run. Left out: payoffs over time, which are curves of a run's own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cotrain.analysis.attack.matrix import (
    MatrixCells,
    estimate_json,
    matrix_lines,
    point_names,
    problems_text,
    write_figures,
)
from cotrain.analysis.attack.tables import Attempt, AttemptOutcome
from cotrain.analysis.attack.verifier_attack import judge_attempts, judging_role, solve_one
from cotrain.config.evaluation import held_out
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.notes import CORRECT
from cotrain.core.types import Task
from cotrain.core.verbosity import ProgressPrinter
from cotrain.formats.solutions import Solution
from cotrain.metrics.clusters import Share, Statistic, make_figure
from cotrain.metrics.verdicts import MCC, best_is_right, confusion_counts, rate_statistics
from cotrain.rollout.runner import JointProgress
from cotrain.runs import opening
from cotrain.runs.changes import recipe_to_measure
from cotrain.runs.directory import RunDirectory, resolved_json
from cotrain.storage import checkpoints
from cotrain.storage.kept_work import KeptPart, KeptWork, claim_place, kept_work
from cotrain.trainer.checks import check_measured, check_servers_answer
from cotrain.trainer.evaluation import EVALUATION_STEP, evaluation_seed

FILE = "xplay.json"
FORMAT = 1
PAIR_STATISTICS: dict[str, Statistic] = {**rate_statistics(), "mcc": MCC, "false_positive_rate": Share("fp", "tn fp")}
SHOWN = ("balanced_accuracy", "mcc", "false_positive_rate", "true_positive_rate")
REFERENCE = "outside_judge"  # policy and role of a model that judges next to the verifiers
BEST = Share("best", "problems")
RIGHT = Share("right", "all")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPoint:
    """A run after so many steps."""

    run: str
    seed: int
    step: int
    model: str | None = None  # a verifier from outside, in place of the run's verifier

    def json(self) -> dict[str, Any]:
        return {"model": self.model} if self.model else {"run": self.run, "seed": self.seed, "step": self.step}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSolutions:
    """The solutions of one generator: an attempt for each solution, and whether it is right, None where nobody
    knows."""

    attempts: tuple[Attempt, ...]
    right: tuple[bool | None, ...]


def xplay(
    directories: Sequence[Path | str],
    *,
    every: int,
    role: str = "verifier",
    problems: int = 64,
    n: int = 4,
    split: str = "test",
    device: str = "cpu",
    out: Path | str | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Play all pairs and write ``xplay.json``. ``every``: steps between checkpoints that play; the last one plays too.

    Raises ConfigError for runs on different problems, UnknownName for a role there is not, RunDirectoryError for what
    is no run.
    """
    recipes = {str(directory): recipe_to_measure(directory) for directory in directories}
    first = next(iter(recipes.values()))
    named = {judging_role(recipe, role)[0] for recipe in recipes.values()}
    if len(named) > 1:
        raise ConfigError(
            f"xplay: {role!r} is {' and '.join(sorted(named))} in these runs; name a role of all",
            code="E_ROLE_NOT_IN_ALL_RUNS",
        )
    (role,) = named
    for recipe in recipes.values():
        if "solver" not in recipe.roles:
            raise UnknownName("role (that solves)", "solver", recipe.roles)
    check_same_problems(recipes)
    points = [point for run, recipe in recipes.items() for point in points_of(run, recipe, every)]
    tasks = held_out(first.tasks, split, problems, first.seed)
    place = RunDirectory(out or directories[0]).path
    claim_place(place)
    depends_on = {
        "what": "xplay",
        "points": [opening.point_stamp(point.run, point.step) for point in points],
        "roles": [[role, resolved_json(dict(recipe.roles))] for recipe in recipes.values()],
        "problems": [problems, n, split, resolved_json(first.tasks), first.seed],
    }
    with kept_work(place / FILE, depends_on, say) as work:
        drawn_solutions = []
        pace = ProgressPrinter(len(points) * len(tasks) * n, "{} solutions drawn", say)
        for i, point in enumerate(points):
            part = work.within(f"generator {i}")
            drawn_solutions.append(draw_solutions(point, recipes[point.run], tasks, n, split, device, pace, part))
            say(
                f"{point.run} after step {point.step}: {drawn_solutions[-1].right.count(True)} of "
                f"{len(drawn_solutions[-1].right)} solutions are right"
            )

        verifiers = [(point, recipes[point.run]) for point in points]
        cells, _ = judged_cells(
            verifiers, drawn_solutions, tasks, f"xplay/{{}}/{split}", role, SHOWN, device, say, work
        )
        figures = xplay_figures(
            points,
            drawn_solutions,
            cells,
            every=every,
            role=role,
            split=split,
            n=n,
            problems=len(tasks),
            problems_wanted=problems,
        )
        return write_figures(place, FILE, FORMAT, figures)


def xplay_figures(
    points: Sequence[RunPoint],
    drawn_solutions: Sequence[DrawnSolutions],
    cells: Sequence[Mapping[str, Any]],
    *,
    every: int,
    role: str,
    split: str,
    n: int,
    problems: int,
    problems_wanted: int,
) -> dict[str, Any]:
    """The content of ``xplay.json``. ``problems``: those that the split has of the ``problems_wanted``."""
    return {
        "every": every,
        "role": role,
        "split": split,
        "problems": problems,
        "asked": problems_wanted,
        "n": n,
        "generators": [
            {**p.json(), "pass_at_1": solved_share(d)} for p, d in zip(points, drawn_solutions, strict=True)
        ],
        "verifiers": [point.json() for point in points],
        "cells": list(cells),
    }


def judged_cells(
    verifiers: Sequence[tuple[RunPoint, Recipe]],
    solutions: Sequence[DrawnSolutions],
    tasks: Sequence[Task],
    split: str,
    role: str,
    names: Sequence[str],
    device: str,
    say: Say,
    work: KeptWork | None = None,
) -> tuple[list[dict[str, Any]], list[list[list[AttemptOutcome]]]]:
    """Return the figures called ``names`` of every verifier on every generator's solutions, and the outcomes themselves
    as [verifier][generator]. ``split``: where a generator's problems are, with a field for the generator's place."""
    cells: list[dict[str, Any]] = []
    outcomes: list[list[list[AttemptOutcome]]] = []
    pace = ProgressPrinter(
        len(verifiers) * sum(len(solution.attempts) for solution in solutions), "{} solutions judged", say
    )
    for place, (point, recipe) in enumerate(verifiers):
        trainer = opening.load_trainer(point.run, recipe=recipe, step=point.step, device=device)
        runner = trainer.make_runner(evaluation_seed(verifiers[0][1].seed))
        verifier = REFERENCE if point.model else role
        outcomes.append([])
        for i, mine in enumerate(solutions):
            where = split.format(i)
            kept = None if work is None else work.within(f"verifier {place}")
            said = judge_attempts(runner, verifier, tasks, mine.attempts, split=where, pace=pace, work=kept)
            check_servers_answer("xplay", trainer.policies, trainer.policies.outside_counts())
            outcomes[-1].append(said)
            cells.append({"generator": i, "verifier": place, **pair_figures(mine, said, names)})

        who = point.model or f"verifier of {point.run} after step {point.step}"
        say(f"{who} has judged {len(solutions)} generators")
        trainer.close()
    return sorted(cells, key=lambda one: (one["generator"], one["verifier"])), outcomes


def check_same_problems(recipes: Mapping[str, Recipe]) -> None:
    """Raise ConfigError for a run that has other problems than the first."""
    first, *others = recipes
    for run in others:
        if recipes[run].tasks.describe() != recipes[first].tasks.describe():
            raise ConfigError(
                f"xplay: {run} has other problems than {first}; compare runs on the same ones", code="E_RUNS_DIFFER"
            )


def points_of(run: str, recipe: Recipe, every: int) -> list[RunPoint]:
    """The start, the checkpoints of steps that ``every`` divides, and the last one."""
    stored_steps = checkpoints.checkpoint_steps(RunDirectory.open(run).checkpoints)
    chosen = [0, *(step for step in stored_steps if step and (step % every == 0 or step == stored_steps[-1]))]
    return [RunPoint(run=run, seed=recipe.seed, step=step) for step in chosen]


def draw_solutions(
    point: RunPoint,
    recipe: Recipe,
    tasks: Sequence[Task],
    n: int,
    split: str,
    device: str,
    pace: ProgressPrinter | None = None,
    work: KeptPart | None = None,
) -> DrawnSolutions:
    """``n`` graded solutions of each problem, kept in ``work``; what could not be graded is left out."""
    make = partial(_draw_graded, point, recipe, tasks, n, split, device, pace)
    written = make() if work is None else work.part("solutions", make)
    attempts = []
    right = []
    for problem, role, text, correct in written:
        parsed = recipe.roles[role].parse_reply(text, {})
        solution = parsed if isinstance(parsed, Solution) else None
        shown = text if solution is None else solution.tagged or text
        attempts.append(Attempt(injection=None, problem=problem, text=shown, solution=solution))
        right.append(correct)
    return DrawnSolutions(attempts=tuple(attempts), right=tuple(right))


def _draw_graded(
    point: RunPoint,
    recipe: Recipe,
    tasks: Sequence[Task],
    n: int,
    split: str,
    device: str,
    pace: ProgressPrinter | None,
) -> list[tuple[int, str, str, bool]]:
    """Solutions whose truth is known: the place of the problem, who wrote it, what, and whether it is right."""
    trainer = opening.load_trainer(point.run, recipe=recipe, step=point.step, device=device)
    runner = trainer.make_runner(evaluation_seed(recipe.seed))
    runner.progress = None if pace is None else JointProgress(pace)
    episodes = runner.collect(solve_one, tasks, step=EVALUATION_STEP, split=f"xplay/{split}", group_size=n)
    check_measured(f"problems of {split}", episodes, runner.set_aside)
    check_servers_answer("xplay", trainer.policies, trainer.policies.outside_counts())  # before they are kept
    trainer.close()
    traces = [(episode.task, trace) for episode in episodes for trace in episode.traces]
    graded = [(task, trace, CORRECT.of(trace)) for task, trace in traces]
    return [(task, trace.role, trace.text, correct) for task, trace, correct in graded if correct is not None]


def pair_figures(
    solutions: DrawnSolutions, outcomes: Sequence[AttemptOutcome], names: Sequence[str] = SHOWN
) -> dict[str, Any]:
    """The figures called ``names`` (of ``PAIR_STATISTICS``) of one verifier on one generator's solutions whose truth is
    known."""
    by_problem: dict[int, list[tuple[AttemptOutcome, bool]]] = {}
    for outcome, right in zip(outcomes, solutions.right, strict=True):
        if right is not None:
            by_problem.setdefault(outcome.attempt.problem, []).append((outcome, right))
    counts = {}
    best = {}
    for problem, graded_outcomes in by_problem.items():
        final_verdicts = [(outcome.final, right) for outcome, right in graded_outcomes if not outcome.refused]
        counts[problem] = confusion_counts([(right, final) for final, right in final_verdicts])
        best_right = best_is_right(
            [_outcome_score(outcome) for outcome, _ in graded_outcomes], [right for _, right in graded_outcomes]
        )
        best[problem] = {"best": float(best_right), "problems": 1.0}

    graded = 0
    for pairs in by_problem.values():
        graded += sum(not outcome.refused for outcome, _ in pairs)
    figures: dict[str, Any] = {}
    for name in names:
        figure = make_figure(counts, PAIR_STATISTICS[name], graded) if by_problem else None
        figures[name] = estimate_json(figure)
    figures["best_of_n"] = estimate_json(make_figure(best, BEST, len(best)) if best else None)

    finals = [outcome.final for outcome in outcomes if not outcome.refused]
    figures["unread"] = finals.count(None) / len(finals) if finals else None
    return figures


def _outcome_score(outcome: AttemptOutcome) -> float:
    """How much a verifier likes a solution; it likes none that it is not shown."""
    if outcome.refused:
        return 0.0
    if outcome.score is None:
        return 0.5
    return outcome.score


def solved_share(solutions: DrawnSolutions) -> dict[str, Any] | None:
    """Share of right solutions, of those whose truth is known."""
    counts: dict[int, dict[str, float]] = {}
    for attempt, right in zip(solutions.attempts, solutions.right, strict=True):
        row = counts.setdefault(attempt.problem, {"right": 0.0, "all": 0.0})
        row["right"] += right is True
        row["all"] += right is not None
    return estimate_json(make_figure(counts, RIGHT, sum(row["all"] for row in counts.values())) if counts else None)


# -- printing

MATRICES = {
    "balanced_accuracy": "balanced accuracy",
    "false_positive_rate": "false-positive rate",
    "best_of_n": "accuracy of the best of n",
}


def lines_of(result: dict[str, Any]) -> list[str]:
    """The matrices, generators down and verifiers across."""
    names, legend = point_names(result["verifiers"])
    measured = problems_text(result["problems"], result["asked"])
    explanation = f"{measured}, n = {result['n']}; rows: generator after a step, columns: verifier"

    def cells_of(key: str) -> MatrixCells:
        return {(one["generator"], one["verifier"]): one[key] for one in result["cells"]}

    return [*legend, explanation, *matrix_lines(MATRICES, cells_of, names, names, others=f"verifiers: see {FILE}")]
