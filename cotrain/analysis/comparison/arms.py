"""The arms of a comparison: one variant of one recipe each, as it is written, and the recipe that comes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cotrain.config.evaluation import held_out
from cotrain.config.override import override
from cotrain.config.policies import Learning
from cotrain.config.recipe import Recipe, check_due, check_problems
from cotrain.config.registry import find_recipe, make_recipe
from cotrain.core.errors import ConfigError, UnknownName, UserError
from cotrain.core.input_files import parse_json
from cotrain.core.nearest_names import current_name, nearest_name, with_current_names
from cotrain.reports.compare_words import slug_of
from cotrain.runs.check_models import check_models


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One variant of one recipe."""

    label: str
    target: str
    arguments: Mapping[str, Any]
    overrides: tuple[str, ...] = ()  # dotted.path=value, of this arm alone: such as of a role that others do not have

    @property
    def slug(self) -> str:
        """Its directory."""
        return slug_of(self.label)

    def flags(self) -> list[str]:
        words: list[str] = []
        for name, value in self.arguments.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            elif isinstance(value, tuple):
                words += [f"--{flag}", *map(str, value)]
            elif value is not None:  # None is what a flag left out means
                words.append(f"--{flag}={value}")
        return words


SET_BY_COMPARISON = {  # parameter → how a comparison sets it
    "seed": "--seeds",
    "steps": "--batches",
    "evaluate_every": "--evaluate-every",
    "evaluation_tasks": "--set evaluation.tasks=N",
    "tasks": "--tasks and --data",
    "data": "--data",
    "operations": "--operations",
    "lenient": "--lenient",
    "answer_format": "--answer-format",
    "steps_as": "--steps-as",
    "prompt": "--prompt",
    "verdict": "--verdict",
    "verifier_prompt": "--verifier-prompt",
    "device": "--device",
    "threads": "--threads",
    "checkpoint_every": "--checkpoint-every",
}


def parse_arm(text: str) -> Arm:
    """``tango:verifier=frozen,alpha=0.5`` → an Arm. A path recipe keeps its own colon, ``file.py:mine:lr=1e-4``, and so
    does a value, ``spiral:game=race.py:RACE``."""
    head, *rest = text.split(":")
    if head.endswith(".py") and rest:
        head = f"{head}:{rest[0]}"
        rest = rest[1:]
    if text.count("[") != text.count("]"):
        raise ConfigError(f"arm {text!r}: a bracket is not closed; write lists as in ratio=[2,1]", code="E_ARM_BRACKET")
    arguments: dict[str, Any] = {}
    pairs = []
    if rest:
        pairs = re.split(r",(?![^\[]*\])", ":".join(rest))  # at commas outside of brackets
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"arm {text!r}: {pair!r} is not parameter=value", code="E_ARM_PARAMETER")
        if name in arguments:
            raise ConfigError(f"arm {text!r}: {name} is given twice", code="E_ARM_PARAMETER")
        arguments[name] = _parse_value(value)
    return make_arm(text, head, arguments)


def make_arm(
    label: str,
    target: str,
    arguments: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    set_by: Mapping[str, str] = SET_BY_COMPARISON,
) -> Arm:
    """An arm that does not set what a comparison sets. ``set_by``: each such parameter → how it is set."""
    set_names = [setting.partition("=")[0].strip() for setting in overrides]
    for name in [*arguments, *set_names]:
        today = current_name(name, set_by) or name
        if today in set_by:
            raise ConfigError(
                f"arm {label!r}: {name} is the same for every arm; leave it out and give {set_by[today]}",
                code="E_ARM_SETS_COMPARISON",
            )
    return Arm(label=label, target=target, arguments=arguments, overrides=tuple(overrides))


def under_current_names(arm: Arm) -> Arm:
    """An arm whose runs are there, perhaps of before parameters were renamed: its label, and so its directory, stays,
    and its arguments have the names of today."""
    return replace(arm, arguments=with_current_names(arm.arguments, find_recipe(arm.target).parameters))


def _check_parameters(arm: Arm) -> None:
    """Raise UnknownName for a parameter that the recipe of an arm does not have: the recipe's that was meant, or what a
    comparison sets."""
    parameters = find_recipe(arm.target).parameters
    for name in arm.arguments:
        near = nearest_name(name, [*parameters, *SET_BY_COMPARISON])
        is_of_comparison = near in SET_BY_COMPARISON and near not in parameters
        if name not in parameters and is_of_comparison:
            raise UnknownName(f"parameter of {arm.target}", name, [*parameters, *SET_BY_COMPARISON])


def _parse_value(text: str) -> Any:
    try:
        value = parse_json(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)
    return tuple(value) if isinstance(value, list) else value


def distinct_arms(arms: Sequence[Arm]) -> list[Arm]:
    """The arms, when no two of them are the same runs or would share a directory."""
    for i, arm in enumerate(arms):
        if not arm.slug.strip("."):
            raise ConfigError(f"compare: arm {arm.label!r} is no name of a directory; rename it", code="E_ARM_LABEL")
        for other in arms[:i]:
            same = (arm.target, arm.arguments, arm.overrides) == (other.target, other.arguments, other.overrides)
            if same or arm.slug == other.slug:
                what = "an arm is named twice" if same else "two arms would share a directory"
                raise ConfigError(
                    f"compare: {what}: {other.label!r} and {arm.label!r}; leave out or rename one", code="E_ARMS_ALIKE"
                )
    return list(arms)


def recipe_of_arm(arm: Arm, source: Mapping[str, Any], overrides: Sequence[str], *, begun: bool = False) -> Recipe:
    """Return the recipe that an arm will run, so that an error in it is reported before anything has been run.
    ``begun``: its runs are there, with the schedule that the recipe had then, and perhaps without its models."""
    from cotrain.runs.figures import check_best  # with torch, which whoever only reads arms does without

    try:
        if begun:
            arm = under_current_names(arm)
        _check_parameters(arm)
        recipe = override(make_recipe(arm.target, {**arm.arguments, **source}), [*overrides, *arm.overrides])
        check_problems(recipe)
        check_best(recipe)
        if not begun:  # runs that are there need no model any more
            check_models(recipe)
            has_warmup = "warmup" in find_recipe(arm.target).parameters
            warmup_flag = f"{arm.target}:warmup=" if has_warmup else ""
            check_due(recipe, steps_flag="--batches", warmup_flag=warmup_flag)
        return recipe
    except UserError as error:
        raise ConfigError(f"arm {arm.label!r}: {error}", code=error.code) from error


def shown_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe that a page shows next to its figures."""
    trained = {name: spec for name, spec in recipe.policies.items() if isinstance(spec, Learning)}
    return {
        "learning_rate": {name: spec.lr for name, spec in trained.items()},
        "lr_warmup": {name: spec.lr_warmup for name, spec in trained.items()},
        "temperature": {name: role.sampling.temperature for name, role in recipe.roles.items()},
        "problems": recipe.tasks_per_step,
        "group_size": recipe.group_size,
        "test_problems": len(held_out(recipe.tasks, "test", recipe.evaluation.tasks, recipe.seed)),
        "evaluation_group_size": recipe.evaluation.group_size,
    }
