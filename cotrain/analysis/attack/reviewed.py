"""``cotrain xplay RUN --on-rollouts``: every stored verifier of a run reviews rollouts of the run's own training.

A fixed sample of the solver's solutions is drawn from the ledger at the steps of the stored checkpoints; their truth is
known there. Solutions of different steps stand down, verifiers across: what does the verifier of step i say of the
solutions of step j? A column that sinks towards late steps is a verifier that the generator has learned to get past;
one that sinks towards early steps has forgotten.

Of each pair balanced accuracy, precision, recall and F1 (wrong is the positive class) and the false-positive rate, as
in ``metrics/verdicts.py``: a review that cannot be read is wrong of either class. Intervals are over problems. Written
to ``reviewed.json`` in the run. Left out: solutions that do not parse, which no verifier is shown, and those that could
not be graded.

A reference is a model from outside that reviews the same solutions, those of problems without an answer too. Of the
verifier of a step and each reference ``PAIR_FIGURES`` are written, which need no truth, over the
solutions that both could judge; and the same of each verifier and the truth, where it is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from cotrain.analysis.attack.matrix import LETTERS, MatrixCells, estimate_json, matrix_lines, write_figures
from cotrain.analysis.attack.tables import Attempt, AttemptOutcome
from cotrain.analysis.attack.verifier_attack import judging_role
from cotrain.analysis.attack.xplay import (
    REFERENCE,
    DrawnSolutions,
    RunPoint,
    Say,
    judged_cells,
    points_of,
    solved_share,
)
from cotrain.config.policies import Program, frozen
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, GOLD, PROBLEM
from cotrain.core.seeding import rng_of
from cotrain.core.types import NoGrader, Task, Trace
from cotrain.core.verbosity import count_of
from cotrain.formats.solutions import Solution, tagged_solution
from cotrain.metrics.clusters import Array, Bounded, Share, Sums, make_figure, ratio
from cotrain.models.load import model_directory
from cotrain.rollout import common_roles
from cotrain.rollout.role import Role
from cotrain.runs import opening
from cotrain.runs.changes import recipe_to_measure
from cotrain.runs.directory import RunDirectory, resolved_json
from cotrain.storage.kept_work import claim_place, kept_work, stamp_of
from cotrain.storage.ledger import Ledger

FILE = "reviewed.json"
FORMAT = 1
_ALREADY_GRADED = NoGrader(reason="graded in training")  # the ledger has the grades; nobody asks again
SHOWN = ("balanced_accuracy", "mcc", "error_precision", "error_recall", "error_f1", "false_positive_rate")


def review_rollouts(
    directory: Path | str,
    *,
    every: int,
    role: str = "verifier",
    rollouts: int = 128,
    references: Sequence[str] = (),
    device: str = "cpu",
    out: Path | str | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Let all stored verifiers review and write ``reviewed.json``.

    Args:
        every: steps between checkpoints that review.
        role: the verifier's role, policy or objective.
        rollouts: most rollouts of each step that are reviewed.
        references: models that review as well, as ``frozen`` takes them.

    Raises ConfigError where there is no stored checkpoint or no rollout whose truth is known (with references: no
    rollout), UnknownName for a role there is not, RunDirectoryError for what is no run, ModelError for a reference that
    cannot be loaded.
    """
    recipe = recipe_to_measure(directory)
    role, verifier = judging_role(recipe, role)
    place = RunDirectory(out or directory).path
    claim_place(place)
    points = _crossed_points(directory, recipe, every, say)
    verifiers = [(replace(points[0], model=model), with_reference(recipe, verifier, model)) for model in references]
    verifiers += [(point, recipe) for point in points]

    tasks: list[Task] = []
    point_of_step = played_steps(directory, [point for point, _ in verifiers])
    by_step: dict[int, DrawnSolutions] = {}
    for step in point_of_step:
        solutions = sample_solutions(directory, step, rollouts, tasks, recipe.roles, unknown=bool(references))
        if solutions:
            by_step[step] = solutions
    _say_drawn(directory, by_step, say, with_unknown=bool(references))

    depends_on = {
        "what": "reviewed",
        "points": [[opening.point_stamp(point.run, point.step), point.model] for point, _ in verifiers],
        "models": [stamp_of(model) for model in references],
        "roles": [role, resolved_json(dict(recipe.roles))],
        "solutions": [[step, [attempt.text for attempt in drawn.attempts]] for step, drawn in by_step.items()],
    }
    all_solutions = list(by_step.values())
    with kept_work(place / FILE, depends_on, say) as work:
        cells, outcomes = judged_cells(verifiers, all_solutions, tasks, "reviewed/{}", role, SHOWN, device, say, work)
        pairs: list[dict[str, Any]] = []
        if references:
            own_places = [point_of_step[step] for step in by_step]
            pairs = compare_verifiers(all_solutions, outcomes, own_places, range(len(references)))
        figures = {
            "every": every,
            "role": role,
            "rollouts": rollouts,
            "generators": [_generator_json(directory, recipe, step, drawn) for step, drawn in by_step.items()],
            "verifiers": [point.json() for point, _ in verifiers],
            "cells": [{**cell, "n": len(all_solutions[cell["generator"]].right)} for cell in cells],
            "pairs": pairs,
        }
        return write_figures(place, FILE, FORMAT, figures)


def _crossed_points(directory: Path | str, recipe: Recipe, every: int, say: Say) -> list[RunPoint]:
    """The start and the stored checkpoints, whose verifiers review. Raises ConfigError where there is no checkpoint."""
    points = points_of(str(directory), recipe, every)
    if len(points) == 1:
        raise ConfigError(
            f"xplay: {directory} has no checkpoint, so no verifier but that of the start; make some with "
            "`cotrain run --checkpoint-every N --keep-every N`",
            code="E_NO_CHECKPOINT_TO_CROSS",
        )
    if len(points) == 2:
        say(f"{directory} has the checkpoint of step {points[1].step} alone; `cotrain run --keep-every N` keeps more")
    return points


def _say_drawn(directory: Path | str, by_step: Mapping[int, DrawnSolutions], say: Say, *, with_unknown: bool) -> None:
    """Say how many solutions of each step are reviewed. Raises ConfigError where there are none. ``with_unknown``:
    those whose truth is not known were drawn, too."""
    if not by_step:
        known = "" if with_unknown else " whose truth is known"
        raise ConfigError(
            f"xplay: the ledger of {directory} has no readable solution of a solver{known}",
            code="E_NO_SOLUTION_IN_LEDGER",
        )
    for step, solutions in by_step.items():
        drawn = count_of(len(solutions.right), "solution")
        n_unknown = solutions.right.count(None)
        unknown = f", of {n_unknown} nobody knows" if n_unknown else ""
        say(f"step {step + 1}: {drawn}, {solutions.right.count(True)} are right{unknown}")


def _generator_json(directory: Path | str, recipe: Recipe, step: int, solutions: DrawnSolutions) -> dict[str, Any]:
    return {
        "run": str(directory),
        "seed": recipe.seed,
        "step": step,
        "n": len(solutions.right),
        "pass_at_1": solved_share(solutions),
    }


def with_reference(recipe: Recipe, verifier: Role, model: str) -> Recipe:
    """The recipe with a verifier from outside. It is asked as the run's verifier is, if both know the package's short
    formats or neither does; else as recipes ask a verifier that begins with this model. Raises ModelError for one that
    is not there."""
    own = recipe.policies[verifier.policy]
    reference = frozen(model)
    if reference.head:
        model_directory(model)
    role = replace(verifier, policy=REFERENCE)
    if isinstance(own, Program) or common_roles.is_terse(own.model) != common_roles.is_terse(model):
        role = common_roles.verifier(REFERENCE, model, temperature=verifier.sampling.temperature)
    return replace(recipe, policies={**recipe.policies, REFERENCE: reference}, roles={**recipe.roles, REFERENCE: role})


def compare_verifiers(
    solutions: Sequence[DrawnSolutions],
    outcomes: Sequence[Sequence[Sequence[AttemptOutcome]]],
    own_places: Sequence[int],
    references: Sequence[int],
) -> list[dict[str, Any]]:
    """All pairs of a step's own verifier, the references and the truth, which is nobody's place (None), for each step.

    ``outcomes``: [verifier][step]; ``own_places``: the verifier of each step.
    """
    pairs = []
    for i, (drawn, own) in enumerate(zip(solutions, own_places, strict=True)):
        verdicts: dict[int | None, Sequence[bool | None]] = {}
        for place in (own, *references):
            verdicts[place] = [outcome.final for outcome in outcomes[place][i]]
        verdicts[None] = drawn.right
        for verifier, reference in combinations(verdicts, 2):
            by_problem: dict[int, list[tuple[bool | None, bool | None]]] = {}
            for attempt, first, second in zip(drawn.attempts, verdicts[verifier], verdicts[reference], strict=True):
                by_problem.setdefault(attempt.problem, []).append((first, second))
            counts = {problem: pair_counts(said) for problem, said in by_problem.items()}
            n = int(sum(sum(row.values()) for row in counts.values()))
            figures = {name: estimate_json(make_figure(counts, one, n)) for name, one in PAIR_FIGURES.items()}
            pairs.append({"generator": i, "verifier": verifier, "reference": reference, **figures, "n": n})
    return pairs


# -- Two verifiers on the same solutions: how much kinder is the first, and do they agree? The second may be the truth.


def pair_counts(pairs: Sequence[tuple[bool | None, bool | None]]) -> dict[str, float]:
    """Counts of (what the first verifier says, what the second one says), True for right: how many solutions ``both``
    call right, the ``first`` or the ``second`` alone, or ``neither``. None, nothing readable, leaves a solution out."""
    counts = dict.fromkeys(PAIR_CELLS, 0.0)
    for first, second in pairs:
        if first is None or second is None:
            continue
        if first and second:
            counts["both"] += 1.0
        elif first:
            counts["first"] += 1.0
        elif second:
            counts["second"] += 1.0
        else:
            counts["neither"] += 1.0
    return counts


def called_right_gap(sums: Sums) -> Array:
    """The share that the first verifier calls right minus the share that the second one does."""
    return ratio(sums["first"] - sums["second"], np.sum([sums[cell] for cell in PAIR_CELLS], axis=0))


def cohen_kappa(sums: Sums) -> Array:
    """Cohen's κ (Cohen 1960): agreement beyond what the two shares of "right" give by chance, 0 for chance and 1 for
    full agreement; NaN where chance alone agrees always."""
    n = np.sum([sums[cell] for cell in PAIR_CELLS], axis=0)
    first = sums["both"] + sums["first"]
    second = sums["both"] + sums["second"]
    agree = sums["both"] + sums["neither"]
    chance = first * second + (n - first) * (n - second)
    return ratio(n * agree - chance, n * n - chance)


PAIR_CELLS = ("both", "first", "second", "neither")
PAIR_FIGURES: Mapping[str, Share | Bounded] = {
    "called_right": Share("both first", " ".join(PAIR_CELLS)),
    "reference_called_right": Share("both second", " ".join(PAIR_CELLS)),
    "gap": Bounded(called_right_gap, -1.0, 1.0, frozenset(PAIR_CELLS)),
    "agreement": Share("both neither", " ".join(PAIR_CELLS)),
    "kappa": Bounded(cohen_kappa, -1.0, 1.0, frozenset(PAIR_CELLS)),
}


def played_steps(directory: Path | str, points: Sequence[RunPoint]) -> dict[int, int]:
    """Recorded steps whose rollouts were sampled with the weights of a checkpoint, and the place of that checkpoint;
    for the last one the last step is."""
    recorded = Ledger(Path(directory) / "episodes").steps()
    point_of_step: dict[int, int] = {}
    for place, point in enumerate(points):
        if recorded and not point.model:
            point_of_step.setdefault(next((step for step in recorded if step >= point.step), recorded[-1]), place)
    return point_of_step


def sample_solutions(
    directory: Path | str, step: int, rollouts: int, tasks: list[Task], roles: Mapping[str, Role], unknown: bool = False
) -> DrawnSolutions | None:
    """Solutions of one step, the same ones always, their problems added to ``tasks``; None where there is none.
    ``unknown``: those of problems without an answer too."""
    solutions: list[tuple[Trace, Solution, bool | None, str]] = []
    for episode in Ledger(Path(directory) / "episodes").read(step):
        for trace in episode.traces:
            right = CORRECT.of(trace)
            problem = PROBLEM.of(trace)
            if trace.parent is not None or problem is None:
                continue
            if right is None and (trace.failure is not None or not unknown):
                continue
            free = trace.role in roles and roles[trace.role].is_free_form
            solution = roles[trace.role].parse_reply(trace.text, {}) if free else tagged_solution(trace.text)
            if isinstance(solution, Solution):
                solutions.append((trace, solution, right, str(problem)))

    if len(solutions) > rollouts:
        places = sorted(rng_of("reviewed", step).sample(range(len(solutions)), rollouts))
        solutions = [solutions[place] for place in places]
    attempts = []
    rights = []
    task_numbers = dict[tuple[int, str], int]()
    for trace, solution, right, problem in solutions:
        key = (trace.address.task, problem)
        if key not in task_numbers:
            task_numbers[key] = len(tasks)
            gold = GOLD.of(trace)
            tasks.append(Task(id="", prompt=problem, gold=gold, solution=None, difficulty=0.0, grader=_ALREADY_GRADED))
        text = solution.tagged or trace.text
        attempts.append(Attempt(injection=None, problem=task_numbers[key], text=text, solution=solution))
        rights.append(right)
    return DrawnSolutions(attempts=tuple(attempts), right=tuple(rights)) if attempts else None


# -- printing

MATRICES = {
    "balanced_accuracy": "balanced accuracy",
    "error_precision": "precision on wrong ones",
    "error_recall": "recall on wrong ones",
}
COLUMNS = {"called_right": "first", "reference_called_right": "second", "gap": "gap", "low": "low", "high": "high"}
COLUMNS |= {"agreement": "agree", "kappa": "kappa"}


def lines_of(result: dict[str, Any]) -> list[str]:
    """The matrices, rollouts of a step down and verifiers across."""
    rows = [f"{row['step'] + 1} n {row['n']}" for row in result["generators"]]
    models = [one["model"] for one in result["verifiers"] if "model" in one]
    columns = [*LETTERS[: len(models)], *(str(one["step"]) for one in result["verifiers"][len(models) :])]

    def cells_of(key: str) -> MatrixCells:
        return {(one["generator"], one["verifier"]): one[key] for one in result["cells"]}

    explanation = "rows: rollouts of a step and how many; columns: the verifier after a step"
    lines = [explanation, *(f"{letter}: {model}" for letter, model in zip(LETTERS, models, strict=False))]
    lines += matrix_lines(MATRICES, cells_of, rows, columns, others=f"verifiers: see {FILE}", margin=14)
    names = {place: columns[place] for place in range(len(models))} | {None: "the truth"}
    pairs: dict[str, dict[tuple[int, int], Any]] = {}
    for one in result["pairs"]:
        first = names.get(one["verifier"], "the verifier of the step")
        title = f"{first} (first) and {names[one['reference']]} (second)"
        gap = one["gap"] or {"low": None, "high": None}
        figures = one | {end: {"value": gap[end]} for end in ("low", "high")}
        table = pairs.setdefault(title, {(i, j): None for i in range(len(rows)) for j in range(len(COLUMNS))})
        table |= {(one["generator"], j): figures[key] for j, key in enumerate(COLUMNS)}

    titles = {title: title for title in pairs}
    return lines + matrix_lines(titles, pairs.__getitem__, rows, [*COLUMNS.values()], others="", margin=14)
