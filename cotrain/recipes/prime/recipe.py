"""PRIME: the generator's process rewards come from an implicit reward model that learns from outcomes alone, online.

Cui et al. 2025 (arXiv 2502.01456). Two policies learn from the same answers. The reward model φ begins as a copy of the
generator; it learns to tell right answers from wrong ones by the sum of log π_φ − log π_ref over their tokens. The
generator is paid for its outcome, and at each token this log-ratio (``recipes/prime/implicit_prm.py`` has the
equations). No label but the graded answer is used.

Controls are parameters:

- ``prm="none"``: the outcome alone pays (baseline).
- ``prm="frozen"``: φ is trained for ``warmup`` steps on the answers of the untrained generator, and never again.
- ``max_return_norm=False``: the process rewards are not divided by the largest return (ablation).
- ``update="before"``: φ learns from a batch before it scores it, not after.

What differs from the authors' settings:

    setting                    | theirs                        | here
    answers that φ learns from | of medium difficulty          | all
    learning rates             | 2 : 1, gradient norm 10       | the same for both
    batches                    | refilled until full           | as many answers as are of medium difficulty
"""

from __future__ import annotations

from typing import Literal

from cotrain import Objective, Phase, Recipe, RunConfig, alternate, critic, frozen, recipe, solve
from cotrain.config.evaluation import ImplicitReward
from cotrain.core.arguments import Weight
from cotrain.core.errors import ConfigError
from cotrain.recipes.prime.implicit_prm import ImplicitPrm, Prime, PrimeEstimator, PrimeValues
from cotrain.rollout import common_roles


@recipe(without=("kl",))
def prime(
    run: RunConfig,
    *,
    prm_lr: float = 2e-4,  # learning rate of φ
    beta: Weight = 0.05,  # β of φ's loss CE(σ(β Σ_t r_t), outcome)
    keep: tuple[float, float] = (0.2, 0.8),  # problems with a share of right answers in this range are learned from
    prm: Literal["online", "frozen", "none"] = "online",  # when φ learns
    update: Literal["after", "before"] = "after",  # φ learns from a batch after it has scored it, or before
    warmup: int = 0,  # first steps, in which only φ is trained
    estimator: PrimeEstimator = "rloo",  # how answers of a group are compared; ppo: each with what a critic predicts
    critic_lr: float = 1e-3,  # learning rate of the critic, for the estimator ppo
    lam: float = 0.95,  # λ of GAE, for the estimator ppo
    process_weight: Weight = 5.0,  # weight of φ's rewards; the outcome's is 5
    max_return_norm: bool = True,  # divide the process rewards by the largest return
) -> Recipe:
    if prm == "frozen" and warmup < 1:
        raise ConfigError(
            "prime: prm=frozen with a warm-up of 0 steps never trains the reward model, whose rewards would all be 0; "
            "give it some, as in warmup=20, or set prm=none",
            code="E_PRM_NEVER_TRAINED",
        )
    has_prm = prm != "none"
    learns_online = prm == "online"
    has_critic = estimator == "ppo"

    # The generator is rewarded by its outcome and, where there is one, by the reward model.
    learn_to_solve = Prime(
        process_weight=process_weight if has_prm else 0.0,
        keep=keep,
        max_return_norm=max_return_norm,
        estimator=estimator,
        lam=lam,
    )
    policies = {"generator": run.learner()}
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}
    if has_prm:
        policies["prm"] = run.learner(lr=prm_lr)
        policies["reference"] = frozen(run.model)
        objectives["prm"] = Objective(policy="prm", role="solver", algorithm=ImplicitPrm(beta=beta))
    if has_critic:
        learn_values = PrimeValues(paid_by=learn_to_solve)
        policies["critic"] = critic(run.model, lr=critic_lr)
        objectives["values"] = Objective(policy="critic", role="solver", algorithm=learn_values)

    # The objectives that learn from a batch.
    learners = ["generator"]
    if learns_online:
        learners.append("prm")
    if has_critic:
        learners.append("values")

    in_turn: tuple[str, ...] = ()
    if learns_online and update == "before":
        in_turn = ("prm", "generator")  # the reward model first, as in the authors' code
        if has_critic:
            in_turn = (*in_turn, "values")

    training = Phase(name="generator", protocol=solve, objectives=tuple(learners), in_turn=in_turn)
    if has_prm and warmup:
        warming_up = Phase(name="prm", protocol=solve, objectives=("prm",))
        schedule = alternate(training, warming_up, ratio=(1, 0), warmup={"prm": warmup})
    else:
        schedule = alternate(training, ratio=(1,))

    return run.recipe(
        "prime" if learns_online else f"prime-{prm}",
        policies=policies,
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives=objectives,
        schedule=schedule,
        evaluate=solve,
        # φ is evaluated, and never speaks
        implicit_rewards=(ImplicitReward(policy="prm", reference="reference"),) if has_prm else (),
    )
