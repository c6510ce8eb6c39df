"""Answer and verdict formats of a comparison, chosen once for each arm before anything is run.

Each run of its own would look at eight answers of a model, and seeds could come out read in different ways. So what
``--answer-format``, ``--prompt`` and their like mean (``runs/choose_formats.py``) is found here, arms that ask one
model alike sharing one look, and goes to every run as settings. It is kept in ``answers.json``, for runs that are added
later."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from cotrain.config.edits import override_text, overrides_since
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, UserError
from cotrain.core.input_files import parse_json, read_regular
from cotrain.formats.solutions import parse_solution
from cotrain.runs.choose_formats import AnswerFormat, Reading, Say, choose_formats, is_package_model, reviews_steps
from cotrain.storage.file_ops import replace_file

FILE = "answers.json"


def answer_settings(
    recipes: Mapping[str, Recipe], how: AnswerFormat, *, out: Path, device: str, say: Say, begun: Collection[str] = ()
) -> dict[str, list[str]]:
    """Settings of each arm, by its label. ``begun``: arms that have runs; those of which nothing was kept are asked as
    their recipe has it, and no model is opened for them. How a verifier is asked and read goes to the arms that have
    one; the others are named. Raises ConfigError for an arm that cannot be asked or read so."""
    settings_by_arm: dict[str, list[str]] = {label: [] for label in begun} | load_answers(out)
    settings_by_key: dict[str, list[str]] = {}
    readings: dict[str, Reading] = {}  # arms of different roles may have the same solver
    of_solver = replace(how, verdict=None, verifier_prompt=None)
    unjudged = [label for label, recipe in recipes.items() if how != of_solver and not reviews_steps(recipe)]
    if unjudged:
        say(f"note: no role 'verifier' reviews steps in {', '.join(unjudged)}: what is said of verdicts is for others")
    for label, recipe in recipes.items():
        if label in settings_by_arm:
            continue
        key = _asking_key(recipe)
        try:
            if key not in settings_by_key:
                settings = of_solver if label in unjudged else how
                asked_so = choose_formats(recipe, settings, device=device, say=say, readings=readings)
                chosen = overrides_since(recipe, asked_so)
                settings_by_key[key] = chosen + _fixed_settings(asked_so, chosen)
        except UserError as error:
            raise ConfigError(f"arm {label!r}: {error}", code=error.code) from error
        settings_by_arm[label] = list(settings_by_key[key])
    return settings_by_arm


def _fixed_settings(recipe: Recipe, chosen: Collection[str]) -> list[str]:
    """The formats that the look at the model left as they were, as settings, so that no run looks again."""
    fields = {"solver": "answer_format", "verifier": "verdict_format"}
    settings = []
    for name, field in fields.items():
        role = recipe.roles.get(name)
        path = f"roles.{name}.{field}="
        if role is None or is_package_model(recipe, role) or any(one.startswith(path) for one in chosen):
            continue
        if role.parse is parse_solution if name == "solver" else role.words:
            settings.append(override_text(f"roles.{name}.{field}", getattr(role, field)))
    return settings


def _asking_key(recipe: Recipe) -> str:
    """The same for recipes whose models are asked alike: the same weights, prompts, sampling and problems."""
    roles = {}
    for name, role in sorted(recipe.roles.items()):
        spec = recipe.policies[role.policy]
        adapter_start = getattr(getattr(spec, "lora", None), "path", None)
        roles[name] = (spec.model, adapter_start, role.prompt, role.sampling)
    overrides = recipe.origin.overrides if recipe.origin else ()
    return repr((roles, sorted(one for one in overrides if one.startswith("roles.")), recipe.tasks.describe()))


def load_answers(out: Path) -> dict[str, list[str]]:
    """The settings of each arm that were settled before. Raises ConfigError for a file that is damaged."""
    path = out / FILE
    if not path.exists():
        return {}
    try:
        answers = {}
        for label, settings in parse_json(read_regular(path)).items():
            answers[str(label)] = [str(setting) for setting in settings]
        return answers
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}); restore it, or choose another --out", code="E_COMPARISON_DAMAGED"
        ) from error


def save_answers(out: Path, settings_by_arm: Mapping[str, list[str]]) -> None:
    """For runs that are added later; nothing where every arm is asked as its recipe has it."""
    if any(settings_by_arm.values()):
        replace_file(out / FILE, json.dumps(settings_by_arm, indent=1, ensure_ascii=False).encode())
