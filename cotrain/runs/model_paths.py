"""Where a run finds its models again: from any directory, and at any time.

``pin_model_names`` writes absolute directories, and commits of models of the Hub, into a recipe before it is begun:
into its policies, into the arguments and settings that it is built of again, and into the paths of adapters it begins
with. What is not here keeps its name, and whoever loads it says what is wrong. A model that was moved: ``changes.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotrain.config.policies import Policy, Weights, model_names
from cotrain.config.recipe import Recipe
from cotrain.core.shipped import is_shipped
from cotrain.runs.directory import weights_hash


def pin_model_names(recipe: Recipe, begun: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe with lasting names; ``begun``: recipe.json of the run that goes on, whose names stay where they mean
    the same, but for a revision that the user names."""
    if all(is_shipped(name) for name in model_names(recipe.policies)):
        return recipe
    from cotrain.runs.renaming import with_lasting_names

    return with_lasting_names(recipe, begun)


def weights_of(policies: Mapping[str, Policy]) -> dict[str, str]:
    """Hashes of what each policy begins with."""
    found = {}
    for name, spec in policies.items():
        found[name] = weights_hash(spec.model) if isinstance(spec, Weights) else ""
        if spec.lora is not None and spec.lora.path is not None:
            found[f"{name}/adapter"] = weights_hash(spec.lora.path)
    return found
