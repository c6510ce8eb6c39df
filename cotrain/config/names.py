"""Names of roles, policies and objectives as users type them, with one meaning in all commands.

::

    verifier          a role; if there is none, the policy or the objective of that name
    policy/generator  a policy, as `cotrain serve` lists it

Where a command needs a role, the name of a policy or an objective means the one role that it plays or learns from. A
role has precedence over a policy of the same name. Left out: names of metrics, which begin with one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cotrain.core.errors import ConfigError, unknown_message

if TYPE_CHECKING:  # torch, which `cotrain why` does without
    from cotrain.config.recipe import Recipe
    from cotrain.rollout.role import Role

POLICY = "policy/"
SOLVER_LIMIT = "--max-tokens N"  # the flag for the role "solver"


def max_tokens_flag(role: str) -> str:
    """The flag by which the tokens of a role's answers are limited."""
    return SOLVER_LIMIT if role == "solver" else f"--set roles.{role}.sampling.max_tokens=N"


def policy_named(recipe: Recipe, name: str, flag: str = "--role") -> str:
    """The policy that is meant by the name of a role, a policy or an objective. Raises ConfigError for any other
    name."""
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
    """The role that is meant by the name of a role, a policy or an objective. If a policy plays several roles, those
    for which ``fits`` is true are meant. Raises ConfigError for any other name, and if several roles are left."""
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
    fault = f"plays no role; the roles are {', '.join(sorted(recipe.roles))}"
    if fitting:
        fault = f"plays {', '.join(fitting)}; name one of them"
    raise ConfigError(f"{flag} {name}: this policy {fault}", code="E_POLICY_UNSUITED")
