"""``ComparisonPlan``: a comparison, before it is run (``compare.py``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.analysis.comparison.arms import Arm, recipe_of_arm
from cotrain.analysis.comparison.rates import MEASURE, check_figure, validation_measure_of
from cotrain.analysis.comparison.runs import ENDLESS
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.data.sources import problem_source
from cotrain.metrics.table import check_has_best_value
from cotrain.reports.compare_words import EQUAL
from cotrain.runs.figures import validation_figure_names

TEST_PROBLEMS = 256  # problems of each seed, where nothing else is set

MOST_COUNTS = {  # field → the largest number that it takes; each is at least 1
    "seeds": 10_000,
    "batches": 10_000_000,
    "rate_seeds": 10_000,
    "workers": 10_000,
    "threads": 10_000,
    "checkpoint_every": 10_000_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """A comparison, before it is run."""

    arms: tuple[Arm, ...]
    seeds: int  # runs of each arm
    out: Path
    batches: int = 60  # steps over which decays run, and of every run that nothing else ends
    equal: str = "flops"  # one of EQUAL
    budget: float | None = None  # amount of ``equal``; None: what the dearest arm spends in ``batches``
    first_seed: int = 0  # seeds are first_seed … first_seed + seeds − 1; other seeds have other test problems
    rates: tuple[float, ...] = ()  # learning rates, of which each arm takes its best; (): those of the recipes
    rate_seeds: int = 1  # runs of each arm at each rate
    measure: str = ""  # figure by which rates are chosen; "": the first solver's pass@1
    evaluate_every: int = 10
    overrides: tuple[str, ...] = ()  # dotted.path=value, for every arm
    # The problems, as the flags of ``cotrain run`` name them.
    tasks: str | None = None
    data: str | None = None
    operations: tuple[int, int] | None = None
    lenient: bool = False
    # How every arm asks and reads its roles, as the flags of ``cotrain compare`` say it.
    answer_format: str | None = None
    prompt: str | None = None
    steps_as: str | None = None
    verdict: str | None = None
    verifier_prompt: str | None = None
    # Where and how runs are made, which changes no figure.
    device: str = "auto"
    threads: int = 1  # CPU threads of each run
    checkpoint_every: int = 25  # steps of a run between its checkpoints
    workers: int | None = None  # runs at a time; None: one a core
    changed_code: bool = False  # go on, and begin further runs, though the user's code has changed

    def __post_init__(self) -> None:
        for name, most in MOST_COUNTS.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"compare: {name} is {value}, expected at least 1", code="E_COMPARISON_RANGE")
            if value is not None and value > most:
                raise ConfigError(f"compare: {name} is {value}, expected at most {most}", code="E_COMPARISON_RANGE")
        for arm in self.arms:
            if self.rates and "lr" in arm.arguments:
                raise ConfigError(
                    f"arm {arm.label!r}: lr is chosen from rates; leave it out of the arm, or leave out rates",
                    code="E_LR_AND_RATES",
                )
        if self.first_seed < 0:
            raise ConfigError(
                f"compare: first_seed is {self.first_seed}, expected at least 0", code="E_COMPARISON_RANGE"
            )
        for name, numbers in (("budget", (self.budget,)), ("rates", self.rates)):
            if any(x is not None and not 0.0 < x < math.inf for x in numbers):
                raise ConfigError(f"compare: {name} is {numbers}, expected numbers above 0", code="E_COMPARISON_RANGE")
        if self.equal not in EQUAL:
            raise UnknownName("cost to be made equal", self.equal, EQUAL)
        if self.equal in ("batches", "updates") and self.budget not in (None, self.batches):
            raise ConfigError(
                f"compare: budget {self.budget} and batches {self.batches} are two lengths; with equal={self.equal} "
                "give one of them",
                code="E_TWO_LENGTHS",
            )
        if self.lenient and self.data is None:
            raise ConfigError(
                "compare: --lenient is about the rows of --data FILE; leave it out", code="E_LENIENT_WITHOUT_DATA"
            )

    @property
    def each_seed(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def common_overrides(self) -> tuple[str, ...]:
        """The settings of every arm, the number of test problems among them."""
        return (f"evaluation.tasks={TEST_PROBLEMS}", *self.overrides)

    @property
    def run_overrides(self) -> tuple[str, ...]:
        """The same with the length of a run of the first wave: the second one, if there is any, makes runs of cheaper
        arms longer (``waves.py``)."""
        steps = int(self.run_ends["steps"])
        return (f"evaluate_every={self.evaluate_every}", *self.common_overrides, f"steps={steps}")

    @property
    def problem_arguments(self) -> dict[str, Any]:
        """The settings of the problems, the same for every arm."""
        return {name: getattr(self, name) for name in ("tasks", "data", "operations", "lenient")}

    def task_argument(self) -> dict[str, Any]:
        """The argument of a recipe that holds these problems; none where each arm has its own."""
        if not any(self.problem_arguments.values()):
            return {}
        labelled = None
        for override in self.overrides:
            name, _, value = override.partition("=")  # one without "=" is refused with the arms
            if name == "labelled":
                labelled = value
        return {"tasks": problem_source(**self.problem_arguments, labelled=labelled)}

    def make_recipes(self, arms: Sequence[Arm]) -> dict[str, Recipe]:
        """Return the recipe that each of these arms will run. Raises UserError for what no run could begin with, and
        for a measure by which no rate could be chosen."""
        source = self.task_argument()
        recipes = {}
        for arm in arms:
            has_runs = (self.out / arm.slug).exists()
            recipes[arm.label] = recipe_of_arm(arm, source, self.run_overrides, begun=has_runs)
        _check_alike(recipes)
        if self.rates and self.measure:
            for label, recipe in recipes.items():
                check_figure(validation_measure_of(label), self.measure, validation_figure_names(recipe))
            check_has_best_value(MEASURE, self.measure)
        return recipes

    @property
    def run_ends(self) -> dict[str, float]:
        """The budgets that end a run of the first wave."""
        if self.equal == "updates":
            return {"steps": ENDLESS, "updates": self.batches}
        if self.equal == "batches" or self.budget is None:
            return {"steps": self.batches}
        return self.ends_at(self.budget)

    def ends_at(self, budget: float) -> dict[str, float]:
        """The budgets that end a run at ``budget``; tokens are a whole number."""
        amount = round(budget) if self.equal == "tokens" else budget
        return {"steps": ENDLESS, self.equal: amount}


def _check_alike(recipes: Mapping[str, Recipe]) -> None:
    """Raise ConfigError for arms that are not measured alike, as their figures could not be compared."""
    sizes = {label: (r.evaluation.tasks, r.evaluation.group_size) for label, r in recipes.items()}
    (first, first_size), *others = sizes.items()
    for label, size in others:
        if size != first_size:
            raise ConfigError(
                f"compare: {first!r} is tested on {first_size[0]} problems with {first_size[1]} answers each, "
                f"{label!r} on {size[0]} with {size[1]}; expected the same; add --set evaluation.tasks=N and --set "
                "evaluation.group_size=N",
                code="E_ARMS_TESTED_UNLIKE",
            )
