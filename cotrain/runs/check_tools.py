"""Tools that a model cannot call, found before a run begins: from its tokenizer and chat template, without its weights.

A tool of the setting ``tool`` is called between control tokens (``rollout/token_calls.py``), and the tools of an
environment as the chat template writes calls (``envs/openenv/episode.py``). Left out: the tools that an agent's
requests bring, which nobody knows before they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotrain.config.policies import Program
from cotrain.config.policy_base import Policy
from cotrain.config.recipe import Recipe
from cotrain.config.remote import Remote
from cotrain.prompts.render import Rendering


def check_tools(recipe: Recipe) -> None:
    """Raise ConfigError for a role that has tools and whose model cannot call them."""
    # Tasks of an environment with tools have this method: ``OpenEnvEpisodes``, a module that only its own runs import.
    check_can_call = getattr(recipe.tasks, "check_can_call", None)
    for name, role in recipe.roles.items():
        if role.tool is None and check_can_call is None:
            continue
        renderer = _renderer_of(role.policy, recipe.policies)
        if role.tool is not None:
            from cotrain.rollout.token_calls import marks_of

            marks_of(renderer, name)
        if check_can_call is not None:
            check_can_call(renderer)


def _renderer_of(name: str, policies: Mapping[str, Policy]) -> Rendering:
    """What a policy's prompts will be rendered by, once its model is loaded."""
    from cotrain.models.load import load_renderer
    from cotrain.prompts.byte_tokenizer import ByteRenderer

    policy = policies[name]
    if isinstance(policy, Program):
        if policy.tokens_of is None:
            return ByteRenderer()
        return _renderer_of(policy.tokens_of, policies)
    if isinstance(policy, Remote):
        if policy.tokenizer is None:  # its prompts are sent as messages
            return ByteRenderer()
        return load_renderer(policy.tokenizer)
    return load_renderer(policy.model, trust_remote_code=getattr(policy, "trust_remote_code", False))
