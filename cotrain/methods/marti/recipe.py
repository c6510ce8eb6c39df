"""MARTI: agents of weights of their own in a workflow, whose rewards are allotted in one place.

Tsinghua C3I's framework (ICLR 2026). ``methods/marti/workflows.py`` has the workflows (debate, chain, mixture of
agents) and the shaping of rewards by what was right in the rounds before: ``margin`` pays for getting better,
``quality`` for staying right and not staying wrong; ``beta`` adds the team's answer. Turns of one agent in one round
are compared among the ``group_size`` games of a problem.

Controls: ``workflow="vote"`` has as many turns in which nobody hears anybody, and the majority's answer: at equal
budget its authors saw it beat their workflows before training. ``shaping="local"`` pays each answer alone;
``over="all"`` takes Q of a debate over all agents, as their code does (their documentation: over the agent's own
turns). ``still`` names an agent that stays as it was.

Different from the authors' code: GRPO for GSPO, no KL by default. Models that do not know the prompt with others'
answers learn it first by repeating an answer of their start (``warmup``), which tells them nothing of the truth.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from cotrain import BY_NAME, ConfigError, Objective, Phase, Policy, Recipe, Role, Settings, Sft
from cotrain import alternate, common_roles, frozen, noting, program, recipe, solving
from cotrain.methods.at_grpo.turns import TEAM
from cotrain.methods.marti.workflows import (
    AGENTS,
    HEAR,
    HEAR_FULL,
    SHAPED,
    Shaping,
    Workflow,
    check_workflow,
    rehearse,
    work,
)


def repeat(fields: Any, rng: Any) -> str:
    return str(fields["said"])


@recipe(model="embedded-roles", kl=0.0)
def marti(
    run: Settings,
    *,
    workflow: Workflow = "debate",  # who hears whom
    agents: int | None = None,  # how many; by default 2, and 3 for a chain or a mixture
    rounds: int = 2,  # of a debate or a vote
    shaping: Shaping = "margin",  # of the reward of later rounds
    alpha: float = 0.5,  # weight of the shaping
    beta: float = 0.5,  # weight of the team's answer
    over: Literal["agent", "all"] = "agent",  # whose earlier turns count in a debate
    estimator: Literal["grpo", "rloo", "reinforce++"] = "grpo",  # of all agents
    models: tuple[str, ...] = (),  # of the agents in turn; by default the model for all
    still: int | None = None,  # an agent that does not learn, counted from 0
    warmup: int = 20,  # steps in which the prompt with others' answers is learned
) -> Recipe:
    count = AGENTS[workflow] if agents is None else agents
    check_workflow(workflow, count, rounds)
    agent_models = models or (run.model,) * count
    learns = [i for i in range(count) if i != still]
    if len(agent_models) != count or not learns or not 0 <= (still or 0) < count:
        raise ConfigError(
            f"marti: {len(agent_models)} models and still={still} for {count} agents; expected a model each, one of "
            "the agents from 0, and somebody who learns"
        )
    hearers = {"debate": tuple(range(count)) if rounds > 1 else (), "mixture": (count - 1,)}.get(workflow, ())
    policies: dict[str, Policy] = {
        f"agent{i}": run.learner(name) if i in learns else frozen(name) for i, name in enumerate(agent_models)
    }
    policies |= run.start()
    roles: dict[str, Role] = {}
    for i, name in enumerate(agent_models):
        plain = common_roles.solver(f"agent{i}", name)
        if workflow == "chain" and i:
            roles[f"agent{i}"] = (common_roles.verifier, common_roles.refiner)[i - 1](f"agent{i}", name)
        elif workflow != "mixture" or i < count - 1:
            roles[f"agent{i}"] = plain
        if i in hearers:
            roles[f"agent{i}_hears"] = replace(plain, prompt=HEAR if common_roles.speaks_short(name) else HEAR_FULL)
    objectives = {}
    for i in learns:
        agent_roles = [role for role in (f"agent{i}", f"agent{i}_hears") if role in roles]
        by = BY_NAME[estimator](rewards={SHAPED: 1.0}, kl=run.pull())
        objectives[f"agent{i}"] = Objective(policy=f"agent{i}", on=agent_roles[0], also=tuple(agent_roles[1:]), by=by)
    play = partial(
        work, workflow=workflow, agents=count, rounds=rounds, shaping=shaping, alpha=alpha, beta=beta, over=over
    )
    phases = [Phase(name=workflow, protocol=play, objectives=tuple(objectives))]
    taught = tuple(i for i in hearers if i in learns) if warmup else ()
    if taught:
        policies["start"] = frozen(run.model)
        roles["before"] = common_roles.solver("start", run.model)
        for i in taught:
            policies[f"echo{i}"] = program(repeat, tokens_of=f"agent{i}")
            roles[f"echo{i}"] = replace(roles[f"agent{i}_hears"], policy=f"echo{i}")
            objectives[f"format{i}"] = Objective(policy=f"agent{i}", on=f"echo{i}", by=Sft())
        due, teach = tuple(f"format{i}" for i in taught), partial(rehearse, hearers=taught, agents=count)
        phases.append(Phase(name="format", protocol=teach, objectives=due, group_size=1))
    first = "agent0" if "agent0" in roles else f"agent{count - 1}"
    return run.recipe(
        f"marti-{workflow}-{shaping}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(*phases, ratio=(1, 0) if taught else (1,), warmup={"format": warmup} if taught else None),
        evaluate=play,
        measures=(noting(first, TEAM), solving(first, 8)),
    )
