"""How solvers and verifiers of a comparison are asked and read: settled once for each arm, before anything is run.

Each run of its own would look at eight answers of a model, and seeds could come out read in different ways. So what
``--answer``, ``--prompt`` and their like mean (``preflight/answers.py``, ``preflight/verdicts.py``) is found here, arms
that ask one model alike sharing one look, and goes to every run as settings. It is kept in ``answers.json``, for runs
that are added later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from cotrain.config.override import override
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, UserError
from cotrain.disk.files import replace_file
from cotrain.preflight.answers import Asking, answers_for
from cotrain.preflight.verdicts import verdicts_for
from cotrain.rollout.common_roles import speaks_short
from cotrain.text.answers import parse_solution

FILE = "answers.json"

Say = Callable[[str], None]


def settled(
    recipes: Mapping[str, Recipe],
    how: Asking,
    *,
    out: Path,
    device: str,
    say: Say,
    begun: Collection[str] = (),
) -> dict[str, list[str]]:
    """Settings of each arm, by its label. ``begun``: arms that have runs; those of which nothing was kept are asked as
    their recipe has it, and no model is opened for them. Raises ConfigError for an arm that cannot be asked or read
    so."""
    found: dict[str, list[str]] = {label: [] for label in begun} | kept(out)
    looked: dict[str, list[str]] = {}
    for label, recipe in recipes.items():
        if label in found:
            continue
        key = _alike(recipe)
        try:
            if key not in looked:
                looked[key] = _settings(recipe, how, device, say)
        except UserError as error:
            raise ConfigError(f"arm {label!r}: {error}") from error
        found[label] = list(looked[key])
    return found


def _settings(recipe: Recipe, how: Asking, device: str, say: Say) -> list[str]:
    answers, seen = answers_for(recipe, how, device=device, say=say)
    asked = override(recipe, answers)
    verdicts = verdicts_for(asked, how, seen=seen, device=device, say=say)
    settings = [*answers, *verdicts]
    for name, field, plain in (
        ("solver", "answer", lambda role: role.parse is parse_solution),
        ("verifier", "verdict", lambda role: bool(role.words)),
    ):
        role: Any = recipe.roles.get(name)
        path = f"roles.{name}.{field}="
        if role is None or not plain(role) or speaks_short(recipe.policies[role.policy].model):
            continue
        if not any(one.startswith(path) for one in settings):
            settings.append(path + json.dumps(getattr(role, field)))  # or each run would look again
    return settings


def _alike(recipe: Recipe) -> str:
    """The same for recipes whose models are asked alike: the same weights, prompts, sampling and problems."""
    roles = {}
    for name, role in sorted(recipe.roles.items()):
        spec = recipe.policies[role.policy]
        begins = getattr(getattr(spec, "lora", None), "path", None)
        roles[name] = (spec.model, begins, role.prompt, role.sampling)
    given = recipe.origin.settings if recipe.origin else ()
    return repr((roles, sorted(one for one in given if one.startswith("roles.")), recipe.tasks.describe()))


def kept(out: Path) -> dict[str, list[str]]:
    """What was settled before. Raises ConfigError for a file that is damaged."""
    path = out / FILE
    if not path.exists():
        return {}
    try:
        return {str(label): [str(one) for one in mine] for label, mine in json.loads(path.read_text("utf-8")).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); restore it, or choose another --out") from error


def keep(out: Path, found: Mapping[str, list[str]]) -> None:
    """For runs that are added later; nothing where every arm is asked as its recipe has it."""
    if any(found.values()):
        replace_file(out / FILE, json.dumps(found, indent=1, ensure_ascii=False).encode())
