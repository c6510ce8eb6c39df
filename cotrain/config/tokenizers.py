"""Which policy scores whose tokens, and that both have one tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cotrain.algorithms.contract import Needs
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError
from cotrain.prompts.render import Renderer, Rendering


def policies_read(needs: Needs) -> set[str]:
    """The policies that an algorithm asks for log-probabilities or values."""
    policies = set(needs.scoring_policies)
    if needs.reference_policy is not None:
        policies.add(needs.reference_policy)
    if needs.value_policy is not None:
        policies.add(needs.value_policy)
    return policies


def scored_policies(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Who scores whose tokens: (objective, policy that samples, policy that scores), for each pair of policies."""
    for name, objective in recipe.objectives.items():
        scorers = {objective.policy, *policies_read(objective.algorithm.needs())}
        samplers = {recipe.roles[role].policy for role in objective.roles}
        for sampler in sorted(samplers):
            for scorer in sorted(scorers - {sampler}):
                yield name, sampler, scorer


def check_same_tokenizers(recipe: Recipe, renderers: Mapping[str, Rendering]) -> None:
    """Raise ConfigError where an objective scores tokens with a policy whose tokenizer differs from the sampler's.
    ``renderers``: of the policies to compare, by their names."""
    for objective, sampler, scorer in scored_policies(recipe):
        if sampler not in renderers or scorer not in renderers:  # a critic has none
            continue
        if _vocabulary_of(renderers[scorer]) != _vocabulary_of(renderers[sampler]):
            raise ConfigError(
                f"objective {objective!r}: policy {scorer!r} ({recipe.policies[scorer].model}) has another tokenizer "
                f"than {sampler!r} ({recipe.policies[sampler].model}), whose tokens it is to score; use models with "
                "one tokenizer",
                code="E_TOKENIZERS_DIFFER",
            )


def _vocabulary_of(renderer: Rendering) -> dict[str, int] | None:
    """Token → id; None for a renderer of bytes."""
    return renderer.tokenizer.get_vocab() if isinstance(renderer, Renderer) else None
