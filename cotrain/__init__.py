"""cotrain: train several language models together with reinforcement learning.

    import cotrain
    from cotrain.recipes.tango import tango

    cotrain.run(tango(steps=160), out="runs/mine")

The verbs are those of ``cotrain.api``; what a method is written with is in ``cotrain.method``, and is imported from
here too: ``from cotrain import Role, Signal, grpo``. Importing this package is cheap; torch and transformers are loaded
with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotrain.api import compare, evaluate, report, resume, run  # noqa: F401
    from cotrain.method import *  # noqa: F403

__version__ = "0.1.0"
VERBS = ("compare", "evaluate", "report", "resume", "run")


def __getattr__(name: str) -> Any:
    if name in VERBS:
        return getattr(import_module("cotrain.api"), name)
    if not name.startswith("_") and find_spec(f"cotrain.{name}") is None:  # a module of its own is Python's to import
        method = import_module("cotrain.method")
        if name in method.__all__:
            return getattr(method, name)
    raise AttributeError(f"module 'cotrain' has no attribute {name!r}")
