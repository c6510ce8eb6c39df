"""A critic points at a step of the solver's own solution, and a judge believes the solution or not.

After Kenton et al. 2026, "Debate Training Reduces Reward Hacking in RLAIF". One policy is trained in two roles: the
solver writes a solution, and the critic, bob, speaks about it. The solver earns the share of the judge's verdicts that
believe the solution, and bob the rest (``contests.py`` has the game). The judge is not trained:

    judge="budget"   checks one step: the one that bob names
    judge="frozen"   a model reads and votes ``votes`` times

Controls are parameters:

- ``critic="consultant"``: bob speaks for or against the solution, by a draw.
- ``critic="none"``: RLAIF. Nobody speaks; the judge checks a drawn step, and pays the solver alone.
- ``critic="reviewer"``: bob reviews each step as a verifier does, and accuses the first that it calls wrong. All
  shipped models know how to do this.

``cotrain.recipes.debate`` has the game of two solutions, and the rules of speeches. Left out: a judge who is trained.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import Recipe, RunConfig, constant_schedule, frozen, measure_solver, program, recipe
from cotrain.core.arguments import Share, Weight, at_least
from cotrain.metrics.heldout import measure_metadata, measure_verifier
from cotrain.recipes.debate.debates import HIT
from cotrain.recipes.debate.recipe import Branches, check_speeches, default_limit, speaker_role
from cotrain.rollout import common_roles, verifier_roles
from cotrain_zoo.debate_solve.contests import Critic, check_step, contest, parse_review_as_accusation
from cotrain_zoo.debate_solve.prompts import CHECK_STEP, CRITICISE, CRITICISE_FULL


@recipe(model="shipped-games", kl=0.0, evaluation_tasks=64, steps=60)
def debate_solve(
    run: RunConfig,
    *,
    judge: Literal["budget", "frozen"] = "budget",  # budget: checks one step; frozen: a model reads and votes
    votes: int = 8,  # votes of a model that judges
    critic: Literal["opponent", "reviewer", "consultant", "none"] = "opponent",  # who speaks about the solution
    algorithm: Literal["rl", "dpo"] = "rl",  # how the policy learns from what is compared
    words: int | None = None,  # limit of a speech, 0 for none (default: 100; 4 for the shipped models; of reviews 0)
    overlong_penalty: float = 1.0,  # penalty of a speech of twice the limit, or more
    unread: float = -1.0,  # reward of a speech or a solution that cannot be read
    iteration: int = 20,  # updates after which DPO+'s reference is renewed
    beta: Weight = 0.5,  # β of DPO+
    gamma: Weight = 0.0,  # γ of its soft labels; 0: the paper's, 7, and 10 for a consultant
    sft: Share = 0.005,  # share of the better speech's cross-entropy in its loss
) -> Recipe:
    at_least(1, "debate_solve", votes=votes, iteration=iteration)
    is_reviewer = critic == "reviewer"
    if words is not None:
        limit = words
    elif is_reviewer:
        limit = 0
    else:
        limit = default_limit(run.model)
    soft = gamma or (10.0 if critic == "consultant" else 7.0)
    branches = Branches(algorithm=algorithm, iteration=iteration, beta=beta, soft=soft, sft=sft)
    check_speeches("debate_solve", run, branches, limit, overlong_penalty)
    if critic in ("opponent", "consultant"):
        common_roles.check_taught("debate_solve", run.model)

    if is_reviewer:
        critic_role = replace(common_roles.verifier("debater", run.model), parse=parse_review_as_accusation)
    else:
        critic_role = speaker_role("debater", run.model, limit, CRITICISE, CRITICISE_FULL)
    policies = branches.policies(run)
    roles = {"solver": common_roles.solver("debater", run.model), "bob": critic_role}
    if judge == "frozen":
        form: verifier_roles.ReviewFormat = "steps" if common_roles.is_terse(run.model) else "genrm"
        policies["judge"] = frozen(run.model)
        roles["judge"] = verifier_roles.verifier_role("judge", run.model, form)
    else:
        policies["judge"] = program(check_step, tokens_of="debater")
        roles["judge"] = verifier_roles.checker_role("judge", CHECK_STEP)

    learning_roles = ("solver",) if critic == "none" else ("solver", "bob")
    objectives = {"debater": branches.objective(run, *learning_roles)}
    speaker: Critic = "opponent" if critic == "reviewer" else critic
    protocol = partial(
        contest,
        words=limit,
        overlong_penalty=overlong_penalty,
        unread=unread,
        jury=votes if judge == "frozen" else 0,
        critic=speaker,
    )
    schedule = constant_schedule(
        partial(protocol, samples=run.group_size),
        *objectives,
        name="debate",
        group_size=1,  # the protocol samples a group of solutions or speeches itself
    )

    name = "debate-solve"
    if critic == "consultant":
        name += "-consultancy"
    elif critic == "none":
        name += "-rlaif"
    if algorithm == "dpo":
        name += "-dpo"
    return run.recipe(
        name,
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=protocol,
        measures=(measure_solver("solver", 8), measure_verifier("judge"), measure_metadata("bob", HIT)),
    )
