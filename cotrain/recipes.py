"""The recipes that ship, by name: ``from cotrain.recipes import grpo, tango``. Each function returns a ``Recipe``,
which ``cotrain.run`` takes; ``cotrain list`` says what each is. Here every name is a recipe, while ``cotrain.grpo`` is
the estimator that a method's objective is given."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cotrain.methods import METHODS

__all__ = list(METHODS)


def __getattr__(name: str) -> Any:
    if name not in METHODS:
        raise AttributeError(f"module 'cotrain.recipes' has no recipe {name!r}")
    module, _, function = METHODS[name].partition(":")
    value = globals()[name] = getattr(import_module(module), function)
    return value


def __dir__() -> list[str]:
    return __all__
