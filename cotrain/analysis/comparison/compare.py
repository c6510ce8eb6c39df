"""Compare recipes fairly: the same seeds and problems in every arm, one cost that is equal, three others beside it.

Every (arm, seed) is an ordinary run in a process of its own, on one thread where nothing else is said, as many at a
time as there are cores; a run that was interrupted is resumed, a finished one is not repeated. Each seed is tested on
held-out problems of its own, the same ones in every arm (``trainer/evaluation.py``).

Four costs are measured: batches of problems (each step counts, also one from which nothing could be learned), sampled
tokens, floating-point operations (``trainer/flops.py``) and seconds of training. One of them is made equal::

    --equal batches              every run lasts so many steps
    --equal updates              every run lasts until its leading policy has had ``--batches`` batches to learn from,
                                 whatever others learned before or in between
    --equal flops --budget 1e15  every run ends with the step in which it has spent so many
    --equal flops                every run lasts ``--batches``; the arm that has then spent most is the dearest, and the
                                 runs of the others go on until they have spent as much as its runs on average

Decays run over ``--batches`` in all of them. Seconds are those of the machine at the time: they are equal by the clock,
and no two comparisons give the same.

With ``rates`` every arm first finds its own learning rate: the same grid for all, seeds of their own, chosen on
validation problems at the same cost (``rates.py``).
"""

from __future__ import annotations

import gzip
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from cotrain.analysis.comparison import asking
from cotrain.analysis.comparison.arms import Arm, distinct_arms, recipe_of_arm, shown_settings
from cotrain.analysis.comparison.rates import choose_rates, rate_settings
from cotrain.analysis.comparison.runs import ENDLESS, collect_run, run_command
from cotrain.analysis.comparison.waves import RunKey, run_at_equal_cost
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.input_files import read_regular
from cotrain.core.threads import usable_cores
from cotrain.data.sources import problem_source
from cotrain.reports.compare_markdown import comparison_markdown
from cotrain.reports.compare_reach import find_levels, levels_json
from cotrain.reports.compare_svg import curves_svg, differences_svg
from cotrain.reports.compare_table import comparison_table, runs_of
from cotrain.reports.compare_words import AXES, EQUAL
from cotrain.reports.comparison_report import write_comparison_page
from cotrain.reports.training_svg import training_svg
from cotrain.runs.choose_formats import AnswerFormat
from cotrain.runs.code_record import refuse_changed_code
from cotrain.storage.file_ops import DiskError, replace_file

TEST_PROBLEMS = 256  # of each seed, where nothing else is set


MOST_COUNTS = {
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
    budget: float | None = None  # of ``equal``; None: what the dearest arm spends in ``batches``
    first_seed: int = 0  # seeds are first_seed … first_seed + seeds − 1; other seeds have other test problems
    rates: tuple[float, ...] = ()  # learning rates, of which each arm takes its best; (): those of the recipes
    rate_seeds: int = 1  # runs of each arm at each rate
    measure: str = ""  # figure by which rates are chosen; "": the first solver's pass@1
    evaluate_every: int = 10
    settings: tuple[str, ...] = ()  # dotted.path=value, for every arm
    tasks: str | None = None  # as ``cotrain run`` has these four
    data: str | None = None
    operations: tuple[int, int] | None = None
    lenient: bool = False
    answer: str | None = None  # this and the next four, for every arm: as of ``AnswerFormat``
    prompt: str | None = None
    steps_as: str | None = None
    verdict: str | None = None
    verifier_prompt: str | None = None
    device: str = "auto"
    threads: int = 1  # of each run
    checkpoint_every: int = 25  # steps of a run between its checkpoints
    workers: int | None = None  # runs at a time; None: one a core
    changed_code: bool = False  # whether runs go on, and others begin beside them, with other code than there was

    def __post_init__(self) -> None:
        for name, most in MOST_COUNTS.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"compare: {name} is {value}, expected at least 1")
            if value is not None and value > most:
                raise ConfigError(f"compare: {name} is {value}, expected at most {most}")
        fixed = [arm.label for arm in self.arms if "lr" in arm.arguments] if self.rates else []
        if fixed:
            raise ConfigError(f"arm {fixed[0]!r}: lr is chosen from rates; leave it out of the arm, or leave out rates")
        if self.first_seed < 0:
            raise ConfigError(f"compare: first_seed is {self.first_seed}, expected at least 0")
        for name, numbers in (("budget", (self.budget,)), ("rates", self.rates)):
            if any(x is not None and not 0.0 < x < math.inf for x in numbers):
                raise ConfigError(f"compare: {name} is {numbers}, expected numbers above 0")
        if self.equal not in EQUAL:
            raise UnknownName("cost to be made equal", self.equal, EQUAL)
        if self.equal in ("batches", "updates") and self.budget not in (None, self.batches):
            raise ConfigError(
                f"compare: budget {self.budget} and batches {self.batches} are two lengths; with equal={self.equal} "
                "give one of them"
            )
        if self.lenient and self.data is None:
            raise ConfigError("compare: --lenient is about the rows of --data FILE; leave it out")

    @property
    def each_seed(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def common_settings(self) -> tuple[str, ...]:
        """The settings of every arm, the number of test problems among them."""
        return (f"evaluation.tasks={TEST_PROBLEMS}", *self.settings)

    @property
    def run_settings(self) -> tuple[str, ...]:
        """The same with the length of a run of the first wave."""
        return (f"evaluate_every={self.evaluate_every}", *self.common_settings, f"steps={int(self.run_ends['steps'])}")

    @property
    def problem_arguments(self) -> dict[str, Any]:
        """What was said about the problems, for every arm."""
        return {name: getattr(self, name) for name in ("tasks", "data", "operations", "lenient")}

    def task_argument(self) -> dict[str, Any]:
        """The argument of a recipe that holds these problems; none where each arm has its own."""
        if not any(self.problem_arguments.values()):
            return {}
        labelled = dict(setting.split("=", 1) for setting in self.settings).get("labelled")
        return {"tasks": problem_source(**self.problem_arguments, labelled=labelled)}

    def make_recipes(self, arms: Sequence[Arm]) -> dict[str, Recipe]:
        """What each of these arms will run. Raises UserError for what no run could begin with."""
        source, begun = self.task_argument(), {arm.label: (self.out / arm.slug).exists() for arm in arms}
        recipes = {arm.label: recipe_of_arm(arm, source, self.run_settings, begun=begun[arm.label]) for arm in arms}
        _refuse_unlike(recipes)
        return recipes

    @property
    def run_ends(self) -> dict[str, float]:
        """What ends a run of the first wave."""
        if self.equal == "updates":
            return {"steps": ENDLESS, "updates": self.batches}
        if self.equal == "batches" or self.budget is None:
            return {"steps": self.batches}
        return self.ends_at(self.budget)

    def ends_at(self, budget: float) -> dict[str, float]:
        """What ends a run at a budget: tokens are whole."""
        return {"steps": ENDLESS, self.equal: round(budget) if self.equal == "tokens" else budget}


def compare(plan: ComparisonPlan, *, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run every arm with every seed and write ``compare.json``, ``report.html``, ``table.md`` and the curves as SVG.

    Returns the content of the first. Raises ConfigError before anything is run, and Stopped on a signal, when every
    run has been stopped."""
    arms = distinct_arms(plan.arms)
    if not plan.changed_code:
        _refuse_changed_code(plan, arms)
    recipes, task_flags, source = plan.make_recipes(arms), plan.problem_arguments, plan.task_argument()
    how = AnswerFormat(**{field.name: getattr(plan, field.name) for field in fields(AnswerFormat)})
    begun_labels = {arm.label for arm in arms if (plan.out / arm.slug).exists()}
    answers = asking.answer_settings(recipes, how, out=plan.out, device=plan.device, say=say, begun=begun_labels)
    claim_directory(plan, arms)
    say(f"watch it in a browser: cotrain view {shlex.quote(str(plan.out))}")
    asking.save_answers(plan.out, answers)
    count = plan.workers or usable_cores()
    say(
        f"{len(arms)} {'arm' if len(arms) == 1 else 'arms'}, {plan.seeds} {'seed' if plan.seeds == 1 else 'seeds'}, "
        f"{count} {'run' if count == 1 else 'runs'} at a time; what each says is in {plan.out}/ARM/seed-N.log"
    )

    def build_command(arm: Arm, seed: int, folder: Path, further: Sequence[str]) -> list[str]:
        ends = plan.run_ends
        if plan.equal == "updates":  # so many steps it will be, and what is left can be told
            ends["steps"] = replace(recipes[arm.label], updates=plan.batches).max_steps
        return run_command(
            arm,
            folder,
            seed=seed,
            ends={**ends, "horizon": plan.batches},
            evaluate_every=plan.evaluate_every,
            settings=(*plan.common_settings, *answers[arm.label], *further),
            device=plan.device,
            changed_code=plan.changed_code,
            threads=plan.threads,
            checkpoint_every=plan.checkpoint_every,
            **task_flags,
        )

    chosen = choose_rates(plan, arms, recipes, build_command, count, say) if plan.rates else {}
    rates_by_label = {
        a.label: rate_settings(recipes[a.label], chosen[a.label]["chosen"] if chosen else None) for a in arms
    }
    places = {RunKey(arm.label, seed): plan.out / arm.slug / f"seed-{seed}" for seed in plan.each_seed for arm in arms}
    by_label = {arm.label: arm for arm in arms}

    def own_command(place: RunKey) -> list[str]:
        return build_command(by_label[place.label], place.seed, places[place], rates_by_label[place.label])

    dearest = run_at_equal_cost(plan, places, own_command, count, say)
    result: dict[str, Any] = {
        "batches": plan.batches,
        "equal": plan.equal,
        "seeds": plan.seeds,
        "settings": list(plan.settings),
        "rates": {"grid": list(plan.rates), "seeds": plan.rate_seeds, "arms": chosen} if chosen else None,
        "answers": answers,
        "recipes": {},
    }
    result["budget"] = plan.budget
    if dearest is not None:
        result["dearest"], result["budget"] = dearest
    for arm in arms:
        recipe = recipes[arm.label]
        if chosen:
            recipe = recipe_of_arm(arm, source, (*plan.run_settings, *rates_by_label[arm.label]), begun=True)
        leading = recipe.objectives[recipe.leading_objective].policy
        seeds = [collect_run(places[RunKey(arm.label, s)], s, leading) for s in plan.each_seed]
        result["recipes"][arm.label] = {"settings": shown_settings(recipe), "seeds": seeds}
    result |= comparison_table(result)
    folders = {arm.label: [places[RunKey(arm.label, s)] for s in plan.each_seed] for arm in arms}
    write_results(result, plan.out, {"training.svg": training_svg(folders)})
    return result


def write_results(result: dict[str, Any], out: Path, further: Mapping[str, str]) -> None:
    """Write a comparison with its table, and ``further`` pictures. The Markdown and the pictures hold no paths of this
    machine. What each test problem says at the end stands in ``problems.json.gz`` (arm → seed → figure → problem →
    value): from it every figure of the end can be computed again, without the runs."""
    runs = runs_of(result)
    problems = {
        label: {str(run["seed"]): run.pop("problems", {}) for run in arm["seeds"]}
        for label, arm in result["recipes"].items()
    }
    packed = gzip.compress(json.dumps(problems, separators=(",", ":")).encode(), mtime=0)
    replace_file(out / "problems.json.gz", packed)
    result["levels"] = [
        level for axis in AXES for level in levels_json(find_levels(runs, axis, result["budgets"].get(axis, math.nan)))
    ]
    replace_file(out / "compare.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    svg_by_name = {"curves.svg": curves_svg(runs), "differences.svg": differences_svg(runs), **further}
    pictures = {name: svg for name, svg in svg_by_name.items() if svg}
    for name, svg in pictures.items():
        replace_file(out / name, svg.encode())
    replace_file(out / "table.md", comparison_markdown(result, list(pictures)).encode())
    write_comparison_page(out)


def _refuse_changed_code(plan: ComparisonPlan, arms: Sequence[Arm]) -> None:
    """Raise RunDirectoryError where a run of these arms was made with other code of the user's than there is now: the
    finished runs would be compared with runs of another method."""
    for arm in arms:
        folder = plan.out / arm.slug
        for saved in sorted([*folder.glob("seed-*/recipe.json"), *folder.glob("rate-*/seed-*/recipe.json")]):
            refuse_changed_code(saved.parent)


def _refuse_unlike(recipes: Mapping[str, Recipe]) -> None:
    """Arms are measured alike, or their figures could not be compared."""
    sizes = {label: (r.evaluation.tasks, r.evaluation.group_size) for label, r in recipes.items()}
    (first, first_size), *others = sizes.items()
    for label, size in others:
        if size != first_size:
            raise ConfigError(
                f"compare: {first!r} is tested on {first_size[0]} problems with {first_size[1]} answers each, "
                f"{label!r} on {size[0]} with {size[1]}; expected the same; add --set evaluation.tasks=N and --set "
                "evaluation.group_size=N"
            )


def claim_directory(plan: ComparisonPlan, arms: Sequence[Arm]) -> None:
    """A comparison directory belongs to one set of settings; more seeds and other arms may be added later."""
    free = {"arms", "seeds", "out", "checkpoint_every", "workers", "device", "changed_code"}
    names = [name for name in ComparisonPlan.__dataclass_fields__ if name not in free]
    settings: dict[str, Any] = json.loads(json.dumps({name: getattr(plan, name) for name in names}))
    settings |= {"arms": [arm.label for arm in arms]}
    out, path = plan.out, plan.out / "settings.json"
    entries = [one for one in out.iterdir() if not one.name.startswith(".")] if out.is_dir() else []
    if out.is_file() or (entries and not path.exists()):
        raise ConfigError(f"{out} holds something else than a comparison; choose another --out")
    try:
        saved = json.loads(read_regular(path)) if path.exists() else None
        if saved is not None and not isinstance(saved, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it, or choose another --out") from error
    if saved is not None:
        # a setting that is newer than it
        saved = {f.name: f.default for f in fields(ComparisonPlan) if f.name in names} | saved
    if saved is not None and _settings_by_name({**saved, "arms": settings["arms"]}) != _settings_by_name(settings):
        changed = sorted(name for name in {*saved, *settings} - {"arms"} if saved.get(name) != settings.get(name))
        old_values = ", ".join(f"{name} {json.dumps(saved.get(name))}" for name in changed)
        raise ConfigError(
            f"{out} holds a comparison with other settings ({old_values}); give those, or choose another --out"
        )
    try:
        replace_file(path, json.dumps(settings, indent=1).encode())
    except DiskError as error:
        raise ConfigError(f"{out} cannot hold a comparison: {error}; choose another --out") from error


def _settings_by_name(settings: dict[str, Any]) -> dict[str, Any]:
    """With the changed settings by name: their order is free, of two for one name the last counts."""
    changed = settings.get("settings")
    if not isinstance(changed, list):
        return settings
    return {**settings, "settings": {(parts := str(each).partition("="))[0]: parts[2] for each in changed}}
