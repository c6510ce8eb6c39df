"""GAR: a reasoner and a discriminator of its slices, trained against each other (Generative Adversarial Reasoner).

Liu et al. 2025 (arXiv 2512.16917). A slice is a step here; the discriminator is the verifier, whose verdict on a step
is 1 for CORRECT. With λ = (1, 1, 1, ½), rewards added up before they are normalised (GRPO for both, in every step):

    reasoner       λ1 · [answer right] + λ2 · mean verdict on its steps
    discriminator  λ3 · GAN + λ4 · agreement
                   GAN: mean verdict on the steps of a worked solution; 1 − mean verdict on generated steps
                   agreement: share of its verdicts, the final one included, that are the outcome

A generated step that is word for word a step of the worked solution is left out of the GAN part: one text would have to
be right and wrong. A review of nothing else gets ½, which changes no advantage. A right step in other words or in
another order is still paid as a forgery, and the agreement alone speaks for it.

Controls are parameters: ``critic="frozen"`` never trains the discriminator (then no worked solution is shown),
``slice_weight=0`` is GRPO on the outcome, ``gan_weight=0`` and ``agreement_weight=0`` are the paper's single-reward
arms, ``balance=False`` reviews the worked solution as often as one generated solution. A task source without worked
solutions is refused.

Different from the paper: its GAN part has log M and log(1 − M) of a probability; a sampled verdict is 0 or 1, and the
mean is its linear form. It mixes as many reference as generated slices; here there are as many reviews of the worked
solution as of the generated ones that differ from it. Left out: supervised learning of the review format (the shipped
models know it) and slices of 320 tokens.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    GRPO,
    ConfigError,
    Objective,
    Recipe,
    Role,
    Roles,
    RunConfig,
    Sampling,
    Signal,
    Task,
    Turn,
    constant_schedule,
    examine,
    frozen,
    gives,
    program,
    recipe,
    solve_then_verify,
)
from cotrain.core.arguments import NotNegative, Positive, Weight, at_least
from cotrain.core.notes import Metadata
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.monte_carlo import review_verdicts, share_right
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import review, review_all

MATCH = Signal("match", meaning="1 for a right answer, else 0")
SLICES = Signal("slices", meaning="mean verdict on the steps")
GAN = Signal("gan", meaning="share of verdicts that tell where a step is from")
NOBODY_KNOWS = 0.5  # the GAN part of a review that has nothing to tell apart

COPIED_STEPS = Metadata[float]("copied_steps", float, "share of the steps that stand in the reference")


@gives(MATCH.to("solver"), SLICES.to("solver"), GAN.to("verifier"), AGREEMENT.to("verifier"))
async def contest(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 4,
    reviews: NotNegative = 4,
    balance: bool = True,
    learn: bool = True,
) -> None:
    """``samples`` solutions with ``reviews`` reviews each, and with ``learn`` as many of the worked solution. Rewards:
    of the solver ``match`` and ``slices`` (none when no review of it can be read), of the verifier ``gan`` and
    ``agreement``."""
    solutions = await attempts(task, roles, samples)
    for solution in solutions:
        solution.reward(MATCH, float(CORRECT.require(solution)))
        if not solution.parsed.ok:
            solution.reward(SLICES, 0.0)
    readable = [s for s in solutions if s.parsed.ok]
    review_turns = await review_all(task, roles, readable, n=reviews)
    for solution, turns in zip(readable, review_turns, strict=True):
        shares = [sum(turn.parsed.steps) / len(turn.parsed.steps) for turn in turns if turn.parsed.ok]
        if shares:
            solution.reward(SLICES, sum(shares) / len(shares))
    if not learn:
        return
    reference = await roles.reference(solution=worked_solution(task))
    if not await examine(task, roles, reference) or not reference.parsed.ok:
        raise ConfigError(
            f"gar: the worked solution of task {task.id} is not a right one in tagged steps",
            code="E_TASK_SOLUTION_NOT_TAGGED",
        )
    reference_steps = {step.text.strip() for step in reference.parsed.steps}
    differing = 0
    for solution, turns in zip(readable, review_turns, strict=True):
        new = [step.text.strip() not in reference_steps for step in solution.parsed.steps]
        solution.add_metadata(COPIED_STEPS, 1.0 - sum(new) / len(new))
        differing += any(new)
        pay_reviews(turns, real=False, new=new)
    if differing:
        count = reviews * (differing if balance else 1)
        pay_reviews(await review(task, roles, reference, n=count), real=True, new=[True] * len(reference.parsed.steps))


def pay_reviews(turns: Sequence[Turn], *, real: bool, new: Sequence[bool]) -> None:
    """The discriminator's rewards for reviews of one solution; an unreadable review earns nothing."""
    for turn in turns:
        outcome = CORRECT.require(turn)
        ok = turn.parsed.ok
        turn.reward(GAN, gan_reward(turn.parsed.steps, new, real=real) if ok else 0.0)
        said = review_verdicts(turn) if ok else (not outcome,)
        turn.reward(AGREEMENT, share_right(said, [outcome] * len(said)))


def gan_reward(said: Sequence[bool], new: Sequence[bool], *, real: bool) -> float:
    """Share of the verdicts on ``new`` steps that tell where the steps are from; ½ where no step is new."""
    asked = [verdict == real for verdict, counts in zip(said, new, strict=True) if counts]
    return sum(asked) / len(asked) if asked else NOBODY_KNOWS


def worked_solution(task: Task) -> str:
    if task.solution is None:
        raise ConfigError(
            f"gar: task {task.id} has no worked solution to tell generated ones from; choose a task source that has "
            "them, or critic='frozen'",
            code="E_TASK_WITHOUT_SOLUTION",
        )
    return task.solution


def recite(fields: Mapping[str, Any], rng: random.Random) -> str:
    return str(fields["solution"])


@recipe(group_size=4)
def gar(
    run: RunConfig,
    *,
    critic_model: str | None = None,  # begins the discriminator; by default the generator's model
    reviews: int = 4,  # of a solution
    critic_lr: float = 2e-4,  # learning rate of the discriminator
    match_weight: Weight = 1.0,  # λ1, of a right answer
    slice_weight: Weight = 1.0,  # λ2, of the verdicts on its steps
    gan_weight: Weight = 1.0,  # λ3, of telling worked from generated
    agreement_weight: Weight = 0.5,  # λ4, of agreeing with the outcome
    critic: Literal["trained", "frozen"] = "trained",  # does it learn?
    balance: bool = True,  # as many reviews of the worked solution as of others
) -> Recipe:
    trained = critic == "trained"
    initial_critic = critic_model or run.model
    at_least(2, "gar", group_size=run.group_size, reviews=reviews if trained else 2)
    reason = GRPO(
        reward_weights={MATCH: match_weight, SLICES: slice_weight}, sum_rewards_first=True, kl=run.kl_penalty()
    )
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=reason)}
    policies = {"generator": run.learner(), "verifier": frozen(initial_critic), **run.reference_policies()}
    roles = {
        "solver": common_roles.solver("generator", run.model),
        "verifier": common_roles.verifier("verifier", initial_critic),
    }
    if trained:
        worked_solution(run.problems.get("train", 0))
        tell_apart = GRPO(reward_weights={GAN: gan_weight, AGREEMENT: agreement_weight}, sum_rewards_first=True)
        objectives["critic"] = Objective(policy="verifier", role="verifier", algorithm=tell_apart)
        policies |= {"verifier": run.learner(initial_critic, lr=critic_lr), "worked_solution": program(recite)}
        sampling = Sampling(max_tokens=1)
        roles["reference"] = Role(
            policy="worked_solution", prompt="{solution}", sampling=sampling, parse=common_roles.parse_solution
        )
    play = partial(contest, samples=run.group_size, reviews=reviews, balance=balance, learn=trained)
    return run.recipe(
        "gar" if trained else "gar-frozen",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(play, *objectives, name="both", group_size=1),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles(),
    )
