"""cotrain: train several language models together with reinforcement learning.

    import cotrain
    from cotrain.recipes.tango import tango

    cotrain.run(tango(steps=160), out="runs/mine")

Importing this package is cheap; torch and transformers are loaded with the first name that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotrain.api import compare, evaluate, report, resume, run

__version__ = "0.1.0"
__all__ = ["compare", "evaluate", "report", "resume", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from cotrain import api

        return getattr(api, name)
    raise AttributeError(f"module 'cotrain' has no attribute {name!r}")
