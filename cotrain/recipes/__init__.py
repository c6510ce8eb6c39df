"""The methods that ship with cotrain, one file each. A user's own method is the same kind of file outside the
package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import ConfigError, CotrainError, UnknownName, unknown_message
from cotrain.core.user_code import failure_in, load_file

if TYPE_CHECKING:  # a wrong name is said at once, before torch is loaded
    from cotrain.loop.recipe import Recipe

SHIPPED = (  # module and function have one name
    "alphaproof",
    "at_grpo",
    "co_rewarding",
    "constitutional",
    "cooper",
    "coverrl",
    "critique",
    "debate",
    "demo",
    "dsm",
    "gar",
    "generator_verifier_critic",
    "genprm",
    "gram",
    "grpo",
    "judged",
    "mae",
    "magrpo",
    "mars",
    "marti",
    "prime",
    "proposer_solver",
    "rise",
    "self_rewarding",
    "self_verify",
    "semi_supervised",
    "spin",
    "spiral",
    "ssp",
    "ssrl",
    "stepwiser",
    "tango",
    "ttrl",
    "two_agents_split",
)


def make(target: str, arguments: Mapping[str, Any], *, again: bool = False) -> Recipe:
    """The recipe that this function makes of these arguments; a user's function that fails is named in one line.
    ``again``: of a run that was begun, whose arguments do not change with the size of its model."""
    build = find(target)
    try:
        return build.again(**arguments) if again else build(**arguments)  # type: ignore[attr-defined]
    except CotrainError:
        raise
    except (Exception, SystemExit) as error:
        if target in SHIPPED:
            raise
        raise ConfigError(f"recipe {target!r}: {failure_in(Path(target.rpartition(':')[0]), error)}") from error


def find(target: str) -> Callable[..., Recipe]:
    """The function behind ``name`` or ``path/to/file.py:function``. Raises UnknownName or ConfigError."""
    if ":" not in target and not target.endswith(".py"):
        if target not in SHIPPED:
            raise UnknownName("recipe", target, SHIPPED)
        return getattr(importlib.import_module(f"cotrain.recipes.{target}"), target)
    path, _, function = target.rpartition(":")
    if not function or target.endswith(".py"):
        raise ConfigError(f"recipe {target!r}: name the function too, as in {target.rstrip(':')}:my_method")
    module = load_file(path, f"recipe {target!r}")
    made = [name for name, value in vars(module).items() if callable(value) and hasattr(value, "recipe")]
    if function not in made:
        raise ConfigError(
            f"recipe {target!r}: {unknown_message('function', function, made)}; a recipe is a function decorated "
            "with @recipe"
        )
    return getattr(module, function)
