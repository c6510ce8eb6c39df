"""PRIME: the generator's process rewards come from an implicit reward model that learns from outcomes alone, online.

Cui et al. 2025 (arXiv 2502.01456). A second language model φ, begun as a copy of the generator, is trained so that the sum
of its log-ratios to the start tells right answers from wrong ones; its log-ratio at a token is that token's reward
(``learn/implicit.py``). Only the graded answer is ever used.

Controls are parameters: ``prm="frozen"`` trains φ during ``warmup`` on the start's answers and never again (the offline
reward model that is over-optimised), ``prm="none"`` pays the outcome only (RLOO), ``max_return_norm=False`` drops the
normaliser. ``update="before"`` lets φ learn from a batch before it scores it, ``"after"`` scores first. Left out: the buffer
that is refilled until a batch is full of prompts of medium difficulty.
"""

from __future__ import annotations

from typing import Literal

from cotrain.core.errors import ConfigError
from cotrain.core.types import TaskSource
from cotrain.learn.implicit import ImplicitPrm, Prime
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import solving
from cotrain.play.parts import solver
from cotrain.play.protocols import solve
from cotrain.tasks.words.source import study_problems


@recipe
def prime(
    model: str = "embedded",
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    lr: float = 2e-4,
    prm_lr: float = 2e-4,
    beta: float = 0.05,
    keep: tuple[float, float] = (0.2, 0.8),
    prm: Literal["online", "frozen", "none"] = "online",
    update: Literal["after", "before"] = "after",
    warmup: int = 0,
    process_weight: float = 5.0,
    max_return_norm: bool = True,
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    if prm == "frozen" and warmup < 1:
        raise ConfigError(
            "prime: prm=frozen with a warm-up of 0 steps never trains the reward model, whose rewards would all be 0; give it "
            "some, as in warmup=20, or set prm=none"
        )
    implicit = prm != "none"
    learn_to_solve = Prime(
        process_weight=process_weight if implicit else 0.0, keep=keep, max_return_norm=max_return_norm
    )
    objectives = {"generator": Objective(policy="generator", on="solver", by=learn_to_solve)}
    policies = {"generator": trainable(model, lr=lr)}
    if implicit:
        objectives["prm"] = Objective(policy="prm", on="solver", by=ImplicitPrm(beta=beta))
        policies |= {"prm": trainable(model, lr=prm_lr), "start": frozen(model)}
    both = ("generator", "prm")
    phases = [
        Phase(
            name="generator",
            protocol=solve,
            objectives=both if prm == "online" else both[:1],
            in_turn=both[::-1] if prm == "online" and update == "before" else (),
        )
    ]
    if implicit and warmup:
        phases.append(Phase(name="prm", protocol=solve, objectives=("prm",)))
    ratio = (1,) + (0,) * (len(phases) - 1)
    return Recipe(
        name="prime" if prm == "online" else f"prime-{prm}",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies=policies,
        roles={"solver": solver("generator", model)},
        objectives=objectives,
        schedule=alternate(*phases, ratio=ratio, warmup={"prm": warmup} if implicit and warmup else {}),
        evaluation=Evaluation(
            protocol=solve,
            measures=(solving("solver", 8),),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
        ),
        evaluate_every=evaluate_every,
    )
