"""The demo: RL Tango on short word problems, sized for five minutes on two cores."""

from __future__ import annotations

from cotrain.loop.recipe import Recipe
from cotrain.recipes.tango import tango


def demo(seed: int = 0) -> Recipe:
    return tango(seed=seed)
