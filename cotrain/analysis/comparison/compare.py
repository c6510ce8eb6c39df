"""Compare recipes fairly: the same seeds and problems in every arm, one cost that is equal, three others next to it.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cotrain.analysis.comparison import asking
from cotrain.analysis.comparison.arms import Arm, distinct_arms, recipe_of_arm, shown_settings, under_current_names
from cotrain.analysis.comparison.lacking import lacking_figures
from cotrain.analysis.comparison.plan import ComparisonPlan
from cotrain.analysis.comparison.rates import check_one_has, choose_rates, rate_settings
from cotrain.analysis.comparison.runs import ENDLESS, collect_run, end_figures_of, is_done, run_command
from cotrain.analysis.comparison.waves import RunKey, run_at_equal_cost
from cotrain.config.idle_arguments import idle_notes
from cotrain.config.policies import Learning
from cotrain.config.recipe import Recipe
from cotrain.config.registry import find_recipe
from cotrain.config.run_config import problems_read_once
from cotrain.core.errors import ConfigError
from cotrain.core.input_files import parse_json, read_regular
from cotrain.core.nearest_names import current_name
from cotrain.core.threads import usable_cores
from cotrain.core.verbosity import count_of
from cotrain.data.few_problems import few_test_problems_note
from cotrain.reports.compare_markdown import comparison_markdown
from cotrain.reports.compare_overview import early_end_words, few_tested_words, lacking_sentences
from cotrain.reports.compare_reach import find_levels, levels_json
from cotrain.reports.compare_svg import curves_svg, differences_svg
from cotrain.reports.compare_table import comparison_table, runs_of
from cotrain.reports.compare_words import AXES
from cotrain.reports.comparison_report import write_comparison_page
from cotrain.reports.training_svg import training_svg
from cotrain.runs.choose_formats import AnswerFormat
from cotrain.runs.code_record import check_code_unchanged
from cotrain.runs.fitting import idle_setting_notes
from cotrain.storage.file_ops import DiskError, replace_file


def compare(
    plan: ComparisonPlan,
    *,
    say: Callable[[str], None] = print,
    recipes: Mapping[str, Recipe] | None = None,
    needed_figures: Mapping[str, Collection[str]] | None = None,
    planned_seeds: int | None = None,
) -> dict[str, Any]:
    """Run every arm with every seed and write ``compare.json``, ``report.html``, ``table.md`` and the curves as SVG.

    Args:
        recipes: the recipe of each arm, by its label, where they have been built; None: they are built here.
        needed_figures: of each arm, by its label, the figures that its runs have to have at their end.
        planned_seeds: how many were planned, where the plan has fewer, as a study that is ended early.

    Returns the content of the first. Raises ConfigError before anything is run, UnknownName as soon as
    several runs are done and none has such a figure, and StoppedBySignal when every run has been stopped."""
    arms = distinct_arms(plan.arms)
    if not plan.changed_code:
        _check_code_unchanged(plan, arms)
    if recipes is None:
        recipes = plan.make_recipes(arms)
    arms = [under_current_names(arm) if (plan.out / arm.slug).exists() else arm for arm in arms]
    check_directory(plan, arms)  # before a look at the answers of models, which may take minutes
    task_flags = plan.problem_arguments
    source = plan.task_argument()
    answer_format = AnswerFormat(
        answer=plan.answer_format,
        prompt=plan.prompt,
        steps_as=plan.steps_as,
        verdict=plan.verdict,
        verifier_prompt=plan.verifier_prompt,
    )
    begun_labels = {arm.label for arm in arms if (plan.out / arm.slug).exists()}
    notes: dict[str, None] = {}  # a set in order: each note once
    for recipe in recipes.values():
        notes |= dict.fromkeys(few_test_problems_note(recipe.tasks))
    notes |= dict.fromkeys(length_notes(recipes))
    notes |= dict.fromkeys(decay_notes(plan, recipes))
    notes |= dict.fromkeys(idle_notes_of_arms(arms, source))
    for note in notes:
        say(note)
    answers = asking.answer_settings(
        recipes, answer_format, out=plan.out, device=plan.device, say=say, begun=begun_labels
    )
    claim_directory(plan, arms)
    say(f"watch it in a browser: cotrain view {shlex.quote(str(plan.out))}")
    asking.save_answers(plan.out, answers)
    n_workers = plan.workers or usable_cores()
    say(
        f"{count_of(len(arms), 'arm')}, {count_of(plan.seeds, 'seed')}, {count_of(n_workers, 'run')} at a time; what "
        f"each says is in {plan.out}/ARM/seed-N.log"
    )

    def build_command(arm: Arm, seed: int, folder: Path, further: Sequence[str]) -> list[str]:
        """The command of a run; ``further``: overrides of this run alone."""
        ends = plan.run_ends
        if plan.equal == "updates":  # the number of steps is known, so the time left can be estimated
            ends["steps"] = replace(recipes[arm.label], updates=plan.batches).max_steps
        return run_command(
            arm,
            folder,
            seed=seed,
            ends={**ends, "horizon": plan.batches},
            evaluate_every=plan.evaluate_every,
            overrides=(*plan.common_overrides, *answers[arm.label], *further),
            device=plan.device,
            changed_code=plan.changed_code,
            threads=plan.threads,
            checkpoint_every=plan.checkpoint_every,
            **task_flags,
        )

    chosen = choose_rates(plan, arms, recipes, build_command, n_workers, say) if plan.rates else {}
    rates_by_label = {}
    for arm in arms:
        rate = chosen[arm.label]["chosen"] if chosen else None
        rates_by_label[arm.label] = rate_settings(recipes[arm.label], rate)
    folder_of_run: dict[RunKey, Path] = {}
    for seed in plan.each_seed:
        for arm in arms:
            folder_of_run[RunKey(arm.label, seed)] = plan.out / arm.slug / f"seed-{seed}"
    by_label = {arm.label: arm for arm in arms}

    def own_command(run: RunKey) -> list[str]:
        return build_command(by_label[run.label], run.seed, folder_of_run[run], rates_by_label[run.label])

    def check_figures(run: RunKey) -> None:
        lacking = set((needed_figures or {}).get(run.label, ())) - end_figures_of(folder_of_run[run])
        finished = [end_figures_of(folder) for folder in folder_of_run.values() if lacking and is_done(folder)]
        for figure in sorted(lacking):
            check_one_has(f"measure of arm {run.label!r}", figure, finished)

    dearest = run_at_equal_cost(plan, folder_of_run, own_command, n_workers, say, check_figures)
    result: dict[str, Any] = {
        "batches": plan.batches,
        "equal": plan.equal,
        "seeds": plan.seeds,
        "settings": list(plan.overrides),
        "rates": {"grid": list(plan.rates), "seeds": plan.rate_seeds, "arms": chosen} if chosen else None,
        "answers": answers,
        "recipes": {},
    }
    if planned_seeds is not None and planned_seeds > plan.seeds:
        result["planned_seeds"] = planned_seeds
    result["budget"] = plan.budget
    if dearest is not None:
        result["dearest"] = dearest.label
        result["budget"] = dearest.budget
    for arm in arms:
        recipe = recipes[arm.label]
        if chosen:
            recipe = recipe_of_arm(arm, source, (*plan.run_overrides, *rates_by_label[arm.label]), begun=True)
        leading = recipe.objectives[recipe.leading_objective].policy
        seeds = [collect_run(folder_of_run[RunKey(arm.label, s)], s, leading) for s in plan.each_seed]
        result["recipes"][arm.label] = {"settings": shown_settings(recipe), "seeds": seeds}

    runs_by_arm = {label: arm["seeds"] for label, arm in result["recipes"].items()}
    further = set().union(*(needed_figures or {}).values())
    result["lacking"] = lacking_figures(recipes, runs_by_arm, further)
    result |= comparison_table(result)
    result["lines"] += lacking_sentences(result)
    warnings = [early_end_words(result), few_tested_words(result)]
    result["lines"] = [*filter(None, warnings), *result["lines"]]
    folders = {}
    for arm in arms:
        folders[arm.label] = [folder_of_run[RunKey(arm.label, seed)] for seed in plan.each_seed]
    write_results(result, plan.out, {"training.svg": training_svg(folders)})
    return result


def length_notes(recipes: Mapping[str, Recipe]) -> list[str]:
    """A line for each setting that never takes effect in a run, with the arms that have it."""
    arms_of_note: dict[str, list[str]] = {}
    for label, recipe in recipes.items():
        for note in idle_setting_notes(recipe):
            arms_of_note.setdefault(note, []).append(repr(label))
    lines = []
    for note, arms in arms_of_note.items():
        word = "arm" if len(arms) == 1 else "arms"
        lines.append(f"{note} ({word} {', '.join(arms)})")
    return lines


def idle_notes_of_arms(arms: Sequence[Arm], source: Mapping[str, Any]) -> list[str]:
    """A line for each argument of an arm that has no effect. ``source``: the argument that holds the problems."""
    notes = []
    with problems_read_once():  # once for all arms
        for arm in arms:
            if ".py" in arm.target:  # a recipe in a file of the user's, whose code would run once more
                continue
            for note in idle_notes(find_recipe(arm.target), {**arm.arguments, **source}, "{}={}".format):
                notes.append(note.replace("note: ", f"note: arm {arm.label!r}: ", 1))
    return notes


def decay_notes(plan: ComparisonPlan, recipes: Mapping[str, Recipe]) -> list[str]:
    """A line for each arm whose learning rates fall to 0 before its runs may end: decays run over ``batches``."""
    notes = []
    for label, recipe in recipes.items():
        decays = any(isinstance(one, Learning) and one.lr_decay != "constant" for one in recipe.policies.values())
        may_go_on = plan.equal not in ("batches", "updates")
        if plan.equal == "updates":
            may_go_on = replace(recipe, steps=ENDLESS, updates=plan.batches).max_steps > plan.batches
        if decays and may_go_on:
            notes.append(
                f"note: arm {label!r}: lr_decay ends after {count_of(plan.batches, 'step')}, and its runs may go on "
                "from there, with a learning rate of 0; --equal batches ends them there"
            )
    return notes


def write_results(result: dict[str, Any], out: Path, further: Mapping[str, str]) -> None:
    """Write a comparison with its table, and ``further`` pictures. The Markdown and the pictures hold no paths of this
    machine. What each test problem says at the end stands in ``problems.json.gz`` (arm → seed → figure → problem →
    value): from it every figure of the end can be computed again, without the runs."""
    runs = runs_of(result)  # with the values by problem, which leave ``result`` below: compare.json has none
    problems: dict[str, dict[str, Any]] = {}
    for label, arm in result["recipes"].items():
        problems[label] = {str(run["seed"]): run.pop("problems", {}) for run in arm["seeds"]}
    packed = gzip.compress(json.dumps(problems, separators=(",", ":")).encode(), mtime=0)
    replace_file(out / "problems.json.gz", packed)
    result["levels"] = []
    for axis in AXES:
        budget = result["budgets"].get(axis, math.nan)
        result["levels"] += levels_json(find_levels(runs, axis, budget))
    replace_file(out / "compare.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    svg_by_name = {"curves.svg": curves_svg(runs), "differences.svg": differences_svg(runs), **further}
    pictures = {name: svg for name, svg in svg_by_name.items() if svg}
    for name, svg in pictures.items():
        replace_file(out / name, svg.encode())
    replace_file(out / "table.md", comparison_markdown(result, list(pictures)).encode())
    write_comparison_page(out)


def _check_code_unchanged(plan: ComparisonPlan, arms: Sequence[Arm]) -> None:
    """Raise RunDirectoryError where a run of these arms was made with other code of the user's than there is now: the
    finished runs would be compared with runs of another method."""
    for arm in arms:
        folder = plan.out / arm.slug
        for saved in sorted([*folder.glob("seed-*/recipe.json"), *folder.glob("rate-*/seed-*/recipe.json")]):
            check_code_unchanged(saved.parent)


def claim_directory(plan: ComparisonPlan, arms: Sequence[Arm]) -> None:
    """Write the settings of a comparison into its directory, which belongs to them from then on. Errors: see
    ``check_directory``."""
    settings = check_directory(plan, arms)
    try:
        replace_file(plan.out / "settings.json", json.dumps(settings, indent=1).encode())
    except DiskError as error:
        raise ConfigError(
            f"{plan.out} cannot hold a comparison: {error}; choose another --out", code="E_OUT_NOT_COMPARISON"
        ) from error


def check_directory(plan: ComparisonPlan, arms: Sequence[Arm]) -> dict[str, Any]:
    """Return the settings of a comparison, to which its directory belongs; more seeds and other arms may be added
    later. Raises ConfigError for a directory that holds something else, or a comparison with other settings."""
    may_differ = {"arms", "seeds", "out", "checkpoint_every", "workers", "device", "changed_code"}
    names = [name for name in ComparisonPlan.__dataclass_fields__ if name not in may_differ]
    settings: dict[str, Any] = json.loads(json.dumps({name: getattr(plan, name) for name in names}))
    settings |= {"arms": [arm.label for arm in arms]}
    out = plan.out
    path = plan.out / "settings.json"
    entries = [one for one in out.iterdir() if not one.name.startswith(".")] if out.is_dir() else []
    if out.is_file() or (entries and not path.exists()):
        raise ConfigError(
            f"{out} holds something else than a comparison; choose another --out", code="E_OUT_NOT_COMPARISON"
        )
    try:
        saved = parse_json(read_regular(path)) if path.exists() else None
        if saved is not None and not isinstance(saved, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}); restore it, or choose another --out", code="E_COMPARISON_DAMAGED"
        ) from error
    if saved is not None:
        # A version that did not have a setting yet, or called it otherwise, had its default.
        defaults = {f.name: f.default for f in fields(ComparisonPlan) if f.name in names}
        saved = defaults | {current_name(name, names) or name: value for name, value in saved.items()}
    if saved is not None and _settings_by_name({**saved, "arms": settings["arms"]}) != _settings_by_name(settings):
        changed = sorted(name for name in {*saved, *settings} - {"arms"} if saved.get(name) != settings.get(name))
        old_values = ", ".join(f"{name} {json.dumps(saved.get(name))}" for name in changed)
        raise ConfigError(
            f"{out} holds a comparison with other settings ({old_values}); give those, or choose another --out",
            code="E_COMPARISON_DIFFERS",
        )
    return settings


def _settings_by_name(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with their overrides by name: their order is free, and of two for one name the last counts."""
    overrides = settings.get("overrides")
    if not isinstance(overrides, list):
        return settings
    by_name = {}
    for override in overrides:
        name, _, value = str(override).partition("=")
        by_name[name] = value
    return {**settings, "overrides": by_name}
