"""The methods that ship with cotrain, one file each. A user's own method is the same kind of file outside the package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import ConfigError, CotrainError, UnknownName, unknown_message

if TYPE_CHECKING:  # a wrong name is said at once, before torch is loaded
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
    "gram",
    "grpo",
    "mars",
    "prime",
    "rise",
    "self_verify",
    "stepwiser",
    "tango",
    "ttrl",
)


def make(target: str, arguments: Mapping[str, Any]) -> Recipe:
    """The recipe that this function makes of these arguments; a user's function that fails is named in one line."""
    build = find(target)
    try:
        return build(**arguments)
    except CotrainError:
        raise
    except Exception as error:
        if target in SHIPPED:
            raise
        raise ConfigError(f"recipe {target!r}: {failure_in(Path(target.rpartition(':')[0]), error)}") from error


def failure_in(file: Path, error: BaseException) -> str:
    """``method.py, line 7: ZeroDivisionError: division by zero``: the last line of this file that an error went through."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file.resolve()]
    place = f"{file}, line {lines[-1]}" if lines else str(file)
    return f"{place}: {type(error).__name__}: {' '.join(str(error).split()) or 'without a message'}"


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
        where = error.filename or path
        raise ConfigError(f"{where}, line {error.lineno}, column {error.offset}: {error.msg}") from error
    except CotrainError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"recipe {target!r}: {failure_in(file, error)}") from error
    made = [name for name, value in vars(module).items() if callable(value) and hasattr(value, "recipe")]
    if function not in made:
        raise ConfigError(
            f"recipe {target!r}: {unknown_message('function', function, made)}; a recipe is a function decorated with @recipe"
        )
    return getattr(module, function)
