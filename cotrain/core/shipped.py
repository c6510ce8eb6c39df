"""The models that ship with the package: their names, and the folders in which they lie.

Those of the demo lie in the package itself, in ``cotrain/assets``. The others are of the distribution
``cotrain-bases``: the folder ``bases/cotrain_bases`` of a checkout, which is looked at too, since nothing has to be
installed there. No library is imported here, so that a command that only names a model stays quick.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

EMBEDDED_BASE = "embedded"
EMBEDDED_CHECKER = "embedded-checker"
EMBEDDED_HABITS = "embedded-habits"
EMBEDDED_PROPOSER = "embedded-proposer"
EMBEDDED_GAMES = "embedded-games"
EMBEDDED_SEARCH = "embedded-search"
EMBEDDED_FORMAT = "embedded-format"
EMBEDDED_ROLES = "embedded-roles"
EMBEDDED_DIGEST = "embedded-digest"
EMBEDDED_RATER = "embedded-rater"

EMBEDDED = (  # those that speak
    EMBEDDED_BASE,
    EMBEDDED_CHECKER,
    EMBEDDED_HABITS,
    EMBEDDED_PROPOSER,
    EMBEDDED_GAMES,
    EMBEDDED_SEARCH,
    EMBEDDED_FORMAT,
    EMBEDDED_ROLES,
    EMBEDDED_DIGEST,
)
SHIPPED = (*EMBEDDED, EMBEDDED_RATER)  # and a reward model

PACKAGE = Path(__file__).resolve().parent.parent
OWN = PACKAGE / "assets"
BESIDE = PACKAGE.parent / "bases" / "cotrain_bases"  # in a checkout
DISTRIBUTION = "cotrain_bases"


def is_embedded(name: str) -> bool:
    """Whether a name is one of the package's own models."""
    return name in SHIPPED


def shipped_folder(name: str) -> Path:
    """Where a model of the package lies, whether or not it is there: ``embedded-games`` in a folder ``base-games``."""
    folder = folder_name(name)
    for place in (OWN, BESIDE, _installed_bases()):
        if place is not None and (place / folder).is_dir():
            return place / folder
    return OWN / folder


def folder_name(name: str) -> str:
    """``base`` of ``embedded``, ``base-games`` of ``embedded-games``."""
    return "base" + name.removeprefix(EMBEDDED_BASE)


def how_to_get(name: str) -> str:
    """What to do where a model of the package is not in this installation."""
    if name in (EMBEDDED_BASE, EMBEDDED_HABITS):  # those of the demo
        return "install cotrain again"
    return "it comes with the distribution cotrain-bases: `pip install ./bases` in the source of cotrain"


def _installed_bases() -> Path | None:
    """The folder of the distribution ``cotrain-bases``, where it is installed."""
    found = find_spec(DISTRIBUTION)
    places = [] if found is None else list(found.submodule_search_locations or [])
    return Path(places[0]) if places else None
