"""RL Tango: a generator and a stepwise generative verifier, trained in turn (arXiv 2505.15034).

The verifier reviews each step of a solution and then the answer.

- The verifier is rewarded with 1 if its final verdict is right, plus 0.8 for the format. It sees no label of a step.
- The generator is rewarded for a right answer, and for each step by the verifier's verdict on it. The advantage of
  these step rewards has the weight α, which decays over the generator's updates.

Controls are parameters:

- ``verifier="frozen"``: the verifier is never trained (ablation).
- ``steps_judged_by="oracle"``: the truth takes the place of the step verdicts (ceiling). ``oracle_noise`` is the chance
  with which each of them is flipped.
- ``steps_judged_by="nobody"``: no step rewards; the generator learns from its outcomes alone (baseline).
- ``balance=False``: no class weights (ablation).
- ``simultaneous=True``: both learn from the same episodes instead of in turn.
- ``judge``: format of the verifier's reviews (``rollout/judges.py``).

What differs from the authors' code:

    setting                                     | theirs                       | here
    KL term of the verifier                     | verifier_kl=0.001            | none
    agreement of a review with too few or many  | paid if its final verdict    | not paid
      step verdicts                             |   can be read                |
    bonus for several answers in a format       | in the code, with weight 0   | left out

Here an unreadable review keeps a part of its format reward. A solution that cannot be read is never reviewed, and
counts as one wrong step. ``format_reward`` pays the generator for a solution that can be read.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

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
from cotrain.algorithms.samples import AdvantageMix, Anneal, StepScale
from cotrain.config.schedule import RolloutFn
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
    reviews: int = 8,  # reviews of each solution in the verifier's steps (in the generator's steps: votes)
    warmup: int = 40,  # first steps, in which only the verifier is trained
    ratio: tuple[int, int] = (3, 1),  # steps of the generator and of the verifier, in turn
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    verifier_kl: float = 0.0,  # weight of the KL term between the verifier and its initial weights
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    verifier_format: float = 0.8,  # weight of the reward for a readable review
    alpha: float = 0.1,  # weight α of the step rewards, at the start
    alpha_end: float = 0.001,  # the same weight, at the end
    advantage_mix: AdvantageMix = "convex",  # (1 − α) · outcome + α · steps; "add": outcome + α · steps; "reward": the
    # same sum of the rewards, before advantages are taken
    step_scale: StepScale = "1/K",  # each of a solution's K steps is worth ±1/K, or "one": ±1; with
    # advantage_mix=reward the mean of the steps, or their sum
    estimator: Literal["grpo", "dr_grpo", "rloo", "reinforce++"] = "grpo",  # advantage estimator of both policies
    clip_high: float = 0.2,  # upper clip of the ratio
    verifier: Literal["trained", "frozen"] = "trained",  # frozen: the verifier is never trained
    judge: judges.Format = "steps",  # format of the verifier's reviews
    votes: int = 1,  # reviews of each solution in the generator's steps, whose step verdicts reward it
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

    initial_verifier = verifier_model or run.model
    trains_verifier = verifier == "trained"
    if simultaneous and (votes > 1 or not trains_verifier):
        raise ConfigError(
            f"tango: simultaneous with verifier={verifier} and votes={votes}; both learn from the same reviews, so "
            "leave verifier at trained and votes at 1",
            code="E_SIMULTANEOUS_REVIEWS",
        )

    step_rewards: StepRewards = "none" if steps_judged_by == "nobody" else steps_judged_by
    check_step_rewards(step_rewards, oracle_noise)

    algorithm = ALGORITHMS[estimator]
    loss = PPOClip(0.2, clip_high)

    # The generator learns from its outcome, and from a verdict on each of its steps.
    generator_rewards: dict[Signal, float | Anneal] = {OUTCOME: 1.0, STEP: decay(alpha, alpha_end)}
    if format_reward:
        generator_rewards[FORMAT] = format_reward
    learn_to_solve = algorithm(
        reward_weights=generator_rewards,
        advantage_mix=advantage_mix,
        step_scale=step_scale,
        loss=loss,
        kl=run.kl_penalty(),
    )
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}

    # The verifier's rewards are added up before the reviews of one solution are compared with each other.
    if trains_verifier:
        verifier_rewards: dict[Signal, float | Anneal] = {AGREEMENT: 1.0}
        if verifier_format:
            verifier_rewards[FORMAT] = verifier_format
        learn_to_judge = algorithm(
            reward_weights=verifier_rewards,
            sum_rewards_first=True,
            balance=ClassBalance() if balance else None,
            step_scale=step_scale,
            loss=loss,
            kl=kl_penalty("verifier_reference", verifier_kl),
        )
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)

    policies = {"generator": run.learner()}
    if trains_verifier:
        policies["verifier"] = run.learner(initial_verifier, lr=verifier_lr)
    else:
        policies["verifier"] = frozen(initial_verifier)
    policies |= run.reference_policies()  # the generator's initial weights, where ``kl`` is not 0
    if trains_verifier and verifier_kl:
        policies["verifier_reference"] = frozen(initial_verifier)

    def rewarding_steps(reviews: int) -> RolloutFn:
        """Solving with ``reviews`` reviews of each solution, and with rewards for its steps from whoever judges."""
        return partial(
            solve_then_verify,
            reviews=reviews,
            step_rewards=step_rewards,
            oracle_noise=oracle_noise,
            combine=combine,
        )

    n_reviews = votes if steps_judged_by == "verifier" else 0  # the oracle needs no review
    generator_phase = Phase(
        name="generator",
        protocol=rewarding_steps(n_reviews),
        objectives=("generator",),
    )
    verifier_phase = Phase(
        name="verifier",
        protocol=partial(solve_then_verify, reviews=reviews, step_rewards="none"),
        objectives=("verifier",),
        group_size=1,  # one solution of each problem: what is compared is its reviews
    )

    if simultaneous:
        # Every solution of a group is reviewed, not one of each problem, so each gets fewer reviews.
        protocol = rewarding_steps(max(2, reviews // 4))
        schedule = constant_schedule(protocol, "generator", "verifier", name="both")
    elif trains_verifier:
        schedule = alternate(generator_phase, verifier_phase, ratio=ratio, warmup={"verifier": warmup})
    else:
        schedule = alternate(generator_phase, ratio=(1,))

    return run.recipe(
        "tango",
        policies=policies,
        roles={
            "solver": common_roles.solver("generator", run.model),
            "verifier": judges.judge_role("verifier", initial_verifier, judge),
        },
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(solve_then_verify, reviews=votes),
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles(),  # the verifier is also measured on solutions of the initial generator
    )


VERIFIER_TEMPERATURE = 1.5  # of the demo: its reviews of one solution have to differ to be compared


@recipe(steps=36, lr=3e-4, evaluation_tasks=48, without=("tasks",))
def demo(
    run: RunConfig,
    *,
    verifier_model: str = "shipped-habits",  # initial weights of the verifier, other than the generator's
    warmup: int = 16,  # first steps, in which only the verifier is trained
) -> Recipe:
    """The demo: RL Tango on word problems of two and three steps, sized for three minutes on two cores.

    The verifier begins with other weights than the generator, so that the two share fewer blind spots. At the start the
    verifier accepts too many wrong solutions. It is trained only on whether final answers are right. What holds over
    five seeds and what does not, and which other settings were tried: ``docs/demo.md``.
    """
    settings = run.values()
    settings["tasks"] = study_problems((2, 3))
    # Called by name, as a user calls it: ``@recipe`` makes another RunConfig of these settings.
    on_words = tango(**settings, verifier_model=verifier_model, warmup=warmup, ratio=(1, 1), verifier_lr=5e-4)

    verifier = on_words.roles["verifier"]
    temperature = VERIFIER_TEMPERATURE if run.temperature is None else run.temperature
    verifier = replace(verifier, sampling=replace(verifier.sampling, temperature=temperature))

    return replace(
        on_words,
        name="demo",
        description="",  # so that it is this function's docstring
        roles={**on_words.roles, "verifier": verifier},
        evaluation=replace(on_words.evaluation, splits=()),  # no further splits, to stay within three minutes
    )
