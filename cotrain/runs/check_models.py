"""Models that do not fit a recipe, found before any weights are loaded: from tokenizers and chat templates alone.

Refused are tools that a model cannot call, and tokens that one policy samples and another one, which has a different
tokenizer, is to score. A tool of the setting ``tool`` is called between control tokens (``rollout/token_calls.py``),
and the tools of an environment as the chat template writes calls (``envs/openenv/episode.py``). Left out: the tools
that an agent's requests bring, which nobody knows before they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotrain.config.policies import Program
from cotrain.config.policy_base import Policy
from cotrain.config.recipe import Recipe
from cotrain.config.remote import Remote
from cotrain.config.tokenizers import check_same_tokenizers, scored_policies
from cotrain.prompts.render import Rendering


def check_models(recipe: Recipe) -> None:
    """Raise ConfigError for a role that has tools and whose model cannot call them, and for an objective whose policies
    have different tokenizers."""
    check_tools(recipe)
    check_tokenizers(recipe)


def check_tools(recipe: Recipe) -> None:
    """Raise ConfigError for a role that has tools and whose model cannot call them."""
    # Tasks of an environment with tools have this method: ``OpenEnvEpisodes``, a module that only its own runs import.
    check_can_call = getattr(recipe.tasks, "check_can_call", None)
    for name, role in recipe.roles.items():
        if role.tool is None and check_can_call is None:
            continue
        renderer = renderer_of(role.policy, recipe.policies)
        if role.tool is not None:
            from cotrain.rollout.token_calls import marks_of

            marks_of(renderer, name)
        if check_can_call is not None:
            check_can_call(renderer)


def check_tokenizers(recipe: Recipe) -> None:
    """Raise ConfigError for an objective that scores tokens with a policy whose tokenizer differs from the sampler's.
    Policies whose tokenizers have one name are not compared, so that most recipes load none."""
    compared: set[str] = set()
    for _, sampler, scorer in scored_policies(recipe):
        if _tokenizer_name(sampler, recipe.policies) != _tokenizer_name(scorer, recipe.policies):
            compared |= {sampler, scorer}
    renderers = {name: renderer_of(name, recipe.policies) for name in compared if _is_asked(recipe.policies[name])}
    check_same_tokenizers(recipe, renderers)


def _is_asked(policy: Policy) -> bool:
    """Whether a policy gets prompts, and so has a renderer: all but critics."""
    is_model = bool(policy.head)
    return policy.generates or policy.scores or not is_model


def _tokenizer_name(name: str, policies: Mapping[str, Policy]) -> str:
    """The model whose tokenizer a policy uses; "" for bytes, as of a server that is sent messages."""
    policy = policies[name]
    if isinstance(policy, Program):
        return "" if policy.tokens_of is None else _tokenizer_name(policy.tokens_of, policies)
    if isinstance(policy, Remote):
        return policy.tokenizer or ""
    return policy.model


def renderer_of(name: str, policies: Mapping[str, Policy]) -> Rendering:
    """What a policy's prompts will be rendered by, once its model is loaded."""
    from cotrain.models.load import load_renderer
    from cotrain.prompts.byte_tokenizer import ByteRenderer

    policy = policies[name]
    if isinstance(policy, Program) and policy.tokens_of is not None:
        return renderer_of(policy.tokens_of, policies)
    tokenizer = _tokenizer_name(name, policies)
    if not tokenizer:
        return ByteRenderer()
    return load_renderer(tokenizer, trust_remote_code=getattr(policy, "trust_remote_code", False))
