"""The methods that ship with cotrain, one file each. A user's own method is the same kind of file outside the package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from cotrain.core.errors import ConfigError, UnknownName, unknown_message
from cotrain.loop.recipe import Recipe

SHIPPED = (  # module and function have one name
    "co_rewarding",
    "cooper",
    "coverrl",
    "critique",
    "demo",
    "dsm",
    "gar",
    "genprm",
    "grpo",
    "mars",
    "prime",
    "rise",
    "self_verify",
    "stepwiser",
    "tango",
    "ttrl",
)


def find(target: str) -> Callable[..., Recipe]:
    """The function behind ``name`` or ``path/to/file.py:function``. Raises UnknownName or ConfigError."""
    if ":" not in target and not target.endswith(".py"):
        if target not in SHIPPED:
            raise UnknownName("recipe", target, SHIPPED)
        return getattr(importlib.import_module(f"cotrain.recipes.{target}"), target)
    path, _, function = target.rpartition(":")
    if not function or target.endswith(".py"):
        raise ConfigError(f"recipe {target!r}: name the function too, as in {target.rstrip(':')}:my_method")
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"recipe {target!r}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"cotrain_user_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"recipe {target!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}, column {error.offset}: {error.msg}") from error
    made = [name for name, value in vars(module).items() if callable(value) and hasattr(value, "recipe")]
    if function not in made:
        raise ConfigError(
            f"recipe {target!r}: {unknown_message('function', function, made)}; a recipe is a function decorated with @recipe"
        )
    return getattr(module, function)
