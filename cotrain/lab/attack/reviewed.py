"""``cotrain xplay RUN --on-rollouts``: every stored verifier of a run reviews rollouts of the run's own training.

A fixed sample of the solver's solutions is drawn from the ledger at the steps of the stored checkpoints; their truth is
known there. Solutions of different steps stand down, verifiers across: what does the verifier of step i say of the
solutions of step j? A column that sinks towards late steps is a verifier that the generator has learned to get past;
one that sinks towards early steps has forgotten.

Of each pair balanced accuracy, precision, recall and F1 (wrong is the positive class) and the false-positive rate, as
in ``metrics/verdicts.py``: a review that cannot be read is wrong of either class. Intervals are over problems. Written
to ``reviewed.json`` in the run. Left out: solutions that do not parse, which no verifier is shown, and those that could
not be graded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, GOLD, PROBLEM
from cotrain.core.types import Grade, StepVerdicts, Task, Trace
from cotrain.disk.ledger import Ledger
from cotrain.lab.attack.matrix import MatrixCells, matrix_lines, write_figures
from cotrain.lab.attack.play import judging_role
from cotrain.lab.attack.tables import Attempt
from cotrain.lab.attack.xplay import DrawnSolutions, RunPoint, Say, judged_cells, points_of, solved_share
from cotrain.runs.changes import rebuild_recipe
from cotrain.text.parsers import Solution, tagged_solution

FILE, FORMAT = "reviewed.json", 1
SHOWN = ("balanced_accuracy", "mcc", "precision", "recall", "f1", "false_positive_rate")


def review_rollouts(
    directory: Path | str,
    *,
    every: int,
    role: str = "verifier",
    rollouts: int = 128,
    device: str = "cpu",
    out: Path | str | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Let all stored verifiers review and write ``reviewed.json``. ``every``: steps between checkpoints that review;
    ``rollouts``: of each step, at most.

    Raises ConfigError where there is no stored checkpoint or no rollout whose truth is known, UnknownName for a role
    there is not, RunDirectoryError for what is no run.
    """
    recipe = rebuild_recipe(directory)
    role, _ = judging_role(recipe, role)
    points = points_of(str(directory), recipe, every)
    if len(points) == 1:
        raise ConfigError(
            f"xplay: {directory} has no checkpoint, so no verifier but that of the start; make some with "
            "`cotrain run --checkpoint-every N --keep-every N`"
        )
    if len(points) == 2:
        say(f"{directory} has the checkpoint of step {points[1].step} alone; `cotrain run --keep-every N` keeps more")
    tasks: list[Task] = []
    samples = [
        (step, drawn)
        for step in played_steps(directory, points)
        if (drawn := sample_solutions(directory, step, rollouts, tasks))
    ]
    if not samples:
        raise ConfigError(f"xplay: the ledger of {directory} has no readable solution of a solver whose truth is known")
    for step, drawn in samples:
        say(f"step {step + 1}: {len(drawn.right)} solutions, {sum(drawn.right)} are right")
    judges, all_drawn = [(point, recipe) for point in points], [drawn for _, drawn in samples]
    cells = judged_cells(judges, all_drawn, tasks, "reviewed/{}", role, SHOWN, device, say)
    figures = {
        "every": every,
        "role": role,
        "rollouts": rollouts,
        "generators": [
            {
                "run": str(directory),
                "seed": recipe.seed,
                "step": step,
                "n": len(drawn.right),
                "pass_at_1": solved_share(drawn),
            }
            for step, drawn in samples
        ],
        "verifiers": [point.json() for point in points],
        "cells": [{**cell, "n": len(all_drawn[cell["generator"]].right)} for cell in cells],
    }
    return write_figures(out or directory, FILE, FORMAT, figures)


def played_steps(directory: Path | str, points: Sequence[RunPoint]) -> list[int]:
    """For each checkpoint the recorded step that was played with its weights; of the last one the last step."""
    recorded = Ledger(Path(directory) / "episodes").steps()
    if not recorded:
        return []
    return sorted({next((step for step in recorded if step >= point.step), recorded[-1]) for point in points})


def sample_solutions(directory: Path | str, step: int, rollouts: int, tasks: list[Task]) -> DrawnSolutions | None:
    """Solutions of one step, the same ones always, their problems added to ``tasks``; None where there is none."""
    solutions: list[tuple[Trace, Solution, bool, str]] = []
    for episode in Ledger(Path(directory) / "episodes").read(step):
        for trace in episode.traces:
            right, problem = CORRECT.of(trace), PROBLEM.of(trace)
            if trace.parent is not None or right is None or problem is None:
                continue
            solution = tagged_solution(trace.text)
            if isinstance(solution, Solution):
                solutions.append((trace, solution, right, str(problem)))
    if len(solutions) > rollouts:
        places = sorted(rng_of("reviewed", step).sample(range(len(solutions)), rollouts))
        solutions = [solutions[place] for place in places]
    attempts, rights, task_numbers = [], [], dict[tuple[int, str], int]()
    for trace, solution, right, problem in solutions:
        key = (trace.address.task, problem)
        if key not in task_numbers:
            task_numbers[key] = len(tasks)
            gold = GOLD.of(trace)
            tasks.append(
                Task(id="", prompt=problem, answer=gold, solution=None, difficulty=0.0, grader=_ALREADY_GRADED)
            )
        attempts.append(Attempt(injection=None, problem=task_numbers[key], text=trace.text, solution=solution))
        rights.append(right)
    return DrawnSolutions(attempts=tuple(attempts), right=tuple(rights)) if attempts else None


class _AlreadyGraded:
    """The ledger has graded these solutions; nobody asks again."""

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=None, reason="graded in training")

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


_ALREADY_GRADED = _AlreadyGraded()


# -- printing

MATRICES = {
    "balanced_accuracy": "balanced accuracy",
    "precision": "precision on wrong ones",
    "recall": "recall on wrong ones",
}


def lines_of(found: dict[str, Any]) -> list[str]:
    """The matrices, rollouts of a step down and verifiers across."""
    rows = [f"{row['step'] + 1} n {row['n']}" for row in found["generators"]]
    columns = [str(one["step"]) for one in found["verifiers"]]

    def cells_of(key: str) -> MatrixCells:
        return {(one["generator"], one["verifier"]): one[key] for one in found["cells"]}

    explanation = "rows: rollouts of a step and how many; columns: the verifier after a step"
    return [explanation, *matrix_lines(MATRICES, cells_of, rows, columns, others=f"verifiers: see {FILE}", margin=14)]
