"""Debate: two sides, one policy, and a judge who can check one step, or who reads and votes; rewards are constant-sum.

After Irving et al. 2018 (arXiv 1805.00899) and Arnesen et al. 2024 (arXiv 2409.16636). A frozen author writes a right
and a wrong solution. One policy plays both debaters; each defends one of the solutions, by a draw, and names a step of
the other one that it says is wrong. With r the share of the judge's verdicts for a debater's side, a speech earns r,
less a penalty for words beyond the limit, or −1 if it cannot be read. The judge is not trained:

    judge="budget"   checks one step, one of the two that are named, each as likely
    judge="frozen"   a model reads both sides and votes ``votes`` times

In each debate one speech is drawn to be learned from: all before it is said once, and ``group_size`` speeches are
sampled in its place and compared with each other, by Dr. GRPO, or with ``algorithm="dpo"`` by DPO+.

The control ``consultancy`` has one debater alone, on a drawn side. ``judged_right`` is the share of verdicts for the
right solution, and ``judge/mcc`` says how true the judge's verdicts are. ``cotrain xplay --seats`` lets debaters of
other steps and seeds meet. The zoo's `debate_solve` has a critic against the solver's own solution.

What differs from the papers: a claim is the number of a step, with an argument that only a judge who reads hears. The
default model ``shipped-games`` was taught to accuse by a program that names any step. Left out: a judge who is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from cotrain import (
    ConfigError,
    Objective,
    Recipe,
    Role,
    RunConfig,
    constant_schedule,
    frozen,
    measure_solver,
    recipe,
    snapshot,
)
from cotrain.algorithms.contract import Algorithm
from cotrain.algorithms.dpo import Preference
from cotrain.algorithms.grpo import DrGRPO
from cotrain.config.policies import Policy
from cotrain.core.arguments import Share, Weight, at_least
from cotrain.metrics.heldout import Measure, measure_metadata, measure_verifier
from cotrain.recipes.debate.debates import HIT, JUDGED_RIGHT, PAID, SIDES, argue, parse_accusation
from cotrain.recipes.debate.prompts import ACCUSE, ACCUSE_FULL, ACCUSE_ON, ACCUSE_ON_FULL
from cotrain.rollout import common_roles, verifier_roles

# The default limit of words of a speech, and the most tokens where there is no limit. Models with terse prompts were
# taught to name a step and no more.
TERSE_WORDS = 4
FULL_WORDS = 100
TERSE_TOKENS = 64
FULL_TOKENS = 256


@recipe(model="shipped-games", kl=0.0, evaluation_tasks=64, steps=60)
def debate(
    run: RunConfig,
    *,
    judge: Literal["budget", "frozen"] = "budget",  # budget: checks one step; frozen: a model reads and votes
    votes: int = 8,  # votes of a model that judges
    consultancy: bool = False,  # one debater alone, on a drawn side
    algorithm: Literal["rl", "dpo"] = "rl",  # how the debater learns from the compared speeches
    turns: int = 1,  # turns of a debate; in each both sides speak at once
    leaves: int = 1,  # continuations of a speech that is not the last, whose outcomes are averaged
    words: int | None = None,  # limit of a speech, 0 for none (default: 100; 4 for the shipped models)
    overlong_penalty: float = 1.0,  # penalty of a speech of twice the limit, or more
    unread: float = -1.0,  # reward of a speech that cannot be read
    drafts: int = 4,  # solutions of a problem, from which the right and the wrong one are taken
    iteration: int = 20,  # updates after which DPO+'s reference is renewed
    beta: Weight = 0.5,  # β of DPO+
    gamma: Weight = 0.0,  # γ of its soft labels; 0: the paper's, 7, and 10 for a consultancy
    sft: Share = 0.005,  # share of the better speech's cross-entropy in its loss
) -> Recipe:
    at_least(1, "debate", votes=votes, turns=turns, leaves=leaves, iteration=iteration)
    at_least(2, "debate", drafts=drafts)
    limit = default_limit(run.model) if words is None else words
    soft = gamma or (10.0 if consultancy else 7.0)
    branches = Branches(algorithm=algorithm, iteration=iteration, beta=beta, soft=soft, sft=sft)
    check_speeches("debate", run, branches, limit, overlong_penalty)
    common_roles.check_taught("debate", run.model)

    if turns == 1:
        debater = speaker_role("debater", run.model, limit, ACCUSE, ACCUSE_FULL)
    else:
        debater = speaker_role("debater", run.model, limit, ACCUSE_ON, ACCUSE_ON_FULL)
    policies = branches.policies(run)
    roles = {"solver": common_roles.solver("author", run.model), "alice": debater, "bob": debater}
    measures: list[Measure] = [measure_solver("solver", 8)]
    for side in SIDES:
        measures.append(measure_metadata(side, JUDGED_RIGHT))
        measures.append(measure_metadata(side, HIT))
    if judge == "frozen":
        policies["judge"] = frozen(run.model)
        roles["judge"] = verifier_roles.comparer("judge", run.model)
        measures.append(measure_verifier("judge"))
    policies["author"] = frozen(run.model)

    protocol = partial(
        argue,
        words=limit,
        overlong_penalty=overlong_penalty,
        unread=unread,
        jury=votes if judge == "frozen" else 0,
        drafts=drafts,
        consultancy=consultancy,
        turns=turns,
    )
    schedule = constant_schedule(
        partial(protocol, samples=run.group_size, leaves=leaves),
        "debater",
        name="debate",
        group_size=1,  # the protocol samples a group of speeches itself
    )

    name = "debate"
    if consultancy:
        name += "-consultancy"
    if algorithm == "dpo":
        name += "-dpo"
    return run.recipe(
        name,
        policies=policies,
        roles=roles,
        objectives={"debater": branches.objective(run, "alice", "bob")},
        schedule=schedule,
        evaluate=protocol,
        measures=tuple(measures),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """How the policy of the debaters learns from speeches that continue the same beginning: by RL or by DPO+."""

    algorithm: Literal["rl", "dpo"]
    iteration: int  # updates with one reference, for DPO+ as all that follow
    beta: float  # β
    soft: float  # γ of the soft labels
    sft: float  # share of the better speech's cross-entropy in the loss

    def policies(self, run: RunConfig) -> dict[str, Policy]:
        """The policy of the debaters, and the reference of its loss."""
        if self.algorithm == "rl":
            return {"debater": run.learner(), **run.reference_policies()}
        before = snapshot(run.model, of="debater", every=self.iteration)
        return {"debater": run.learner(), "before": before}

    def objective(self, run: RunConfig, role: str, *extra_roles: str) -> Objective:
        """The objective of the policy, which plays these roles."""
        learn: Algorithm
        if self.algorithm == "rl":
            learn = DrGRPO(reward_weights={PAID: 1.0}, kl=run.kl_penalty())
        else:
            learn = Preference(
                policy="debater", reference="before", better=PAID, betas=(self.beta,), soft=self.soft, sft=self.sft
            )
        return Objective(policy="debater", role=role, extra_roles=extra_roles, algorithm=learn)


def check_speeches(name: str, run: RunConfig, branches: Branches, limit: int, overlong_penalty: float) -> None:
    """Raise ConfigError for rules under which no speech can be paid, or no two can be compared."""
    if min(limit, overlong_penalty) < 0:
        raise ConfigError(
            f"{name}: words is {limit} and overlong_penalty {overlong_penalty}; expected 0 or more",
            code="E_SETTING_RANGE",
        )
    if branches.algorithm == "dpo" and run.kl:
        raise ConfigError(
            f"{name}: kl is {run.kl}, and DPO+ is held by its own reference; leave kl at 0, or algorithm at rl",
            code="E_KL_WITH_DPO",
        )
    if branches.algorithm == "dpo" and run.group_size < 2:
        raise ConfigError(
            f"{name}: algorithm=dpo compares speeches, and group_size is {run.group_size}; expected at least 2",
            code="E_SETTING_RANGE",
        )


def default_limit(model: str) -> int:
    """The limit of words of a speech, where a user gives none."""
    return TERSE_WORDS if common_roles.is_terse(model) else FULL_WORDS


def speaker_role(policy: str, model: str, limit: int, terse_prompt: str, full_prompt: str) -> Role:
    """Accuses a step, in a speech of about ``limit`` words; 0: no limit."""
    return common_roles.make_role(
        policy,
        model,
        terse=common_roles.Prompt(terse_prompt, TERSE_TOKENS),
        full=common_roles.Prompt(full_prompt, FULL_TOKENS),
        parse=parse_accusation,
        max_tokens=4 * limit if limit else None,  # by default those of the prompt
    )
