"""GAR: a reasoner and a discriminator of its slices, trained against each other (Generative Adversarial Reasoner).

Liu et al. 2025 (arXiv 2512.16917). Reasoner and discriminator both learn at every step, by GRPO on a sum of rewards;
λ = (1, 1, 1, ½). A slice is a step here. The discriminator is the verifier, and its verdict on a step is 1 for CORRECT.

    reasoner       λ1 · match + λ2 · slices
                   match      1 for a right answer
                   slices     mean verdict on its steps
    discriminator  λ3 · GAN + λ4 · agreement
                   GAN        mean verdict on the steps of a worked solution; 1 − mean verdict on generated steps
                   agreement  share of its verdicts, the final one included, that equal the outcome

A generated step that stands word for word in the worked solution has no part in GAN, for the same text would have to be
called right and wrong. A review with no other steps gets ½. A right step in other words, or in another order, still
counts as generated: only ``agreement`` pays for calling it right.

Controls are parameters:

- ``critic="frozen"``: the discriminator is never trained, and no worked solution is shown.
- ``slice_weight=0``: the reasoner's GRPO is on the outcome alone.
- ``gan_weight=0``, ``agreement_weight=0``: the paper's arms with a single reward.
- ``balance=False``: the worked solution is reviewed as often as one generated solution.

A task source without worked solutions is refused.

What differs from the paper:

- Its GAN has log M and log(1 − M) of a probability M. A sampled verdict is 0 or 1, and the mean is the linear form.
- It mixes as many reference as generated slices. Here the worked solution has as many reviews as all the generated
  solutions that differ from it.
- Left out: supervised learning of the review format, which the shipped models know, and slices of 320 tokens.
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
from cotrain.rollout.monte_carlo import review_verdicts, share_equal
from cotrain.rollout.pairs import check_demonstrations
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import review, review_all

MATCH = Signal("match", meaning="1 for a right answer, else 0")
SLICES = Signal("slices", meaning="mean verdict on the steps")
GAN = Signal("gan", meaning="share of verdicts that tell where a step is from")
GAN_OF_NOTHING = 0.5  # GAN of a review without a new step: all such reviews have it, so it changes no advantage

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
    """``samples`` solutions with ``reviews`` reviews each. With ``learn``, reviews of the worked solution too, and
    rewards for the discriminator.

    A solution of which no review can be read has no ``slices``.
    """
    solutions = await attempts(task, roles, samples)
    for solution in solutions:
        solution.reward(MATCH, float(CORRECT.require(solution)))
        if not solution.parsed.ok:
            solution.reward(SLICES, 0.0)

    readable = [solution for solution in solutions if solution.parsed.ok]
    reviews_by_solution = await review_all(task, roles, readable, n=reviews)
    for solution, review_turns in zip(readable, reviews_by_solution, strict=True):
        mean_verdicts = []
        for turn in review_turns:
            if turn.parsed.ok:
                mean_verdicts.append(sum(turn.parsed.steps) / len(turn.parsed.steps))
        if mean_verdicts:
            solution.reward(SLICES, sum(mean_verdicts) / len(mean_verdicts))
    if not learn:
        return

    # The discriminator: reviews of generated solutions, then reviews of the worked one, which a program recites.
    reference = await roles.reference(solution=worked_solution(task))
    if not await examine(task, roles, reference) or not reference.parsed.ok:
        raise ConfigError(
            f"gar: the worked solution of task {task.id} is not a right one in tagged steps",
            code="E_TASK_SOLUTION_NOT_TAGGED",
        )
    reference_steps = {step.text.strip() for step in reference.parsed.steps}
    n_differing = 0  # solutions with a step that is not in the worked one
    for solution, review_turns in zip(readable, reviews_by_solution, strict=True):
        is_new = [step.text.strip() not in reference_steps for step in solution.parsed.steps]
        solution.add_metadata(COPIED_STEPS, 1.0 - sum(is_new) / len(is_new))
        if any(is_new):
            n_differing += 1
        pay_reviews(review_turns, is_worked=False, is_new=is_new)
    if n_differing == 0:
        return
    n_reviews = reviews * n_differing if balance else reviews
    reference_reviews = await review(task, roles, reference, n=n_reviews)
    pay_reviews(reference_reviews, is_worked=True, is_new=[True] * len(reference.parsed.steps))


def pay_reviews(review_turns: Sequence[Turn], *, is_worked: bool, is_new: Sequence[bool]) -> None:
    """The discriminator's rewards for reviews of one solution; an unreadable review earns 0.

    ``is_worked``: it is the worked solution. ``is_new``: [K] which of its steps count for GAN.
    """
    for turn in review_turns:
        if not turn.parsed.ok:
            turn.reward(GAN, 0.0)
            turn.reward(AGREEMENT, 0.0)
            continue
        turn.reward(GAN, gan_reward(turn.parsed.steps, is_new, real=is_worked))
        verdicts = review_verdicts(turn)
        is_right = CORRECT.require(turn)
        turn.reward(AGREEMENT, share_equal(verdicts, [is_right] * len(verdicts)))


def gan_reward(verdicts: Sequence[bool], is_new: Sequence[bool], *, real: bool) -> float:
    """Share of the verdicts on new steps that tell where the steps are from; ½ where no step is new. ``real``: they are
    from the worked solution."""
    told_apart = [verdict == real for verdict, counts in zip(verdicts, is_new, strict=True) if counts]
    if not told_apart:
        return GAN_OF_NOTHING
    return sum(told_apart) / len(told_apart)


def worked_solution(task: Task) -> str:
    """The worked solution of a task. Raises ConfigError where it has none."""
    if task.solution is None:
        raise ConfigError(
            f"gar: task {task.id} has no worked solution to tell generated ones from; choose a task source that has "
            "them, or critic='frozen'",
            code="E_TASK_WITHOUT_SOLUTION",
        )
    return task.solution


def recite(fields: Mapping[str, Any], rng: random.Random) -> str:
    """The policy of the role ``reference``: it says the worked solution that it is given."""
    return str(fields["solution"])


@recipe(group_size=4)
def gar(
    run: RunConfig,
    *,
    critic_model: str | None = None,  # initial weights of the discriminator; by default the generator's model
    reviews: int = 4,  # reviews of each solution
    critic_lr: float = 2e-4,  # learning rate of the discriminator
    match_weight: Weight = 1.0,  # λ1: weight of a right answer
    slice_weight: Weight = 1.0,  # λ2: weight of the verdicts on the reasoner's steps
    gan_weight: Weight = 1.0,  # λ3: weight of telling worked from generated steps
    agreement_weight: Weight = 0.5,  # λ4: weight of verdicts that equal the outcome
    critic: Literal["trained", "frozen"] = "trained",  # frozen: the discriminator is never trained
    balance: bool = True,  # as many reviews of the worked solution as of all others
) -> Recipe:
    trains_critic = critic == "trained"
    initial_critic = critic_model or run.model
    at_least(2, "gar", group_size=run.group_size, reviews=reviews if trains_critic else 2)

    policies = {"generator": run.learner(), "verifier": frozen(initial_critic), **run.reference_policies()}
    roles = {
        "solver": common_roles.solver("generator", run.model),
        "verifier": common_roles.verifier("verifier", initial_critic),
    }
    learn_to_reason = GRPO(
        reward_weights={MATCH: match_weight, SLICES: slice_weight}, sum_rewards_first=True, kl=run.kl_penalty()
    )
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_reason)}

    if trains_critic:
        check_demonstrations("gar", run.problems)
        policies["verifier"] = run.learner(initial_critic, lr=critic_lr)
        policies["worked_solution"] = program(recite)
        roles["reference"] = Role(
            policy="worked_solution",
            prompt="{solution}",
            sampling=Sampling(max_tokens=1),
            parse=common_roles.parse_solution,
        )
        learn_to_tell_apart = GRPO(
            reward_weights={GAN: gan_weight, AGREEMENT: agreement_weight}, sum_rewards_first=True
        )
        objectives["critic"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_tell_apart)

    protocol = partial(contest, samples=run.group_size, reviews=reviews, balance=balance, learn=trains_critic)
    return run.recipe(
        "gar" if trains_critic else "gar-frozen",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="both", group_size=1),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles(),
    )
