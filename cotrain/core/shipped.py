"""The models that ship with the package: their names, and the folders in which they lie.

Those of the demo lie in the package itself, in ``cotrain/assets``. The others are of the distribution
``cotrain-bases``: the folder ``bases/cotrain_bases`` of a checkout, which is looked at too, since nothing has to be
installed there. No library is imported here, so that a command that only names a model stays quick.
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
OWN = PACKAGE / "assets"
BESIDE = PACKAGE.parent / "bases" / "cotrain_bases"  # in a checkout
DISTRIBUTION = "cotrain_bases"


def is_shipped(name: str) -> bool:
    """Whether a name is one of the package's own models."""
    return name in SHIPPED


def shipped_folder(name: str) -> Path:
    """The folder of a model of the package, whether or not it is there: ``shipped-games`` in ``base-games``."""
    folder = folder_name(name)
    for place in (OWN, BESIDE, _installed_bases()):
        if place is not None and (place / folder).is_dir():
            return place / folder
    return OWN / folder


def folder_name(name: str) -> str:
    """``base`` of ``shipped``, ``base-games`` of ``shipped-games``."""
    return "base" + name.removeprefix(SHIPPED_BASE)


def how_to_get(name: str) -> str:
    """Advice for a model of the package that is not in this installation."""
    if name in (SHIPPED_BASE, SHIPPED_HABITS):  # those of the demo
        return "install cotrain again"
    return "it comes with the distribution cotrain-bases: `pip install ./bases` in the source of cotrain"


def _installed_bases() -> Path | None:
    """The folder of the distribution ``cotrain-bases``, where it is installed."""
    spec = find_spec(DISTRIBUTION)
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    return Path(places[0]) if places else None
