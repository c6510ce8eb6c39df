"""PRIME: the generator's process rewards come from an implicit reward model that learns from outcomes alone, online.

Cui et al. 2025 (arXiv 2502.01456). A second language model φ begins as a copy of the generator. It learns to tell right
answers from wrong ones by the sum of its log-ratios to the start; its log-ratio at a token is that token's reward
(``recipes/prime/implicit_prm.py``). Only the graded answer is ever used.

Controls are parameters: ``prm="none"`` pays the outcome alone, ``prm="frozen"`` trains φ for ``warmup`` steps on
the start's answers and never again, ``max_return_norm=False`` drops the normaliser. ``update="before"`` lets φ learn
from a batch before it scores it. With ``prm="frozen"`` and ``warmup=0`` φ is the start itself and pays nothing.

Different from the authors' settings: φ learns from all answers, not only from those of medium difficulty that the
generator learns from; both learn at one rate (theirs are 2 : 1, with a gradient norm of 10). Left out: the buffer that
is refilled until a batch is full of problems of medium difficulty.
"""

from __future__ import annotations

from typing import Literal

from cotrain import Objective, Phase, Recipe, RunConfig, alternate, critic, frozen, recipe, solve
from cotrain.config.evaluation import Implied
from cotrain.core.arguments import Weight
from cotrain.core.errors import ConfigError
from cotrain.recipes.prime.implicit_prm import ImplicitPrm, Prime, PrimeEstimator, PrimeValues
from cotrain.rollout import common_roles


@recipe(without=("kl",))
def prime(
    run: RunConfig,
    *,
    prm_lr: float = 2e-4,  # learning rate of φ
    beta: Weight = 0.05,  # scales log-ratios to rewards
    keep: tuple[float, float] = (0.2, 0.8),  # shares of right answers of the problems that are learned from
    prm: Literal["online", "frozen", "none"] = "online",  # when φ learns
    update: Literal["after", "before"] = "after",  # it has scored a batch
    warmup: int = 0,  # steps in which φ alone learns
    estimator: PrimeEstimator = "rloo",  # how answers of a group are compared; ppo: each with what a critic predicts
    critic_lr: float = 1e-3,  # learning rate of the critic of ppo
    lam: float = 0.95,  # λ of the advantages of ppo
    process_weight: Weight = 5.0,  # of φ's rewards beside the outcome
    max_return_norm: bool = True,  # divide returns by the largest one
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

    # The generator is paid by its outcome and, where there is one, by the reward model.
    pays = Prime(
        process_weight=process_weight if has_prm else 0.0,
        keep=keep,
        max_return_norm=max_return_norm,
        estimator=estimator,
        lam=lam,
    )
    policies = {"generator": run.learner()}
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=pays)}
    if has_prm:
        policies |= {"prm": run.learner(lr=prm_lr), "reference": frozen(run.model)}
        objectives["prm"] = Objective(policy="prm", role="solver", algorithm=ImplicitPrm(beta=beta))
    if has_critic:
        policies["critic"] = critic(run.model, lr=critic_lr)
        objectives["values"] = Objective(policy="critic", role="solver", algorithm=PrimeValues(paid_by=pays))

    # Who learns from a batch, and in which order: the reward model first, as in the authors' code, if so asked.
    learners = ["generator"]
    if learns_online:
        learners.append("prm")
    if has_critic:
        learners.append("values")
    in_turn: tuple[str, ...] = ()
    if learns_online and update == "before":
        in_turn = ("prm", "generator", *learners[2:])

    training = Phase(name="generator", protocol=solve, objectives=tuple(learners), in_turn=in_turn)
    if has_prm and warmup:
        alone = Phase(name="prm", protocol=solve, objectives=("prm",))
        schedule = alternate(training, alone, ratio=(1, 0), warmup={"prm": warmup})
    else:
        schedule = alternate(training, ratio=(1,))

    return run.recipe(
        "prime" if learns_online else f"prime-{prm}",
        policies=policies,
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives=objectives,
        schedule=schedule,
        evaluate=solve,
        implied=(Implied(policy="prm", reference="reference"),) if has_prm else (),
    )
