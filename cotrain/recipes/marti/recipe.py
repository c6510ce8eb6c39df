"""MARTI: several agents, each with its own weights, answer in a workflow, and one rule shapes their rewards.

Tsinghua C3I's framework (ICLR 2026). ``recipes/marti/workflows.py`` has the workflows (debate, chain, mixture of
agents) and the rule: a turn earns R, whether its answer is right, and a shaping term with Q, the mean R of earlier
rounds.

    margin     R + α (R − Q)                              pays for getting better
    quality    R + α (Q R − (1 − Q) (1 − R))              pays for staying right, and for not staying wrong
    local      R                                          each answer alone

β · w is added for the answer of the team. Turns of one agent in one round are compared among the ``group_size`` games
of a problem.

Controls:

- ``workflow="vote"`` has as many turns as a debate, in which no agent sees another's answer; the majority is the team's
  answer. At equal budget the authors saw it beat their workflows before training.
- ``history="all"`` takes Q of a debate over all agents, as the authors' code does. Their documentation takes it over
  the agent's own turns, which is the default.
- ``frozen_agent`` names an agent that does not learn.

Different from the authors' code: GRPO in the place of GSPO, and no KL by default. The shipped model, ``shipped-games``,
has learned to answer the prompt that shows others' answers by repeating one of them, which is no use in finding the
right one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import ConfigError, Objective, Recipe, Role, RunConfig, constant_schedule, frozen, measure_solver, recipe
from cotrain.algorithms.grpo import ALGORITHMS
from cotrain.config.policy_base import Policy
from cotrain.core.arguments import Weight
from cotrain.core.notes import TEAM
from cotrain.metrics.heldout import measure_metadata
from cotrain.recipes.marti.workflows import (
    DEFAULT_AGENTS,
    SHAPED,
    SOLVE_AMONG,
    SOLVE_AMONG_FULL,
    Shaping,
    Workflow,
    check_workflow,
    play_workflow,
)
from cotrain.rollout import common_roles


@recipe(model="shipped-games", kl=0.0, steps=80)
def marti(
    run: RunConfig,
    *,
    workflow: Workflow = "debate",  # who sees whose answers, see ``recipes/marti/workflows.py``
    agents: int | None = None,  # number of agents; by default 2, and 3 for a chain or a mixture
    rounds: int = 2,  # rounds of a debate or a vote
    shaping: Shaping = "margin",  # how the reward of later rounds is shaped
    alpha: Weight = 0.5,  # weight of the shaping
    beta: Weight = 0.5,  # weight of the team's answer
    history: Literal["agent", "all"] = "agent",  # whose earlier turns count in a debate
    estimator: Literal["grpo", "rloo", "reinforce++"] = "grpo",  # advantage estimator of all agents
    models: tuple[str, ...] = (),  # initial weights of each agent; by default the model for all
    frozen_agent: int | None = None,  # an agent that does not learn, counted from 0
) -> Recipe:
    n_agents = DEFAULT_AGENTS[workflow] if agents is None else agents
    check_workflow(workflow, n_agents, rounds)
    agent_models = models or (run.model,) * n_agents
    learners = [i for i in range(n_agents) if i != frozen_agent]
    has_model_each = len(agent_models) == n_agents
    frozen_is_agent = frozen_agent is None or 0 <= frozen_agent < n_agents
    if not (has_model_each and frozen_is_agent and learners):
        raise ConfigError(
            f"marti: {len(agent_models)} models and frozen_agent={frozen_agent} for {n_agents} agents; expected a "
            "model each, one of the agents from 0, and somebody who learns",
            code="E_AGENT_MODELS",
        )

    policies: dict[str, Policy] = {}
    for i, model in enumerate(agent_models):
        policies[f"agent{i}"] = run.learner(model) if i in learners else frozen(model)
    policies |= run.reference_policies()

    roles_by_agent = [agent_roles(i, model, workflow, n_agents, rounds) for i, model in enumerate(agent_models)]
    roles: dict[str, Role] = {}
    for own_roles in roles_by_agent:
        roles |= own_roles

    objectives = {}
    for i in learners:
        main_role, *extra_roles = roles_by_agent[i]
        algorithm = ALGORITHMS[estimator](reward_weights={SHAPED: 1.0}, kl=run.kl_penalty())
        objectives[f"agent{i}"] = Objective(
            policy=f"agent{i}", role=main_role, extra_roles=tuple(extra_roles), algorithm=algorithm
        )

    protocol = partial(
        play_workflow,
        workflow=workflow,
        agents=n_agents,
        rounds=rounds,
        shaping=shaping,
        alpha=alpha,
        beta=beta,
        history=history,
    )
    return run.recipe(
        f"marti-{workflow}-{shaping}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name=workflow),
        evaluate=protocol,
        measures=(measure_metadata("agent0", TEAM), measure_solver("agent0", 8)),
    )


def agent_roles(i: int, model: str, workflow: Workflow, n_agents: int, rounds: int) -> dict[str, Role]:
    """The roles of agent i by their names: ``agent{i}`` answers alone, ``agent{i}_hears`` sees others' answers."""
    policy = f"agent{i}"
    if workflow == "chain" and i == 1:
        return {policy: common_roles.verifier(policy, model)}
    if workflow == "chain" and i == 2:
        return {policy: common_roles.refiner(policy, model)}

    is_aggregator = workflow == "mixture" and i == n_agents - 1
    debates = workflow == "debate" and rounds > 1
    solver = common_roles.solver(policy, model)
    roles = {}
    if not is_aggregator:
        roles[policy] = solver
    if is_aggregator or debates:
        common_roles.check_taught("marti", model)
        prompt = SOLVE_AMONG if common_roles.is_terse(model) else SOLVE_AMONG_FULL
        roles[f"{policy}_hears"] = replace(solver, prompt=prompt)
    return roles
