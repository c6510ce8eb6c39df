"""Three policies are trained at once, each by an algorithm of its own: a generator, a verifier and a critic.

    generator   by PPO (arXiv 1707.06347): a right answer earns 1, and each of K steps ``alpha`` · (2x − 1) / K, where x
                is the share of the reviews that call it right. Advantages are from the critic's values (GAE)
    critic      by regression of the generator's returns; it has a value head and writes nothing
    verifier    reviews each solution, and learns by GRPO on its verdicts ("grpo"), by cross-entropy of reviews with a
                true verdict ("ce"), or by DPO of a true against a false verdict on one solution ("dpo", arXiv
                2305.18290)

All learn from the same episodes (``solve_then_verify``). ``verifier_model`` and ``critic_model`` may be of other sizes
than the generator; a critic must have its tokenizer. No paper has just this: it is Tango's pair (arXiv 2505.15034) with
RISE's critic (arXiv 2505.13445), to show that algorithms mix.

Controls are parameters:

- ``critic="none"``: two policies, to be compared at equal tokens. The generator learns by GRPO, with the weight
  1 − ``alpha`` of its outcome.
- ``verifier="frozen"``: the verifier is never trained.
- ``alpha=0``: the generator's reward is the outcome alone.

Left out: values for the verifier, and class weights where it learns by "ce" or "dpo".
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from cotrain import (
    AGREEMENT,
    FORMAT,
    GRPO,
    OUTCOME,
    PPO,
    SFT,
    STEP,
    ClassBalance,
    ConfigError,
    Objective,
    Recipe,
    RunConfig,
    constant_schedule,
    frozen,
    recipe,
    solve_then_verify,
)
from cotrain import critic as value_model
from cotrain.algorithms.contract import Algorithm
from cotrain.algorithms.dpo import Preference
from cotrain.algorithms.ppo import ValueRegression
from cotrain.config.policies import Policy
from cotrain.core.arguments import Weight
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles


@recipe(kl=0.0)
def generator_verifier_critic(
    run: RunConfig,
    *,
    critic: Literal["trained", "none"] = "trained",  # "none": there is none, and the generator learns by GRPO
    verifier: Literal["trained", "frozen"] = "trained",  # frozen: it is never trained
    verifier_by: Literal["grpo", "ce", "dpo"] = "ce",  # algorithm of the verifier
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    critic_model: str | None = None,  # initial weights of the critic; by default the generator's model
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    critic_lr: float = 1e-3,  # learning rate of the critic
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    alpha: float = 0.1,  # weight of the step verdicts in the generator's reward
    lam: float = 0.95,  # λ of GAE
    beta: Weight = 0.1,  # β of verifier_by="dpo"
    reviews: int = 4,  # reviews of each solution
) -> Recipe:
    trains_verifier = verifier == "trained"
    has_critic = critic == "trained"
    compares_reviews = trains_verifier and verifier_by != "ce"
    least_reviews = 2 if compares_reviews else 1
    if reviews < least_reviews or not 0.0 <= alpha <= 1.0:
        raise ConfigError(
            f"generator_verifier_critic: reviews is {reviews} and alpha {alpha}; expected at least 1 review, 2 where "
            "they are compared (grpo, dpo), and a weight in [0, 1]",
            code="E_SETTING_RANGE",
        )
    if not has_critic and critic_model is not None:
        raise ConfigError(
            "generator_verifier_critic: critic_model with critic='none', which has no critic; leave it out",
            code="E_CRITIC_MODEL_WITHOUT_CRITIC",
        )
    initial_verifier = verifier_model or run.model
    policies: dict[str, Policy] = {"generator": run.learner(), **run.reference_policies()}
    if trains_verifier:
        policies["verifier"] = run.learner(initial_verifier, lr=verifier_lr)
    else:
        policies["verifier"] = frozen(initial_verifier)

    # Generator and critic: the critic predicts the returns of the generator's rewards.
    generator_rewards: dict[Any, Any] = {OUTCOME: 1.0}
    if alpha:
        generator_rewards[STEP] = alpha
    if format_reward:
        generator_rewards[FORMAT] = format_reward
    learn_to_solve: Algorithm
    if has_critic:
        learn_to_solve = PPO(reward_weights=generator_rewards, lam=lam, kl=run.kl_penalty())
    else:
        learn_to_solve = GRPO(reward_weights=generator_rewards, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}
    if has_critic:
        policies["critic"] = value_model(critic_model or run.model, lr=critic_lr)
        learn_values = ValueRegression(reward_weights=generator_rewards, lam=lam)
        objectives["critic"] = Objective(policy="critic", role="solver", algorithm=learn_values)

    if trains_verifier:
        learn_to_judge: Algorithm
        if verifier_by == "grpo":
            learn_to_judge = GRPO(
                reward_weights={AGREEMENT: 1.0, FORMAT: 0.8}, sum_rewards_first=True, balance=ClassBalance()
            )
        elif verifier_by == "ce":
            learn_to_judge = SFT(where=AGREEMENT)
        else:
            learn_to_judge = Preference(policy="verifier", reference="judge", better=AGREEMENT, betas=(beta,))
            policies["judge"] = frozen(initial_verifier)  # DPO's reference
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)

    protocol = partial(solve_then_verify, reviews=reviews, step_rewards="verifier" if alpha else "none")
    return run.recipe(
        f"generator_verifier_critic-{verifier_by}" if has_critic else f"generator_verifier-{verifier_by}",
        policies=policies,
        roles={
            "solver": common_roles.solver("generator", run.model),
            "verifier": common_roles.verifier("verifier", initial_verifier),
        },
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="all"),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles(),
    )
