"""AT-GRPO and Dr. MAS: agents work in turn, and a turn's advantage compares it with turns of the same agent.

    at_grpo   Zhao et al. 2025 (Stronger-MAS, arXiv 2510.11062): at each turn ``group_size`` candidates, of which the
              best goes on; a turn earns α · team + its own; z-scores within (problem, turn, agent)
    dr_mas    Feng et al. 2026 (arXiv 2602.08847): ``group_size`` trajectories, each paid at its end by the team's
              answer; z-scores within (problem, agent)

A solver, a verifier and a refiner work together (``recipes/at_grpo/turns.py``). ``weights="own"``: the reasoner (solver
and refiner) and the checker (verifier) are two policies with an optimiser each; "shared": one policy speaks for all;
either with ``--lora`` trains adapters.

Control: ``group="global"``, all turns of a problem in one group whoever spoke. With mean μ and deviation σ over all,
and μ_k, σ_k of agent k, its advantages then have the second moment (σ_k² + (μ_k − μ)²) / σ², which is 1 in groups of
its own. So an agent whose rewards differ from the others' gets large advantages: Dr. MAS's account of spikes in the
gradient (``tests/recipes/test_at_grpo.py`` works it out).

Different from the authors' code: one team of three roles on word problems; the verifier may end the game (as in
Dr. MAS's solver–verifier loop). Left out: searching teams, games (Plan-Path, Sokoban), swapped policies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from cotrain import GRPO, ConfigError, Objective, Recipe, RunConfig, constant_schedule, measure_solver, recipe
from cotrain.core.arguments import Weight
from cotrain.core.notes import TEAM
from cotrain.metrics.heldout import measure_metadata, measure_verifier
from cotrain.recipes.at_grpo.turns import TURN_REWARD, Grouping, check_turns, take_turns
from cotrain.rollout import common_roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The options in which the two methods differ."""

    tree: bool  # sample a group at each turn
    group: Grouping  # whose turns are compared
    local: float  # weight of a turn's own reward


VARIANTS = {
    "at_grpo": Variant(tree=True, group="turn", local=1.0),
    "dr_mas": Variant(tree=False, group="agent", local=0.0),
}


@recipe(model="shipped-roles", kl=0.0)
def at_grpo(
    run: RunConfig,
    *,
    variant: Literal["at_grpo", "dr_mas"] = "at_grpo",  # variant of the method
    group: Grouping | None = None,  # whose turns are compared; by default those of the variant
    alpha: Weight = 1.0,  # weight of the team's score in a turn's reward
    local: float | None = None,  # weight of a turn's own reward, for format or verdict; by default that of the variant
    rounds: int = 1,  # reviews of the solution, each with a revision after it
    weights: Literal["own", "shared"] = "own",  # one policy for each agent, or one for all
    checker_model: str | None = None,  # initial weights of the checker; by default the reasoner's model
    checker_lr: float = 2e-4,  # learning rate of a checker with weights of its own
) -> Recipe:
    defaults = VARIANTS[variant]
    options = replace(defaults, group=group or defaults.group, local=defaults.local if local is None else local)
    if rounds < 1 or min(alpha, options.local) < 0.0 or alpha + options.local == 0.0:
        raise ConfigError(
            f"at_grpo: rounds is {rounds}, alpha {alpha} and local {options.local}; expected at least 1 review, and "
            "weights of 0 or more that are not both 0",
            code="E_SETTING_RANGE",
        )
    shared = weights == "shared"
    if shared and checker_model is not None:
        raise ConfigError(
            "at_grpo: checker_model with weights='shared', where one policy speaks for all; leave it out",
            code="E_SHARED_WEIGHTS_OTHER_MODEL",
        )
    checker = "reasoner" if shared else "checker"
    initial_checker = checker_model or run.model
    samples = run.group_size if options.tree else 1  # a tree samples its group itself, at each turn of one episode
    pay: Literal["turn", "end"] = "turn" if options.tree else "end"
    check_turns(samples, rounds, pay)
    protocol = partial(
        take_turns, samples=samples, rounds=rounds, pay=pay, alpha=alpha, local=options.local, group=options.group
    )
    policies = {"reasoner": run.learner(), **run.reference_policies()}
    if not shared:
        policies["checker"] = run.learner(initial_checker, lr=checker_lr)

    def make_objective(policy: str, *own_roles: str) -> Objective:
        """The policy learns from the turns of its own roles; with global groups the others' are in the baseline."""
        baseline_roles: tuple[str, ...] = ()
        if options.group == "global":
            baseline_roles = tuple(role for role in ("solver", "refiner", "verifier") if role not in own_roles)
        kl = run.kl_penalty() if policy == "reasoner" else None
        algorithm = GRPO(reward_weights={TURN_REWARD: 1.0}, baseline_roles=baseline_roles, kl=kl)
        main_role, *extra_roles = own_roles
        # An objective gets the samples of its extra roles; those of baseline roles are compared with, not learned from.
        return Objective(
            policy=policy, role=main_role, extra_roles=(*extra_roles, *baseline_roles), algorithm=algorithm
        )

    objectives = {
        "reasoner": make_objective("reasoner", "solver", "refiner"),
        "checker": make_objective(checker, "verifier"),
    }
    return run.recipe(
        f"{variant}-{options.group}",
        policies=policies,
        roles={
            "solver": common_roles.solver("reasoner", run.model),
            "refiner": common_roles.refiner("reasoner", run.model),
            "verifier": common_roles.verifier(checker, initial_checker),
        },
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="team", group_size=1 if options.tree else None),
        evaluate=partial(take_turns, rounds=rounds),
        measures=(measure_solver("solver", 8), measure_metadata("solver", TEAM), measure_verifier("verifier")),
    )
