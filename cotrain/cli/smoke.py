"""``cotrain run --smoke``: the flags of a run that only shows that a recipe works from its start to its report. Every
phase is reached, warm-ups and stages take one step each, and little is measured. Its figures say nothing of the method.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
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
    flags: dict[str, Any] = {"tasks_per_step": PROBLEMS, "group_size": min(MEMBERS, usual.get("group_size", MEMBERS))}
    flags |= {"evaluation_tasks": HELD_OUT, "evaluate_every": 0}
    flags |= dict.fromkeys((name for name in STAGES if usual.get(name, 0) is None or usual.get(name, 0) > 1), 1)
    if usual.get("reviews", 0) > REVIEWS:
        flags["reviews"] = REVIEWS
    if isinstance(ratio := usual.get("ratio"), tuple):
        flags["ratio"] = tuple(min(1, part) for part in ratio)
    shorter = ["--set=evaluation.splits=[]", f"--set=evaluation.group_size={REVIEWS}"]
    for name in (name for name in flags if name in usual):
        shorter += [f"--{name.replace('_', '-')}", *typed_words(flags[name]).split()]
    both = [*shorter, *words]
    parsed = parser.parse_strictly(both)
    typed = typed_flags(both, parser)
    typed_values = {n: v for n, v in parsed_values(parsed, names).items() if n in typed}
    try:  # data are read twice only where a recipe cannot be without
        schedule = build(**{n: v for n, v in typed_values.items() if n not in ("labelled", "ramp")}).schedule
    except ConfigError:
        schedule = make_with_data(parsed, typed_values).schedule

    warmup = schedule.warmup if "warmup" in typed_flags(words, parser) else [(n, 1) for n, _ in schedule.warmup]
    if list(schedule.warmup) != list(warmup):
        shorter.append(f"--set=schedule.warmup={json.dumps(warmup)}")
    return [*shorter, "--steps", str(max(2, sum(steps for _, steps in warmup) + len(schedule.cycle)))]


def smoke_note(recipe: Any) -> str:
    """Return what is said of a short run."""
    stages = "".join(f", {steps} of them {name}" for name, steps in recipe.schedule.warmup)
    reviews = recipe.origin.arguments.get("reviews") if recipe.origin else None
    sizes = f"group_size is {recipe.group_size}" + (f", reviews {reviews}" if reviews else "")
    steps = count_of(recipe.steps, "step")
    problems = count_of(recipe.tasks_per_step, "problem")
    held_out = count_of(recipe.evaluation.tasks, "held-out problem")
    return (
        f"note: --smoke: {steps} of {problems}{stages}, and {held_out}; the figures of so short a "
        f"run say nothing of the method. Besides, {sizes}. Flags that you give count more"
    )
