"""Modules that are imported when something of them is first asked for: ``from cotrain.core.late import np``.

Importing numpy takes a tenth of a second, and torch seconds (``algorithms/functional/late_torch.py``). A recipe names
its algorithms and its measures, and so a command that only prints the recipe's flags, or refuses one, imports the files
in which their mathematics is written. Those files take these modules late, and use them inside of functions and in
annotations alone. ``tests/test_imports.py`` holds the commands to it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["LateModule", "np"]


class LateModule(ModuleType):
    """A module that is imported when one of its names is first used. Each name is looked up once."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import numpy as np
else:
    np = LateModule("numpy")
