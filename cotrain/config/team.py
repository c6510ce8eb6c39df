"""Roles that an external program or environment calls: which policy plays each of them, and what the policies learn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cotrain.algorithms.contract import Algorithm
from cotrain.config.policies import frozen
from cotrain.config.policy_base import Policy
from cotrain.config.recipe import Objective
from cotrain.config.run_config import RunConfig
from cotrain.core.types import Sampling
from cotrain.rollout.role import Role

SHARED = "generator"  # policy of all learning roles, if they share one
OTHERS = "others"  # frozen policy of all roles that do not learn


def cast_roles(
    run: RunConfig, roles: Iterable[str], learners: Sequence[str], *, shared: bool
) -> tuple[dict[str, Policy], dict[str, str]]:
    """The policies by name, and the policy of each role: its own one, the one that all ``learners`` share (if
    ``shared``), or the frozen one of roles that do not learn."""
    policies: dict[str, Policy] = dict(run.reference_policies())
    policy_of_role: dict[str, str] = {}
    for role in roles:
        if role not in learners:
            policy_of_role[role] = OTHERS
            policies[OTHERS] = frozen(run.model)
        else:
            policy = SHARED if shared else role
            policy_of_role[role] = policy
            policies[policy] = run.learner()
    return policies, policy_of_role


def team_roles(policy_of_role: Mapping[str, str], *, max_tokens: int) -> dict[str, Role]:
    """A role for each policy of ``cast_roles``. What it is asked is written elsewhere: by a program, an environment."""
    sampling = Sampling(max_tokens=max_tokens)
    return {name: Role(policy=policy, prompt="{problem}", sampling=sampling) for name, policy in policy_of_role.items()}


def team_objectives(learners: Sequence[str], algorithm: Algorithm, *, shared: bool) -> dict[str, Objective]:
    """An objective for each role that learns, or one for all of them if they share a policy."""
    if not shared:
        return {role: Objective(policy=role, role=role, algorithm=algorithm) for role in learners}
    first, *others = learners
    objective = Objective(policy=SHARED, role=first, extra_roles=tuple(others), algorithm=algorithm)
    return {SHARED: objective}
