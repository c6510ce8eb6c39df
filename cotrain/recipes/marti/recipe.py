"""MARTI: agents of weights of their own in a workflow, whose rewards are allotted in one place.

Tsinghua C3I's framework (ICLR 2026). ``recipes/marti/workflows.py`` has the workflows (debate, chain, mixture of
agents) and the shaping of rewards by what was right in the rounds before: ``margin`` pays for getting better,
``quality`` for staying right and not staying wrong; ``beta`` adds the team's answer. Turns of one agent in one round
are compared among the ``group_size`` games of a problem.

Controls: ``workflow="vote"`` has as many turns in which nobody hears anybody, and the majority's answer: at equal
budget its authors saw it beat their workflows before training. ``shaping="local"`` pays each answer alone;
``over="all"`` takes Q of a debate over all agents, as their code does (their documentation: over the agent's own
turns). ``still`` names an agent that stays as it was.

Different from the authors' code: GRPO for GSPO, no KL by default. ``shipped-games`` was taught the prompt with others'
answers by repeating one of them, which tells it nothing of the truth.
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
from cotrain.recipes.marti.workflows import AGENTS, HEAR, HEAR_FULL, SHAPED, Shaping, Workflow, check_workflow, work
from cotrain.rollout import common_roles


@recipe(model="shipped-games", kl=0.0, steps=80)
def marti(
    run: RunConfig,
    *,
    workflow: Workflow = "debate",  # who hears whom, see ``recipes/marti/workflows.py``
    agents: int | None = None,  # number of agents; by default 2, and 3 for a chain or a mixture
    rounds: int = 2,  # rounds of a debate or a vote
    shaping: Shaping = "margin",  # how the reward of later rounds is shaped
    alpha: Weight = 0.5,  # weight of the shaping
    beta: Weight = 0.5,  # weight of the team's answer
    over: Literal["agent", "all"] = "agent",  # whose earlier turns count in a debate
    estimator: Literal["grpo", "rloo", "reinforce++"] = "grpo",  # advantage estimator of all agents
    models: tuple[str, ...] = (),  # initial weights of each agent; by default the model for all
    still: int | None = None,  # an agent that does not learn, counted from 0
) -> Recipe:
    count = AGENTS[workflow] if agents is None else agents
    check_workflow(workflow, count, rounds)
    agent_models = models or (run.model,) * count
    learns = [i for i in range(count) if i != still]
    if len(agent_models) != count or not learns or not 0 <= (still or 0) < count:
        raise ConfigError(
            f"marti: {len(agent_models)} models and still={still} for {count} agents; expected a model each, one of "
            "the agents from 0, and somebody who learns",
            code="E_AGENT_MODELS",
        )
    hearers = {"debate": tuple(range(count)) if rounds > 1 else (), "mixture": (count - 1,)}.get(workflow, ())
    policies: dict[str, Policy] = {
        f"agent{i}": run.learner(name) if i in learns else frozen(name) for i, name in enumerate(agent_models)
    }
    policies |= run.reference_policies()
    roles: dict[str, Role] = {}
    for i, name in enumerate(agent_models):
        plain = common_roles.solver(f"agent{i}", name)
        if workflow == "chain" and i:
            roles[f"agent{i}"] = (common_roles.verifier, common_roles.refiner)[i - 1](f"agent{i}", name)
        elif workflow != "mixture" or i < count - 1:
            roles[f"agent{i}"] = plain
        if i in hearers:
            common_roles.check_taught("marti", name)
            roles[f"agent{i}_hears"] = replace(plain, prompt=HEAR if common_roles.is_terse(name) else HEAR_FULL)
    objectives = {}
    for i in learns:
        agent_roles = [role for role in (f"agent{i}", f"agent{i}_hears") if role in roles]
        by = ALGORITHMS[estimator](reward_weights={SHAPED: 1.0}, kl=run.kl_penalty())
        objectives[f"agent{i}"] = Objective(
            policy=f"agent{i}", role=agent_roles[0], extra_roles=tuple(agent_roles[1:]), algorithm=by
        )
    protocol = partial(
        work, workflow=workflow, agents=count, rounds=rounds, shaping=shaping, alpha=alpha, beta=beta, over=over
    )
    first = "agent0" if "agent0" in roles else f"agent{count - 1}"
    return run.recipe(
        f"marti-{workflow}-{shaping}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name=workflow),
        evaluate=protocol,
        measures=(measure_metadata(first, TEAM), measure_solver(first, 8)),
    )
