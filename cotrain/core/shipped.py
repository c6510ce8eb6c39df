"""The models that ship with the package: their names, and the folders in which they lie.

Those of the demo lie in the package itself, in ``cotrain/assets``. The others come with the distribution
``cotrain-bases``. In a checkout that need not be installed: its folder is ``bases/cotrain_bases``.

No library is imported here, so that a command that only names a model stays quick.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SHIPPED_BASE = "shipped"
SHIPPED_CHECKER = "shipped-checker"
SHIPPED_HABITS = "shipped-habits"
SHIPPED_PROPOSER = "shipped-proposer"
SHIPPED_GAMES = "shipped-games"
SHIPPED_SEARCH = "shipped-search"
SHIPPED_FORMAT = "shipped-format"
SHIPPED_ROLES = "shipped-roles"
SHIPPED_DIGEST = "shipped-digest"
SHIPPED_RATER = "shipped-rater"

SHIPPED_LANGUAGE_MODELS = (
    SHIPPED_BASE,
    SHIPPED_CHECKER,
    SHIPPED_HABITS,
    SHIPPED_PROPOSER,
    SHIPPED_GAMES,
    SHIPPED_SEARCH,
    SHIPPED_FORMAT,
    SHIPPED_ROLES,
    SHIPPED_DIGEST,
)
SHIPPED = (*SHIPPED_LANGUAGE_MODELS, SHIPPED_RATER)  # the rater is a reward model

PACKAGE = Path(__file__).resolve().parent.parent
DEMO_MODELS = PACKAGE / "assets"
CHECKOUT_MODELS = PACKAGE.parent / "bases" / "cotrain_bases"
DISTRIBUTION = "cotrain_bases"


def is_shipped(name: str) -> bool:
    """Whether a name is one of the package's own models."""
    return name in SHIPPED


def shipped_folder(name: str) -> Path:
    """The folder of a model of the package. One that is nowhere has a path, too, where none is."""
    folder = folder_name(name)
    for models in (DEMO_MODELS, CHECKOUT_MODELS, _installed_models()):
        if models is not None and (models / folder).is_dir():
            return models / folder
    return DEMO_MODELS / folder


def folder_name(name: str) -> str:
    """``base`` for ``shipped``, ``base-games`` for ``shipped-games``."""
    return "base" + name.removeprefix(SHIPPED_BASE)


def how_to_get(name: str) -> str:
    """Advice for a model of the package that is not in this installation."""
    if name in (SHIPPED_BASE, SHIPPED_HABITS):  # those of the demo
        return "install cotrain again"
    return "it comes with the distribution cotrain-bases: `pip install ./bases` in the source of cotrain"


def _installed_models() -> Path | None:
    """The folder of the distribution ``cotrain-bases``; None where it is not installed."""
    spec = find_spec(DISTRIBUTION)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])
