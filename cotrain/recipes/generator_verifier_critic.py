"""Three policies at once, each by an algorithm of its own: a generator, a verifier and a critic.

    generator   PPO (arXiv 1707.06347): a right answer pays 1, a step ``alpha`` · (2x − 1) / K for the share x of
                reviews that call it right; advantages from the critic's values (GAE)
    critic      learns without speaking: regression of the generator's returns
    verifier    reviews each solution: GRPO on its verdicts, cross-entropy of those that are the truth ("ce"), or DPO of
                a true verdict against a false one on the same solution ("dpo", arXiv 2305.18290)

All learn from the same episodes (``solve_then_verify``). ``verifier_model`` and ``critic_model`` may be of other sizes
than the generator; a critic must have its tokenizer.

Controls: ``critic="none"`` is two roles, the generator by GRPO, the outcome weighted 1 − ``alpha``, to be compared at
equal tokens; ``verifier="frozen"`` never learns; ``alpha=0`` leaves the reviews out of the generator's reward. No paper
has just this: it is Tango's pair (arXiv 2505.15034) with RISE's critic (arXiv 2505.13445), to show that algorithms mix.

Left out: values for the verifier, class weights where it learns by "ce" or "dpo".
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
    critic: Literal["trained", "none"] = "trained",  # "none": the generator learns by GRPO
    verifier: Literal["trained", "frozen"] = "trained",  # does it learn?
    verifier_by: Literal["grpo", "ce", "dpo"] = "ce",  # from what its verdicts earn
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    critic_model: str | None = None,  # begins the critic; by default the generator's model
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    critic_lr: float = 1e-3,  # learning rate of the critic
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    alpha: float = 0.1,  # weight of the step verdicts in the generator's reward
    lam: float = 0.95,  # λ of the advantages
    beta: Weight = 0.1,  # β of verifier_by="dpo"
    reviews: int = 4,  # of a solution
) -> Recipe:
    learns = verifier == "trained"
    valued = critic == "trained"
    if reviews < (2 if learns and verifier_by != "ce" else 1) or not 0.0 <= alpha <= 1.0:
        raise ConfigError(
            f"generator_verifier_critic: reviews is {reviews} and alpha {alpha}; expected at least 1 review, 2 where "
            "they are compared (grpo, dpo), and a weight in [0, 1]",
            code="E_SETTING_RANGE",
        )
    if not valued and critic_model is not None:
        raise ConfigError(
            "generator_verifier_critic: critic_model with critic='none', which has no critic; leave it out",
            code="E_CRITIC_MODEL_WITHOUT_CRITIC",
        )
    initial_verifier = verifier_model or run.model
    paid: dict[Any, Any] = {OUTCOME: 1.0} | ({STEP: alpha} if alpha else {})
    paid |= {FORMAT: format_reward} if format_reward else {}
    policies: dict[str, Policy] = {"generator": run.learner(), **run.reference_policies()}
    policies["verifier"] = run.learner(initial_verifier, lr=verifier_lr) if learns else frozen(initial_verifier)
    by: Algorithm = (
        PPO(reward_weights=paid, lam=lam, kl=run.kl_penalty())
        if valued
        else GRPO(reward_weights=paid, kl=run.kl_penalty())
    )
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=by)}
    if valued:
        policies["critic"] = value_model(critic_model or run.model, lr=critic_lr)
        regression = ValueRegression(reward_weights=paid, lam=lam)
        objectives["critic"] = Objective(policy="critic", role="solver", algorithm=regression)
    if learns:
        judging: dict[str, Algorithm] = {
            "grpo": GRPO(reward_weights={AGREEMENT: 1.0, FORMAT: 0.8}, sum_rewards_first=True, balance=ClassBalance()),
            "ce": SFT(where=AGREEMENT),
            "dpo": Preference(policy="verifier", reference="judge", better=AGREEMENT, betas=(beta,)),
        }
        if verifier_by == "dpo":
            policies["judge"] = frozen(initial_verifier)
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=judging[verifier_by])
    return run.recipe(
        f"generator_verifier_critic-{verifier_by}" if valued else f"generator_verifier-{verifier_by}",
        policies=policies,
        roles={
            "solver": common_roles.solver("generator", run.model),
            "verifier": common_roles.verifier("verifier", initial_verifier),
        },
        objectives=objectives,
        schedule=constant_schedule(
            partial(solve_then_verify, reviews=reviews, step_rewards="verifier" if alpha else "none"),
            *objectives,
            name="all",
        ),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles(),
    )
