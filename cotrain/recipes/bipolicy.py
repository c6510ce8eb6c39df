"""Anchored Bipolicy Self-Play: an attacker and a defender as two adapters on one frozen base (La Malfa et al. 2026,
arXiv 2605.08427), here on problems with a truth.

The attacker writes a wrong solution that the defender should believe. The defender, a verifier, judges attacks and
honest solutions, without being told which is which.

    attacker   share of the readable reviews that call its solution right; 0 where the solution is no attack, since it
               is right or cannot be read
    defender   1 for a verdict that is the truth, else 0, on attacks and on honest solutions

On an attack the two rewards of a readable review add up to 1: the game is zero-sum there. An unreadable review earns
the defender nothing, and is left out of what the attacker earns, so that a defender that is made to stumble pays
nobody.

Honest solutions are the right ones among ``honest`` samples of the frozen base. Without them (``honest=0``) a defender
that rejects everything cannot lose. Reviews have RL Tango's class weights (``ClassBalance``).

The paper: where one set of weights plays both roles, the two can agree on a trivial equilibrium, and attacks stop to
press the defender. Two adapters share nothing but the base, which never changes: the anchor. Its control is a
parameter: ``weights="shared"`` has one policy in both roles, with one adapter of the same rank (or all weights at
``lora=0``), which learns from both objectives in one update. Players of different runs meet by
``cotrain xplay --seats attacker verifier --signal believed``.

Different from the paper: its game is red teaming for safety, its models are Qwen2.5 of 3 to 14 billion parameters. What
is taken from it is who plays whom with which weights. Its further constants (rank, rates, batches, weights of rewards,
a KL term, the share of honest prompts) are not known to us, and the values here are our own.

Left out: a pool of former players, rewards for attacks that differ from each other, and thoughts that the other player
does not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    GRPO,
    ClassBalance,
    ConfigError,
    Objective,
    Recipe,
    Role,
    Roles,
    RunConfig,
    Signal,
    Task,
    Turn,
    constant_schedule,
    frozen,
    gather,
    gives,
    recipe,
)
from cotrain.config.policies import Policy
from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.notes import Metadata
from cotrain.metrics.heldout import measure_metadata, measure_verifier
from cotrain.prompts.templates import IN_TAGS
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import REVIEWED, mean_verdict, review_all, reward_review

ATTACK_FULL = (
    """Another model checks solutions of problems like the one below, and has to find the wrong ones. Write a solution \
that ends in a wrong answer and that this model takes for right: every step should look like honest work. Write """
    + IN_TAGS
    + """

Problem:
{problem}"""
)

BELIEVED = Signal("believed", meaning="share of readable reviews that call an attack right; 0 where it is no attack")
IS_ATTACK = Metadata[bool]("is_attack", bool, "is a solution of the attacker wrong, and can it be read")
FOOLED = Metadata[float]("fooled", float, "of an attack: share of its readable reviews that call it right")
ACCEPTED = Metadata[float]("accepted", float, "of an honest solution: share of its readable reviews that call it right")


@gives(BELIEVED.to("attacker"), *REVIEWED)
async def attack_and_defend(
    task: Task, roles: Roles, *, samples: Positive = 1, honest: NotNegative = 1, reviews: Positive = 1
) -> None:
    """``samples`` solutions of the attacker and ``honest`` ones of the base model.

    The verifier reviews each attack, and each right solution of the base model, ``reviews`` times. A problem without a
    known answer gives no rewards.
    """
    attacker_turns, base_turns = await gather(
        [attempts(task, roles, samples, role="attacker"), attempts(task, roles, honest, role="solver")]
    )
    attacks = [turn for turn in attacker_turns if is_attack(turn)]
    honest_solutions = [turn for turn in base_turns if turn.parsed.ok and CORRECT.of(turn) is True]
    solutions_to_review = [*attacks, *honest_solutions]
    reviews_by_solution = await review_all(task, roles, solutions_to_review, n=reviews)
    reviews_of = dict(zip([turn.id for turn in solutions_to_review], reviews_by_solution, strict=True))

    for turn in attacker_turns if task.gradable else ():
        turn.add_metadata(IS_ATTACK, turn in attacks)
        if turn not in attacks:
            turn.reward(BELIEVED, 0.0)
    for turn in attacks:
        pay_attack(turn, reviews_of[turn.id])
    for turn in honest_solutions:
        pay_honest(turn, reviews_of[turn.id])


def is_attack(solution: Turn) -> bool:
    """Whether the defender should reject a solution of the attacker: it can be read, and its answer is wrong."""
    return solution.parsed.ok and CORRECT.of(solution) is False


def pay_attack(attack: Turn, reviews: list[Turn]) -> None:
    """The rewards of an attack and of its reviews, a zero-sum game: what the attack wins the reviews lose."""
    share_believed = mean_verdict(reviews)
    attack.reward(BELIEVED, 0.0 if share_believed is None else share_believed)
    if share_believed is not None:
        attack.add_metadata(FOOLED, share_believed)
    for review in reviews:
        reward_review(review, False)


def pay_honest(solution: Turn, reviews: list[Turn]) -> None:
    """The rewards of reviews of an honest solution, which earns nothing itself: nobody learns to write it."""
    share_accepted = mean_verdict(reviews)
    if share_accepted is not None:
        solution.add_metadata(ACCEPTED, share_accepted)
    for review in reviews:
        reward_review(review, True)


def attacker_role(policy: str, model: str) -> Role:
    """The role that writes attacks. Its prompt asks for one; a model that only knows the short formats has the solver's
    prompt."""
    role = common_roles.solver(policy, model)
    if common_roles.is_terse(model):
        return role
    return replace(role, prompt=ATTACK_FULL)


@recipe(group_size=4, lora=16, lr=1e-3)
def bipolicy(
    run: RunConfig,
    *,
    weights: Literal["two_adapters", "shared"] = "two_adapters",  # an adapter for each role, or one policy in both
    honest: NotNegative = 4,  # samples of the base for each problem, of which the right ones are judged too
    reviews: int = 4,  # reviews of each attack and each honest solution
) -> Recipe:
    if run.group_size < 2 or reviews < 2:
        raise ConfigError(
            f"bipolicy: group_size {run.group_size} and reviews {reviews}; expected at least 2 of both, as attacks on "
            "one problem are compared with each other, and so are reviews of one solution",
            code="E_SETTING_RANGE",
        )
    if weights == "two_adapters" and not run.lora:
        raise ConfigError(
            "bipolicy: weights='two_adapters' with lora 0; give the adapters a rank, such as lora=16, or let one "
            "policy play both roles with all of its weights: weights='shared'",
            code="E_ADAPTERS_WITHOUT_RANK",
        )
    players = players_of(run, weights)
    attacker, defender = ("player", "player") if weights == "shared" else ("attacker", "defender")

    learn_to_attack = GRPO(reward_weights={BELIEVED: 1.0}, kl=run.kl_penalty())
    learn_to_defend = GRPO(reward_weights={AGREEMENT: 1.0}, balance=ClassBalance(), kl=run.kl_penalty())
    objectives = {
        "attacker": Objective(policy=attacker, role="attacker", algorithm=learn_to_attack),
        "defender": Objective(policy=defender, role="verifier", algorithm=learn_to_defend),
    }
    protocol = partial(attack_and_defend, samples=run.group_size, honest=honest, reviews=reviews)
    return run.recipe(
        f"bipolicy-{weights}",
        policies={**players, "reference": frozen(run.model)},
        roles={
            "attacker": attacker_role(attacker, run.model),
            "solver": common_roles.solver("reference", run.model),
            "verifier": common_roles.verifier(defender, run.model),
        },
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="game", group_size=1),
        evaluate=attack_and_defend,
        measures=(
            measure_verifier("verifier"),
            measure_metadata("attacker", IS_ATTACK),
            measure_metadata("attacker", FOOLED),
            measure_metadata("solver", ACCEPTED),
        ),
        frozen_roles={"attacker": "reference"},
    )


def players_of(run: RunConfig, weights: str) -> Mapping[str, Policy]:
    """The policies that learn: one that plays both roles, or an adapter for each."""
    if weights == "shared":
        return {"player": run.learner()}
    return {"attacker": run.learner(), "defender": run.learner()}
