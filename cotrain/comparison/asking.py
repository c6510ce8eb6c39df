"""How the solvers of a comparison are asked and read: settled once for each arm, before anything is run.

Each run of its own would look at eight answers of a model, and seeds could come out read in different ways. So what
``--answer`` and ``--prompt`` mean (``loop/answers.py``) is found here, arms on one model and prompt sharing one look,
and goes to every run as settings. It is kept in ``answers.json``, for runs that are added later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from cotrain.core.errors import ConfigError, UserError
from cotrain.loop.answers import settings_for
from cotrain.loop.recipe import Recipe
from cotrain.play.common_roles import speaks_short
from cotrain.text.answers import TAGS, parse_solution

FILE = "answers.json"

Say = Callable[[str], None]


def settled(
    recipes: Mapping[str, Recipe], answer: str | None, prompt: str | None, *, out: Path, device: str, say: Say
) -> dict[str, list[str]]:
    """Settings of each arm, by its label. Raises ConfigError for an arm that cannot be asked or read so."""
    found, looked = kept(out), dict[tuple[str, str], list[str]]()
    for label, recipe in recipes.items():
        if label in found:
            continue
        role = recipe.roles.get("solver")
        plain = role is not None and role.parse is parse_solution
        key = (recipe.policies[role.policy].model, f"{recipe.name} {role.prompt}") if role else (label, "")
        try:
            if key not in looked:
                looked[key] = settings_for(recipe, answer, prompt, device=device, say=say)
        except UserError as error:
            raise ConfigError(f"arm {label!r}: {error}") from error
        found[label] = list(looked[key])
        if (
            plain
            and not speaks_short(key[0])
            and not any(one.startswith("roles.solver.answer=") for one in found[label])
        ):
            found[label].append(f"roles.solver.answer={json.dumps(TAGS)}")  # or each run would look again
    return found


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
        (out / FILE).write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
