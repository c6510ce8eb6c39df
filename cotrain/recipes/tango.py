"""RL Tango: a generator and a stepwise generative verifier, trained in turn (arXiv 2505.15034).

The verifier reviews each step of a solution and then the answer.

- The verifier is rewarded with 1 if its final verdict is right, plus 0.8 for the format. It sees no label of a step.
- The generator is rewarded for a right answer, and for each step by the verifier's verdict on it. The advantage of
  these step rewards has the weight α, which decays over the generator's updates.

Controls are parameters:

- ``verifier="frozen"``: the verifier is never trained (ablation).
- ``steps_judged_by="oracle"``: the truth takes the place of the step verdicts (ceiling). ``oracle_noise`` is the chance
  with which each of them is flipped.
- ``steps_judged_by="none"``: no step rewards; the generator learns from its outcomes alone (baseline). These still have
  the weight 1 − α, unless ``advantage_mix="add"``.
- ``balance=False``: no class weights (ablation).
- ``simultaneous=True``: both learn from the same episodes instead of in turn.
- ``review_format``: format of the verifier's reviews (``rollout/verifier_roles.py``).

What differs from the authors' code:

- KL term of the verifier: theirs has ``verifier_kl=0.001``, here there is none.
- A review with the wrong number of step verdicts: theirs is paid for agreement if its final verdict can be read, here
  it is not.
- A bonus for giving more than one answer: in their code, with weight 0; left out here.

Replies that do not parse:

- A review that does not parse earns a part of the format reward (``ParseFailure.format_score``). In the format "steps"
  that is 0.2 if one part is missing, 0.6 if there is stray text, and 0 if there is more amiss.
- A solution that does not parse is never reviewed, and counts as one wrong step.
- ``format_reward`` pays the generator for a readable solution.
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
from cotrain.core.arguments import Weight
from cotrain.core.types import RolloutFn
from cotrain.data.word_problems.source import study_problems
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.protocols import StepRewards, check_step_rewards


# ``@recipe`` collects the settings that all recipes have, such as steps, seed and lr, in ``run``. A user writes
# tango(seed=1, reviews=8), and the function below is called with (RunConfig(seed=1), reviews=8).
@recipe(steps=160)
def tango(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    reviews: int = 8,  # reviews per solution in steps that train the verifier; in others, see ``votes``
    warmup: int = 40,  # training steps at the start, in which only the verifier is trained
    ratio: tuple[int, int] = (3, 1),  # training steps of the generator and of the verifier, in turn
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    verifier_kl: float = 0.0,  # weight of the KL term between the verifier and its initial weights
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    verifier_format: Weight = 0.8,  # weight of the reward for a readable review
    alpha: float = 0.1,  # weight α of the step rewards, at the start
    alpha_end: float = 0.001,  # weight α of the step rewards, at the end
    # With the advantages A of the outcome and of the steps:
    #
    #     "convex"   A = (1 − α) A_outcome + α A_steps
    #     "add"      A = A_outcome + α A_steps
    #     "reward"   A of the one reward r = r_outcome + α r_steps
    advantage_mix: AdvantageMix = "convex",  # how outcome and steps are mixed: shares, a sum, or one summed reward
    step_scale: StepScale = "1/K",  # reward of a right or wrong step among K; 1/K: ±1/K, one: ±1
    estimator: Literal["grpo", "dr_grpo", "rloo", "reinforce++"] = "grpo",  # advantage estimator of both policies
    clip_high: float = 0.2,  # upper clip of the importance ratio π/π_sampler
    verifier: Literal["trained", "frozen"] = "trained",  # frozen: the verifier is never trained
    review_format: verifier_roles.ReviewFormat = "steps",  # format of reviews; steps, genprm: a verdict on each step
    votes: int = 1,  # reviews per solution in steps that train the generator; their step verdicts reward it
    combine: Combine = "mean",  # how several reviews are combined into one, such as mean or majority
    steps_judged_by: StepRewards = "verifier",  # source of step rewards
    oracle_noise: float = 0.0,  # probability with which the oracle's step verdict is flipped
    balance: bool = True,  # class weights: reviews of the rarer kind of solution count more
    simultaneous: bool = False,  # both learn at every step, with max(2, reviews // 4) reviews and no warm-up
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

    check_step_rewards(steps_judged_by, oracle_noise)
    if steps_judged_by == "verifier" and review_format not in verifier_roles.JUDGE_STEPS:
        raise ConfigError(
            f"tango: reviews in the format {review_format} have no verdicts on steps, so the verifier cannot reward "
            "them; set steps_judged_by to oracle or none, or review_format to steps or genprm",
            code="E_STEPS_NOT_JUDGED",
        )

    # GRPO(), DrGRPO(), … return a PolicyGradient with other defaults, above all of ``advantage``; they take the same
    # settings.
    make_algorithm = ALGORITHMS[estimator]
    loss = PPOClip(0.2, clip_high)

    # The generator learns from its outcome, and from a verdict on each of its steps. The weight of step rewards decays
    # over the generator's updates.
    generator_rewards: dict[Signal, float | Anneal] = {OUTCOME: 1.0, STEP: decay(alpha, alpha_end)}
    if format_reward:
        generator_rewards[FORMAT] = format_reward
    learn_to_solve = make_algorithm(
        reward_weights=generator_rewards,
        advantage_mix=advantage_mix,
        step_scale=step_scale,
        loss=loss,
        kl=run.kl_penalty(),  # to the policy "reference" below, with the weight run.kl; None if that is 0
    )
    # Objectives are called as the policies that they train. The policy "generator" plays the role "solver", the policy
    # "verifier" the role "verifier".
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}

    if trains_verifier:
        verifier_rewards: dict[Signal, float | Anneal] = {AGREEMENT: 1.0}
        if verifier_format:
            verifier_rewards[FORMAT] = verifier_format
        learn_to_judge = make_algorithm(
            reward_weights=verifier_rewards,
            sum_rewards_first=True,  # agreement + 0.8 · format is one reward, and advantages are those of the sum
            balance=ClassBalance() if balance else None,
            loss=loss,
            kl=kl_penalty("verifier_reference", verifier_kl),  # to that policy below; None if verifier_kl is 0
        )
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)

    policies = {"generator": run.learner()}
    if trains_verifier:
        policies["verifier"] = run.learner(initial_verifier, lr=verifier_lr)
    else:
        policies["verifier"] = frozen(initial_verifier)
    policies |= run.reference_policies()  # "reference": the generator's initial weights; none if run.kl is 0
    if trains_verifier and verifier_kl:
        policies["verifier_reference"] = frozen(initial_verifier)

    def solve_with_step_rewards(n_reviews: int) -> RolloutFn:
        """The protocol of one episode: a solution, ``n_reviews`` reviews of it, and rewards for its steps."""
        return partial(
            solve_then_verify,
            reviews=n_reviews,
            step_rewards=steps_judged_by,
            oracle_noise=oracle_noise,
            combine=combine,
        )

    # A phase says what a training step does; it is called as the policy that it trains.
    #
    # If the oracle or nobody judges steps, no reward of the generator depends on a review, so none is sampled.
    votes_needed = votes if steps_judged_by == "verifier" else 0
    generator_phase = Phase(
        name="generator",
        protocol=solve_with_step_rewards(votes_needed),
        objectives=("generator",),
    )
    verifier_phase = Phase(
        name="verifier",
        protocol=partial(solve_then_verify, reviews=reviews, step_rewards="none"),  # it trains no generator
        objectives=("verifier",),
        group_size=1,  # one solution per problem; a group of the verifier is the reviews of one solution
    )

    if simultaneous:
        # ``verifier_phase`` reviews one solution per problem. Here all solutions of a group are reviewed, which costs
        # more, so each gets a quarter of the reviews; at least 2, since a group of one review has no advantage.
        protocol = solve_with_step_rewards(max(2, reviews // 4))
        trained_objectives = ("generator", "verifier")
        schedule = constant_schedule(protocol, *trained_objectives, name="both")
    elif trains_verifier:
        schedule = alternate(generator_phase, verifier_phase, ratio=ratio, warmup={"verifier": warmup})
    else:
        schedule = constant_schedule(generator_phase.protocol, "generator", name="generator")

    return run.recipe(
        "tango",
        policies=policies,
        roles={
            # The model only picks the prompt, which is shorter for the small models that are shipped.
            "solver": common_roles.solver("generator", run.model),
            "verifier": verifier_roles.verifier_role("verifier", initial_verifier, review_format),
        },
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(solve_then_verify, reviews=votes),  # the protocol on held-out problems
        measures=measure_solver_and_verifier("verifier"),
        # The verifier is also measured on solutions that stay the same through the run: there "reference", the initial
        # generator, plays the solver. Left out if run.kl is 0, as then there is no such policy.
        frozen_roles=run.frozen_roles(),
    )


VERIFIER_TEMPERATURE = 1.5  # in the demo: equal reviews of one solution would have no advantage


# ``without``: there is no setting ``tasks``, as the demo always has the same problems.
@recipe(steps=36, lr=3e-4, evaluation_tasks=48, without=("tasks",))
def demo(
    run: RunConfig,
    *,
    verifier_model: str = "shipped-habits",  # initial weights of the verifier; by default a model with two wrong habits
    warmup: int = 16,  # first steps, in which only the verifier is trained
) -> Recipe:
    """The demo: RL Tango on word problems of two and three steps, sized for three minutes on two cores.

    The verifier begins with other weights than the generator, so that the two share fewer blind spots. At the start the
    verifier accepts too many wrong solutions. It is trained only on whether final answers are right. What holds over
    five seeds and what does not, and which other settings were tried: ``docs/demo.md``.
    """
    # ``tango`` takes settings by keyword and not a RunConfig, so those in ``run`` are unpacked.
    settings = run.values()
    settings["tasks"] = study_problems((2, 3))
    on_words = tango(**settings, verifier_model=verifier_model, warmup=warmup, ratio=(1, 1), verifier_lr=5e-4)

    temperature = VERIFIER_TEMPERATURE if run.temperature is None else run.temperature
    verifier = on_words.roles["verifier"].with_temperature(temperature)

    return replace(
        on_words,
        name="demo",
        description="",  # not that of ``tango``: ``@recipe`` fills in the docstring above
        roles={**on_words.roles, "verifier": verifier},
        evaluation=replace(on_words.evaluation, splits=()),  # no further splits, to stay within three minutes
    )
