"""RL Tango: a generator and a stepwise generative verifier, trained in turn (arXiv 2505.15034).

The verifier reviews each step of a solution and then the answer. Its reward is 1 if its final verdict is right, plus
0.8 for the format; it sees no label of a step. Its step verdicts are the generator's second reward, beside the right
answer; their advantage has the weight α, which decays over the generator's updates.

Controls are parameters: ``verifier="frozen"`` never trains it, ``steps_judged_by="oracle"`` puts the truth in the place
of its step verdicts (the ceiling; each is flipped with the chance ``oracle_noise``), ``balance=False`` drops the class
weights, ``simultaneous=True`` trains both from the same episodes. ``judge`` is the verifier's format
(``rollout/judges.py``).

Different from the authors' settings: the verifier has no KL term (theirs: ``verifier_kl=0.001``), the final verdict of
a review with the wrong number of steps earns nothing (theirs is paid as soon as it can be read), an unreadable review
keeps a part of its format reward, and a solution that cannot be read is never reviewed but counts as one wrong step.
Left out: the bonus for several answers in a generator's format, whose weight is 0 there; ``format_reward`` pays for a
solution that can be read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from cotrain import (
    AGREEMENT,
    FORMAT,
    OUTCOME,
    STEP,
    ClassBalance,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    RunConfig,
    Signal,
    alternate,
    constant_schedule,
    decay,
    frozen,
    recipe,
    solve_then_verify,
)
from cotrain.algorithms.functional.aggregate import Combine
from cotrain.algorithms.grpo import ALGORITHMS
from cotrain.algorithms.policy_gradient import PPOClip, kl_penalty
from cotrain.algorithms.samples import AdvantageMix, StepScale
from cotrain.core.arguments import Weight
from cotrain.data.word_problems.source import study_problems
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles, judges
from cotrain.rollout.protocols import StepRewards, check_step_rewards


@recipe(steps=160)
def tango(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    reviews: int = 8,  # reviews of each solution in the verifier's steps
    warmup: int = 40,  # first steps, in which only the verifier is trained
    ratio: tuple[int, int] = (3, 1),  # steps of the generator and of the verifier, in turn
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    verifier_kl: float = 0.0,  # weight of the KL term between the verifier and its initial weights
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    verifier_format: float = 0.8,  # weight of the reward for a readable review
    alpha: float = 0.1,  # weight α of the step rewards, at the start
    alpha_end: float = 0.001,  # the same weight, at the end
    advantage_mix: AdvantageMix = "convex",  # the outcome weighs 1 − α, or "add": 1; "reward": one reward, outcome + α
    # · process
    step_scale: StepScale = "1/K",  # a step of K is worth ±1/K, or "one": ±1; in advantage_mix=reward the mean, or the
    # sum
    estimator: Literal["grpo", "dr_grpo", "rloo", "reinforce++"] = "grpo",  # advantage estimator of both policies
    clip_high: float = 0.2,  # upper clip of the ratio
    verifier: Literal["trained", "frozen"] = "trained",  # frozen: the verifier is never trained
    judge: judges.Format = "steps",  # format of the verifier's reviews
    votes: int = 1,  # reviews whose step verdicts reward the generator
    combine: Combine = "mean",  # function that combines several reviews into one
    steps_judged_by: Literal["verifier", "oracle", "nobody"] = "verifier",  # source of step rewards
    oracle_noise: float = 0.0,  # probability with which the oracle's step verdict is flipped
    balance: bool = True,  # class weights: reviews of the rarer kind of solution count more
    simultaneous: bool = False,  # both from the same episodes: reviews // 4 of a solution, no warm-up
) -> Recipe:
    if min(reviews, votes) < 1:
        raise ConfigError(
            f"tango: reviews is {reviews} and votes {votes}; expected at least 1 review of each solution",
            code="E_SETTING_RANGE",
        )
    verifier_start = verifier_model or run.model
    is_trained = verifier == "trained"
    if simultaneous and (not is_trained or votes > 1):
        raise ConfigError(
            f"tango: simultaneous with verifier={verifier} and votes={votes}; both learn from the same reviews, so "
            "leave verifier at trained and votes at 1",
            code="E_SIMULTANEOUS_REVIEWS",
        )
    step_rewards: StepRewards = "none" if steps_judged_by == "nobody" else steps_judged_by
    check_step_rewards(step_rewards, oracle_noise)

    # How the generator learns: from its outcome, and from a verdict on each of its steps.
    algorithm = ALGORITHMS[estimator]
    shared_options = {"step_scale": step_scale, "loss": PPOClip(0.2, clip_high)}
    generator_rewards: dict[Signal, Any] = {OUTCOME: 1.0, STEP: decay(alpha, alpha_end)}
    if format_reward:
        generator_rewards[FORMAT] = format_reward
    learn_to_solve = algorithm(
        reward_weights=generator_rewards, kl=run.kl_penalty(), advantage_mix=advantage_mix, **shared_options
    )
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}

    # How the verifier learns: its rewards are added up before the reviews of a solution are compared.
    if is_trained:
        verifier_rewards: dict[Signal, Any] = {AGREEMENT: 1.0}
        if verifier_format:
            verifier_rewards[FORMAT] = verifier_format
        learn_to_judge = algorithm(
            reward_weights=verifier_rewards,
            sum_rewards_first=True,
            balance=ClassBalance() if balance else None,
            kl=kl_penalty("verifier_reference", verifier_kl),
            **shared_options,
        )
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)

    policies = {"generator": run.learner()}
    policies["verifier"] = run.learner(verifier_start, lr=verifier_lr) if is_trained else frozen(verifier_start)
    policies |= run.reference_policies()
    if is_trained and verifier_kl:
        policies["verifier_reference"] = frozen(verifier_start)

    # The rollouts of each phase, and the objectives that learn from them.
    solve_and_review = partial(solve_then_verify, step_rewards=step_rewards, oracle_noise=oracle_noise)
    paying_reviews = votes if steps_judged_by == "verifier" else 0
    solving = Phase(
        name="generator",
        protocol=partial(solve_and_review, reviews=paying_reviews, combine=combine),
        objectives=("generator",),
    )
    judging = Phase(
        name="verifier",
        protocol=partial(solve_then_verify, reviews=reviews, step_rewards="none"),
        objectives=("verifier",),
        group_size=1,
    )
    if not is_trained:
        schedule = alternate(solving, ratio=(1,))
    elif simultaneous:
        shared_reviews = max(2, reviews // 4)
        schedule = constant_schedule(
            partial(solve_and_review, reviews=shared_reviews, combine=combine), *objectives, name="both"
        )
    else:
        schedule = alternate(solving, judging, ratio=ratio, warmup={"verifier": warmup})

    return run.recipe(
        "tango",
        policies=policies,
        roles={
            "solver": common_roles.solver("generator", run.model),
            "verifier": judges.judge_role("verifier", verifier_start, judge),
        },
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(solve_then_verify, reviews=votes),
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles(),
    )


DEMO_SPREAD = 1.5  # temperature of the demo's verifier, so that its reviews of one solution differ


@recipe(steps=36, lr=3e-4, evaluation_tasks=48, without=("tasks",))
def demo(
    run: RunConfig,
    *,
    verifier_model: str = "shipped-habits",  # begins the verifier
    warmup: int = 16,  # first steps, in which only the verifier is trained
) -> Recipe:
    """The demo: RL Tango on word problems of two and three steps, sized for three minutes on two cores.

    The verifier begins with other weights than the generator, so that the two share fewer blind spots. At the start it
    believes too much; it is told the truth of answers alone. What holds over five seeds and what does not, and which
    other settings were tried: ``docs/demo.md``.
    """
    values = run.values() | {"tasks": study_problems((2, 3))}
    made = tango(**values, verifier_model=verifier_model, warmup=warmup, ratio=(1, 1), verifier_lr=5e-4)
    verifier = made.roles["verifier"]
    temperature = DEMO_SPREAD if run.temperature is None else run.temperature
    spread = replace(verifier, sampling=replace(verifier.sampling, temperature=temperature))
    return replace(
        made,
        name="demo",
        description="",
        roles={**made.roles, "verifier": spread},
        evaluation=replace(made.evaluation, splits=()),
    )
