"""Recipes by name: those of cotrain, those of installed packages, and functions in a user's own file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import ConfigError, CotrainError, unknown_message
from cotrain.core.registry import RECIPES, joined_places, load_named, shipped_places

if TYPE_CHECKING:  # a wrong name is said at once, before torch is loaded
    from cotrain.config.recipe import Recipe
    from cotrain.config.run_config import RecipeFunction


def recipe_names() -> list[str]:
    """Every name that ``find_recipe`` knows, those of the package first."""
    return [*shipped_places(RECIPES), *joined_places(RECIPES)]


def make_recipe(target: str, arguments: Mapping[str, Any], *, again: bool = False) -> Recipe:
    """The recipe of the function behind ``target``. ``again``: for a run that was started before, whose defaults do not
    depend on the size of the model any more."""
    recipe_function = find_recipe(target)
    with failures_located(target):
        return recipe_function.make(arguments, again=again)


@contextmanager
def failures_located(target: str) -> Iterator[None]:
    """For calling a recipe function: if one of the user's fails, raise ConfigError with one line that says where. The
    working directory is the same afterwards."""
    from cotrain.core.user_code import kept_working_directory

    try:
        with kept_working_directory():
            yield
    except CotrainError:
        raise
    except (Exception, SystemExit) as error:
        if target in shipped_places(RECIPES):
            raise
        from cotrain.core.user_code import failure_in, failure_of

        file = target.rpartition(":")[0]
        reason = failure_in(Path(file), error) if file else failure_of(error)
        raise ConfigError(f"recipe {target!r}: {reason}", code="E_RECIPE_NOT_LOADED") from error


def find_recipe(target: str) -> RecipeFunction:
    """The function behind ``name`` or ``path/to/file.py:function``. Raises UnknownName or ConfigError."""
    if ":" not in target and not target.endswith(".py"):
        recipe_function = load_named(RECIPES, target, shipped_places(RECIPES), "recipe")
        from cotrain.config.run_config import RecipeFunction

        if not isinstance(recipe_function, RecipeFunction):
            raise ConfigError(
                f"recipe {target!r}: {recipe_function!r} is none; a recipe is a function decorated with @recipe",
                code="E_NOT_RECIPE",
            )
        return recipe_function
    path, _, function = target.rpartition(":")
    is_function_missing = not function or target.endswith(".py")
    if is_function_missing:
        path = target.rstrip(":")
    from cotrain.core.user_code import load_file

    module = load_file(path, f"recipe {target!r}")
    from cotrain.config.run_config import RecipeFunction

    recipes = {name: value for name, value in vars(module).items() if isinstance(value, RecipeFunction)}
    if is_function_missing:
        own = [name for name in recipes if vars(module)[name].__module__ == module.__name__]
        examples = " or ".join(f"{path}:{name}" for name in own) or f"{path}:my_method"
        raise ConfigError(
            f"recipe {target!r}: name the function too, as in {examples}", code="E_RECIPE_FUNCTION_UNNAMED"
        )
    undecorated = vars(module).get(function)
    if isfunction(undecorated) and function not in recipes:
        line = undecorated.__code__.co_firstlineno
        raise ConfigError(
            f"recipe {target!r}: {path}, line {line}: put @recipe above it, from cotrain import recipe",
            code="E_RECIPE_UNDECORATED",
        )
    if function not in recipes:
        raise ConfigError(
            f"recipe {target!r}: {unknown_message('function', function, recipes)}; a recipe is a function decorated "
            "with @recipe",
            code="E_NO_SUCH_RECIPE_FUNCTION",
        )
    return recipes[function]
