"""The registry: methods, task sources and commands by name, of this package and of installed ones.

Another package joins with an entry point, whose name is what a user types and whose value is where the function or the
class is:

    [project.entry-points."cotrain.recipes"]    # functions decorated with @recipe: `cotrain run my_method`
    my_method = "my_package.my_method:my_method"
    [project.entry-points."cotrain.tasks"]      # classes of task sources: `--tasks riddles`, or `riddles:hard`, where
    riddles = "my_package.riddles:Riddles"      # what is behind the colon is their first argument
    [project.entry-points."cotrain.commands"]   # functions of the words behind the command that return an exit code
    plot = "my_package.plot:plot"

A name of this package cannot be taken by another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError, UnknownName

RECIPES = "cotrain.recipes"
TASKS = "cotrain.tasks"
COMMANDS = "cotrain.commands"
# The package cotrain-zoo, whose folder is zoo/ of cotrain's repository: what it brings, told where it is not installed.
ZOO_RECIPES = {  # name → the first sentence about it
    "adversarial_imitation": "Imitation of an expert against a discriminator that learns to tell the two apart: GAD "
    "and RARO in one recipe.",
    "coder_tester": "A coder writes programs, a tester writes tests against them, and both learn: CURE and Code-A1 in "
    "one protocol.",
    "coverrl": "CoVerRL: one model elects its labels and verifies them, and both roles learn from what it agrees on.",
    "debate_solve": "A critic points at a step of the solver's own solution, and a judge believes the solution or not.",
    "dsm": "DeepSeekMath-V2: a generator that checks itself, a verifier that scores it, and a meta-verifier that "
    "judges the check.",
    "gar": "GAR: a reasoner and a discriminator of its slices, trained against each other (Generative Adversarial "
    "Reasoner).",
    "prover_verifier": "Prover–verifier game: a helpful prover, a sneaky prover and a verifier (Kirchner et al. 2024, "
    "arXiv 2407.13692).",
    "rubric_judge": "A writer of rubrics and a judge who prefers replies by them, trained in turns on preferences: "
    "Rubric-ARM.",
    "spiral": "SPIRAL: one policy plays both sides of a zero-sum game in text, and learns from who won.",
}  # fmt: skip
ZOO = {RECIPES: tuple(ZOO_RECIPES), TASKS: ("games", "short_programs")}


def zoo_folder() -> Path | None:
    """The zoo's folder beside this package, as in a clone; None where there is none."""
    folder = Path(__file__).resolve().parents[2] / "zoo"
    return folder if (folder / "cotrain_zoo").is_dir() else None


def shipped_places(group: str) -> dict[str, str]:
    """Name → ``module:attribute`` of the methods and task sources that the package's methods bring along."""
    table: dict[str, str] = getattr(import_module("cotrain.recipes"), group.rpartition(".")[2].upper())
    return table


def joined_places(group: str) -> dict[str, str]:
    """Name → ``module:attribute`` of what installed packages have registered in this group."""
    return {point.name: point.value for point in sorted(entry_points(group=group), key=lambda point: point.name)}


def load_named(group: str, name: str, own: dict[str, str], what: str, others: Iterable[str] = ()) -> Any:
    """The object behind a name, from ``own`` or else from an installed package.

    Raises UnknownName, in which ``what`` is the kind of thing and ``others`` are further names to suggest. Raises
    ConfigError for a name of the zoo where that is not installed, and where a package's own does not load.
    """
    place = own.get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        return getattr(import_module(module), attribute)
    point = next(iter(entry_points(group=group, name=name)), None)
    if point is None and name in ZOO.get(group, ()):
        raise ConfigError(
            f"{what} {name!r} is in the zoo, a package of its own: install it with `pip install -e zoo` in a clone of "
            "cotrain's repository",
            code="E_IN_ZOO",
        )
    if point is None:
        known = dict.fromkeys([*own, *others, *joined_places(group), *ZOO.get(group, ())])
        raise UnknownName(what, name, known)
    try:
        return point.load()
    except Exception as error:
        from cotrain.core.user_code import failure_of

        raise ConfigError(
            f"{what} {name!r} of an installed package ({point.value}): {failure_of(error)}", code="E_PLUGIN_NOT_LOADED"
        ) from error
