"""Debate: two sides, one policy, and a judge who can check one step, or who reads and votes; rewards are constant-sum.

After Irving et al. 2018 (arXiv 1805.00899) and Arnesen et al. 2024 (arXiv 2409.16636): of a right and a wrong solution
of a frozen author each debater defends one, by a draw, and points at the step of the other's that it says is wrong.

    judge="budget"   checks one step: one of the two that are accused, each as likely
    judge="frozen"   a model reads and votes ``votes`` times; r is its share

Prefix, then diverge: one ply is drawn; all before it is said once, and there ``group_size`` speeches are compared with
each other. A speech is paid r or 1 − r, less a soft penalty for words beyond the limit; −1 if it cannot be read.
``by="dpo"`` is DPO+ on such branches in place of RL.

The control: ``consultancy`` has one debater on a drawn side. ``judged`` is the share of verdicts for the right
solution; ``judge/mcc`` says how true verdicts are. ``cotrain xplay --seats`` lets debaters of other steps and seeds
meet. The zoo's `debate_solve` has a critic against the solver's own solution.

Different from the papers: a claim is the number of a step, with an argument that only a judge who reads hears;
``shipped-games`` was taught to accuse by a program that points anywhere. Left out: a judge who is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from cotrain import (
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Role,
    RunConfig,
    Sampling,
    alternate,
    frozen,
    measure_solver,
    recipe,
    snapshot,
)
from cotrain.algorithms.dpo import Preference
from cotrain.algorithms.grpo import DrGRPO
from cotrain.config.policies import Policy
from cotrain.core.arguments import Share, Weight, at_least
from cotrain.metrics.heldout import measure_metadata, measure_verifier
from cotrain.recipes.debate.debates import HIT, JUDGED_RIGHT, PAID, SIDES, argue, parse_accusation
from cotrain.recipes.debate.prompts import ACCUSE, ACCUSE_FULL, ACCUSE_ON, ACCUSE_ON_FULL
from cotrain.rollout import common_roles, verifier_roles

LIMITS = 4, 100  # words of a speech: of models that name a step and no more, and of others
MOST = 64, 256  # tokens of a speech without a limit


@recipe(model="shipped-games", kl=0.0, evaluation_tasks=64, steps=60)
def debate(
    run: RunConfig,
    *,
    judge: Literal["budget", "frozen"] = "budget",  # checks one step, or reads and votes
    votes: int = 8,  # of a model that judges
    consultancy: bool = False,  # one debater alone, on a drawn side
    by: Literal["rl", "dpo"] = "rl",  # what learns from the branches
    turns: int = 1,  # of both sides at once
    leaves: int = 1,  # continuations of a speech that is not the last, whose outcomes are averaged
    words: int | None = None,  # limit of a speech, 0 for none (default: 100; 4 for the shipped models)
    over: float = 1.0,  # what a speech pays that is twice as long
    unread: float = -1.0,  # what is paid for one that cannot be read
    drafts: int = 4,  # solutions of a problem that a pair is taken from
    iteration: int = 20,  # updates of DPO+ with one reference
    beta: Weight = 0.5,  # β of DPO+
    gamma: Weight = 0.0,  # γ of its soft labels; 0: the paper's, 7, and 10 for a consultancy
    sft: Share = 0.005,  # share of the better speech's cross-entropy in its loss
) -> Recipe:
    at_least(1, "debate", votes=votes, turns=turns, leaves=leaves, iteration=iteration)
    at_least(2, "debate", drafts=drafts)
    limit = default_limit(run.model) if words is None else words
    soft = gamma or (10.0 if consultancy else 7.0)
    branches = Branches(by=by, iteration=iteration, beta=beta, soft=soft, sft=sft)
    check_speeches("debate", run, branches, limit, over)
    common_roles.check_taught("debate", run.model)
    prompts = (ACCUSE, ACCUSE_FULL) if turns == 1 else (ACCUSE_ON, ACCUSE_ON_FULL)
    generates = speaker_role("debater", run.model, limit, *prompts)
    policies = branches.policies(run)
    roles = {"solver": common_roles.solver("author", run.model), **dict.fromkeys(SIDES, generates)}
    measures = (
        measure_solver("solver", 8),
        *(measure_metadata(side, note) for side in SIDES for note in (JUDGED_RIGHT, HIT)),
    )
    if judge == "frozen":
        policies["judge"] = frozen(run.model)
        roles["judge"] = verifier_roles.comparer("judge", run.model)
        measures += (measure_verifier("judge"),)
    policies["author"] = frozen(run.model)
    objectives = {"debater": branches.objective(run, "alice", "bob")}
    play = partial(
        argue,
        words=limit,
        over=over,
        unread=unread,
        jury=votes if judge == "frozen" else 0,
        drafts=drafts,
        consultancy=consultancy,
        turns=turns,
    )
    branching = partial(play, samples=run.group_size, leaves=leaves)
    phase = Phase(name="debate", protocol=branching, objectives=tuple(objectives), group_size=1)
    return run.recipe(
        f"debate{'-consultancy' if consultancy else ''}{'-dpo' if by == 'dpo' else ''}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluate=play,
        measures=measures,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """How the debater, whose policy is all debaters', learns from speeches that branch off from one beginning."""

    by: Literal["rl", "dpo"]
    iteration: int  # of DPO+, as all that follows
    beta: float
    soft: float
    sft: float

    def policies(self, run: RunConfig) -> dict[str, Policy]:
        """The debater, and what it is held to."""
        if self.by == "rl":
            return {"debater": run.learner(), **run.reference_policies()}
        before = snapshot(run.model, of="debater", every=self.iteration)
        return {"debater": run.learner(), "before": before}

    def objective(self, run: RunConfig, on: str, *also: str) -> Objective:
        if self.by == "rl":
            return Objective(
                policy="debater",
                role=on,
                extra_roles=also,
                algorithm=DrGRPO(reward_weights={PAID: 1.0}, kl=run.kl_penalty()),
            )
        prefer = Preference(
            policy="debater", reference="before", better=PAID, betas=(self.beta,), soft=self.soft, sft=self.sft
        )
        return Objective(policy="debater", role=on, extra_roles=also, algorithm=prefer)


def check_speeches(name: str, run: RunConfig, branches: Branches, limit: int, over: float) -> None:
    """Raise ConfigError for rules under which no speech can be paid, or no two can be compared."""
    if min(limit, over) < 0:
        raise ConfigError(f"{name}: words is {limit} and over {over}; expected 0 or more", code="E_SETTING_RANGE")
    if branches.by == "dpo" and run.kl:
        raise ConfigError(
            f"{name}: kl is {run.kl}, and DPO+ is held by its own reference; leave kl at 0, or by at rl",
            code="E_KL_WITH_DPO",
        )
    if branches.by == "dpo" and run.group_size < 2:
        raise ConfigError(
            f"{name}: by=dpo compares speeches, and group_size is {run.group_size}; expected at least 2",
            code="E_SETTING_RANGE",
        )


def default_limit(model: str) -> int:
    return LIMITS[not common_roles.is_terse(model)]


def speaker_role(policy: str, model: str, limit: int, short_prompt: str, prompt: str) -> Role:
    """Who accuses a step, with room for the words that it may say."""
    short = common_roles.is_terse(model)
    most = Sampling(max_tokens=4 * limit or MOST[not short])
    return Role(policy=policy, prompt=short_prompt if short else prompt, parse=parse_accusation, sampling=most)
