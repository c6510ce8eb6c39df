"""``cotrain run --smoke``: the flags of a run that only shows that a recipe works from its start to its report. Every
phase is reached, warm-ups and stages take one step each, and little is measured. Its figures say nothing of the method.
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

STAGES = ("warmup", "unlabelled", "iteration", "revising")  # parameters of recipes: steps of a stage
PROBLEMS = 2
MEMBERS = 4
HELD_OUT = 2
REVIEWS = 2


def smoke_words(
    build: RecipeFunction,
    parser: Parser,
    names: Sequence[str],
    words: Sequence[str],
    make_with_data: Callable[[argparse.Namespace, dict[str, Any]], Any],
) -> list[str]:
    """The flags of a short run of this recipe, to stand before ``words``, which are the user's. ``make_with_data``: the
    recipe of these flags and arguments on the problems that the flags name."""
    usual = {name: argument.default for name, argument in build.taken.items()}
    shorter = ["--set=evaluation.splits=[]", f"--set=evaluation.group_size={REVIEWS}"]
    for name, value in _small_settings(usual).items():
        shorter += [f"--{name.replace('_', '-')}", *typed_words(value).split()]
    both = [*shorter, *words]
    parsed = parser.parse_strictly(both)
    typed = typed_flags(both, parser)
    typed_values = {name: value for name, value in parsed_values(parsed, names).items() if name in typed}
    try:  # data are read twice only where a recipe cannot be without
        without_data = {name: value for name, value in typed_values.items() if name not in ("labelled", "ramp")}
        schedule = build(**without_data).schedule
    except ConfigError:
        schedule = make_with_data(parsed, typed_values).schedule

    warmup = list(schedule.warmup)
    if "warmup" not in typed_flags(words, parser):
        warmup = [(name, 1) for name, _ in schedule.warmup]
    if list(schedule.warmup) != warmup:
        shorter.append(f"--set=schedule.warmup={json.dumps(warmup)}")
    steps = sum(steps for _, steps in warmup) + len(schedule.cycle)  # so that every phase is reached
    return [*shorter, "--steps", str(max(2, steps))]


def _small_settings(usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a trial that a recipe takes. ``usual``: what it takes, with its defaults."""
    small: dict[str, Any] = {
        "tasks_per_step": PROBLEMS,
        "group_size": min(MEMBERS, usual.get("group_size", MEMBERS)),
        "evaluation_tasks": HELD_OUT,
        "evaluate_every": 0,
    }
    for name in STAGES:
        steps = usual.get(name, 0)
        if steps is None or steps > 1:
            small[name] = 1
    if usual.get("reviews", 0) > REVIEWS:
        small["reviews"] = REVIEWS
    ratio = usual.get("ratio")
    if isinstance(ratio, tuple):
        small["ratio"] = tuple(min(1, part) for part in ratio)
    return {name: value for name, value in small.items() if name in usual}


def smoke_note(recipe: Any) -> str:
    """The note that is printed before a short run."""
    stages = "".join(f", {steps} of them {name}" for name, steps in recipe.schedule.warmup)
    reviews = recipe.origin.arguments.get("reviews") if recipe.origin else None
    sizes = f"group_size is {recipe.group_size}"
    if reviews:
        sizes += f", reviews {reviews}"
    steps = count_of(recipe.steps, "step")
    problems = count_of(recipe.tasks_per_step, "problem")
    held_out = count_of(recipe.evaluation.tasks, "held-out problem")
    return (
        f"note: --smoke: {steps} of {problems}{stages}, and {held_out}; the figures of so short a "
        f"run say nothing of the method. Besides, {sizes}. Flags that you give count more"
    )
