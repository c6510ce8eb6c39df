"""Names of roles, policies and objectives as users type them: each means the same in every command.

::

    verifier          a role; else the policy or the objective that is called so
    policy/generator  a policy, as `cotrain serve` lists it

Where a role is wanted, a policy or an objective stands for the one role that it plays or learns from. A role has
precedence over a policy of its name. Left out: metrics, whose names begin with one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cotrain.core.errors import ConfigError, unknown_message

if TYPE_CHECKING:  # torch, which `cotrain why` does without
    from cotrain.config.recipe import Recipe
    from cotrain.rollout.role import Role

POLICY = "policy/"
SOLVER_LIMIT = "--max-tokens N"  # what advice names, where the role is the solver


def max_tokens_flag(role: str) -> str:
    """The flag by which the tokens of a role's answers are limited."""
    return SOLVER_LIMIT if role == "solver" else f"--set roles.{role}.sampling.max_tokens=N"


def policy_named(recipe: Recipe, name: str, flag: str = "--role") -> str:
    """The policy of a role, a policy or an objective. Raises ConfigError for a name that is none of them."""
    plain = name.removeprefix(POLICY)
    if plain == name and name in recipe.roles:
        return recipe.roles[name].policy
    if plain in recipe.policies:
        return plain
    if plain == name and name in recipe.objectives:
        return recipe.objectives[name].policy
    names = [*recipe.roles, *recipe.policies, *(f"{POLICY}{policy}" for policy in recipe.policies)]
    raise ConfigError(f"{flag}: {unknown_message('role or policy', name, names)}", code="E_NO_SUCH_ROLE_OR_POLICY")


def role_named(
    recipe: Recipe, name: str, flag: str = "--role", *, fits: Callable[[Role], bool] = lambda role: True
) -> str:
    """The role of this name, or the one role that fits of a policy's, or of an objective's. Raises ConfigError for a
    name that is none of them, and where several roles are meant."""
    if name in recipe.roles:
        return name
    if name in recipe.objectives and name not in recipe.policies:
        candidates: tuple[str, ...] = recipe.objectives[name].roles
    else:
        policy = policy_named(recipe, name, flag)
        candidates = tuple(role for role, spec in recipe.roles.items() if spec.policy == policy)
    fitting = [role for role in candidates if fits(recipe.roles[role])] or list(candidates)
    if len(fitting) == 1:
        return fitting[0]
    what = f"plays no role; the roles are {', '.join(sorted(recipe.roles))}"
    if fitting:
        what = f"plays {', '.join(fitting)}; name one of them"
    raise ConfigError(f"{flag} {name}: this policy {what}", code="E_POLICY_UNSUITED")
