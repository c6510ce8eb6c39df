"""``cotrain run --smoke``: flags that make a run short. It shows that a recipe works, from its start to its report.

Every phase is reached, warm-ups and stages take one step each, and little is measured. The figures say nothing about
the method.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cotrain.cli.flags import Parser, parsed_values, typed_flags, typed_words
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import count_of

if TYPE_CHECKING:
    from cotrain.config.run_config import RecipeFunction

STAGE_LENGTHS = ("warmup", "unlabelled", "iteration", "revising")  # parameters that are the steps of a stage
ABOUT_DATA = ("labelled", "ramp", "target_solve_rate")  # parameters
TASKS_PER_STEP = 2
GROUP_SIZE = 4
EVALUATION_TASKS = 2
REVIEWS = 2


def smoke_words(
    build: RecipeFunction,
    parser: Parser,
    names: Sequence[str],
    words: Sequence[str],
    make_with_data: Callable[[argparse.Namespace, dict[str, Any]], Any],
    *,
    config_words: Sequence[str] = (),
    explain_unknown: Callable[[str, str], str] = lambda flag, value: "",
) -> list[str]:
    """The flags of a short run of this recipe, to be put before the user's.

    Args:
        names: the recipe's parameters that are flags.
        words: flags that the user typed, which have precedence.
        make_with_data: builds the recipe of parsed flags and arguments on the problems that the flags name.
        config_words: flags of a file (``--config``), which those of a short run replace.
        explain_unknown: see ``Parser.parse_strictly``.
    """
    defaults = {name: argument.default for name, argument in build.parameters.items()}
    short_flags = ["--set=evaluation.splits=[]", f"--set=evaluation.group_size={REVIEWS}"]
    for name, value in _small_settings(defaults).items():
        short_flags += [f"--{name.replace('_', '-')}", *typed_words(value).split()]
    all_flags = [*config_words, *short_flags, *words]
    parsed = parser.parse_strictly(all_flags, explain_unknown)
    typed = typed_flags(all_flags, parser)
    values = {name: value for name, value in parsed_values(parsed, names).items() if name in typed}
    try:
        # The schedule needs no data, so the data are not read here, and read once in all. What is about data would be
        # refused without.
        without_data = {name: value for name, value in values.items() if name not in ABOUT_DATA}
        schedule = build(**without_data).schedule
    except ConfigError:  # a recipe that needs its data to be built
        schedule = make_with_data(parsed, values).schedule

    warmup = list(schedule.warmup)
    if "warmup" not in typed_flags(words, parser):
        warmup = [(name, 1) for name, _ in schedule.warmup]
    if list(schedule.warmup) != warmup:
        short_flags.append(f"--set=schedule.warmup={json.dumps(warmup)}")
    steps = sum(steps for _, steps in warmup) + len(schedule.cycle)  # so that every phase is reached
    return [*short_flags, "--steps", str(max(2, steps))]


def _small_settings(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The small values of those settings that a recipe has. ``defaults``: its own values of all its settings."""
    small: dict[str, Any] = {
        "tasks_per_step": TASKS_PER_STEP,
        "group_size": min(GROUP_SIZE, defaults.get("group_size", GROUP_SIZE)),
        "evaluation_tasks": EVALUATION_TASKS,
        "evaluate_every": 0,
    }
    for name in STAGE_LENGTHS:
        steps = defaults.get(name)
        if steps is not None and steps > 1:  # None: the recipe computes it, and its schedule is made short below
            small[name] = 1
    if defaults.get("reviews", 0) > REVIEWS:
        small["reviews"] = REVIEWS
    ratio = defaults.get("ratio")
    if isinstance(ratio, tuple):
        small["ratio"] = tuple(min(1, steps) for steps in ratio)  # one step of each phase; 0 stays 0
    return {name: value for name, value in small.items() if name in defaults}


def smoke_note(recipe: Any) -> str:
    """The note that is printed before a short run."""
    stages = "".join(f", {steps} of them {name}" for name, steps in recipe.schedule.warmup)
    arguments = recipe.origin.arguments if recipe.origin else {}
    sizes = [f"{name} {arguments[name]}" for name in ("group_size", "reviews") if arguments.get(name)]
    others = f" Besides: {', '.join(sizes)}." if sizes else ""  # a recipe without groups has no group_size
    steps = count_of(recipe.steps, "step")
    problems = count_of(recipe.tasks_per_step, "problem")
    held_out = count_of(recipe.evaluation.tasks, "held-out problem")
    return (
        f"note: --smoke: {steps} of {problems}{stages}, and {held_out}; the figures of so short a "
        f"run say nothing of the method.{others} Flags that you give count more"
    )
