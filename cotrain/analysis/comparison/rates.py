"""Each arm at its own best learning rate, from one small grid that is the same for all.

One rate for all arms favours those that it happens to fit. Every arm is trained at every rate, with seeds that the
comparison does not use, until it has spent what the comparison makes equal: a rate that is best for half of that may be
too large for all of it. The rate with the best figure on validation problems at the end is taken, the smaller of
equals. The rate is that of the leading policy; the others keep their ratio to it. A best rate at the edge of the grid
is said to be one: a wider grid may hold a better.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.analysis.comparison.arms import Arm
from cotrain.analysis.comparison.runs import ENDLESS, is_done
from cotrain.analysis.comparison.waves import RunKey, run_at_equal_cost
from cotrain.config.policies import Learning
from cotrain.config.recipe import Recipe
from cotrain.core.errors import UnknownName
from cotrain.metrics.table import goodness, untold_note
from cotrain.reports.compare_table import in_reading_order
from cotrain.runs.directory import RunDirectory
from cotrain.storage.jsonl import read_jsonl

if TYPE_CHECKING:
    from cotrain.analysis.comparison.plan import ComparisonPlan

FIRST_SEED = 1000  # first seed of the runs that choose
PROBLEMS = 256  # on which they are measured
MEASURE_SETTINGS = (  # validation alone
    f"evaluation.curve_tasks={PROBLEMS}",
    "evaluation.tasks=1",
    "evaluation.splits=[]",
)
MEASURE = "measure"  # of a comparison or a study, as errors and notes name it
Command = Callable[[Arm, int, Path, Sequence[str]], list[str]]


def rate_settings(recipe: Recipe, rate: float | None) -> tuple[str, ...]:
    """Settings that give a recipe this learning rate, and its other policies theirs in proportion; None changes
    nothing."""
    if rate is None:
        return ()
    trained = {name: spec for name, spec in recipe.policies.items() if isinstance(spec, Learning)}
    leading = trained[recipe.objectives[recipe.leading_objective].policy].lr
    rates = {name: spec.lr * rate / leading for name, spec in trained.items()}
    return tuple(f"policies.{name}.lr={lr:.6g}" for name, lr in rates.items())


def choose_rates(
    plan: ComparisonPlan,
    arms: Sequence[Arm],
    recipes: Mapping[str, Recipe],
    command: Command,
    workers: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """arm → ``{"measure", "scores": [[rate, figure or None], …], "chosen", "edge"}``. Runs are in ``ARM/rate-R/``."""
    seeds = range(FIRST_SEED, FIRST_SEED + plan.rate_seeds)
    grid = sorted(set(plan.rates))
    places = {
        RunKey(arm.label, seed, rate): plan.out / arm.slug / f"rate-{rate:g}" / f"seed-{seed}"
        for seed in seeds
        for rate in grid
        for arm in arms
    }
    by_label = {arm.label: arm for arm in arms}

    def trial_command(place: RunKey) -> list[str]:
        recipe = recipes[place.label]
        once = () if recipe.evaluation.best else (f"evaluate_every={ENDLESS}",)  # and at the end
        further = (*MEASURE_SETTINGS, *once, *rate_settings(recipe, place.rate))
        return command(by_label[place.label], place.seed, places[place], further)

    def figures_of_run(run: RunKey) -> dict[str, float]:
        return validation_figures_at_end(places[run])

    def check_measured(run: RunKey) -> None:
        if not plan.measure or plan.measure in figures_of_run(run):
            return
        finished = [figures_of_run(other) for other, folder in places.items() if is_done(folder)]
        check_one_has(validation_measure_of(run.label), plan.measure, finished)

    note = untold_note(MEASURE, plan.measure)
    if plan.measure and note:
        say(note)
    run_at_equal_cost(plan, places, trial_command, workers, say, check_measured)
    chosen_by_arm = {}
    for arm in arms:
        ends: dict[float, list[dict[str, float]]] = {}  # rate → the figures of each seed at its end
        for rate in grid:
            ends[rate] = [figures_of_run(RunKey(arm.label, seed, rate)) for seed in seeds]
        seen_figures: set[str] = set()
        for runs in ends.values():
            seen_figures.update(*runs)

        measure = plan.measure or _default_measure(seen_figures)
        scores = [(rate, _mean([run.get(measure) for run in ends[rate]])) for rate in grid]
        defined = [(rate, score) for rate, score in scores if score is not None]
        if not defined:
            raise UnknownName(validation_measure_of(arm.label), measure, seen_figures)
        if len(defined) < len(scores):
            undefined = ", ".join(f"{rate:g}" for rate, score in scores if score is None)
            say(f"{arm.label}: {measure} is undefined at {undefined}, so that is not taken")
        chosen = _best_rate(measure, defined)
        edge = len(grid) > 1 and chosen in (grid[0], grid[-1])
        chosen_by_arm[arm.label] = {"measure": measure, "scores": scores, "chosen": chosen, "edge": edge}
        say(f"{arm.label}: learning rate {chosen:g}" + (", at the edge of the grid" if edge else ""))
    return chosen_by_arm


def _best_rate(measure: str, scores: Sequence[tuple[float, float]]) -> float:
    """The rate with the best score, of equals the lowest. ``scores``: rate and score of each."""

    def rank(pair: tuple[float, float]) -> tuple[float, float]:
        rate, score = pair
        return goodness(measure, score), -rate

    best, _ = max(scores, key=rank)
    return best


def validation_measure_of(label: str) -> str:
    """What the measure of a choice of rates is called in an error."""
    return f"figure of arm {label!r} on validation problems"


def check_figure(kind: str, figure: str, known: Collection[str] | None) -> None:
    """Raise UnknownName for a figure that is not among those that are known; None: they are not known yet."""
    if known is not None and figure not in known:
        raise UnknownName(kind, figure, known)


def check_one_has(kind: str, figure: str, figures_of_runs: Collection[Collection[str]]) -> None:
    """Raise UnknownName for a figure that none of several finished runs has. One run that lacks it says nothing yet: it
    may be undefined there, as where a verifier wrote nothing readable."""
    if len(figures_of_runs) < 2:
        return
    names: set[str] = set()
    for figures in figures_of_runs:
        names.update(figures)
    check_figure(kind, figure, names)


def validation_figures_at_end(folder: Path) -> dict[str, float]:
    """The figures on validation problems of the state that a finished run ended with: the last one, or with
    ``evaluation.best`` the one that its summary says was chosen. Without those that are undefined."""
    rows = [row for row in read_jsonl(folder / "metrics.jsonl") if row.get("kind") == "evaluation"]
    summary: Any = RunDirectory(folder).read("summary.json")
    end = rows[-1]
    if "chosen" in summary:
        end = next(row for row in reversed(rows) if row["step"] + 1 <= summary["chosen"])
    figures = {key.removeprefix("eval/"): value for key, value in end.items() if key.startswith("eval/")}
    return {name: value for name, value in figures.items() if value is not None}


def _default_measure(keys: set[str]) -> str:
    """The first solver's pass@1."""
    return next((key for key in in_reading_order(keys) if key.count("/") == 1 and key.endswith("/pass@1")), "pass@1")


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one of the values is undefined."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if len(defined) == len(values) else None
