"""GRPO: one generator, rewarded when its answer is right. The baseline of everything.

DeepSeekMath (arXiv 2402.03300), §4: a group of answers to one problem, the reward standardised within the group, one
clipped policy-gradient step. ``steps_judged_by="oracle"`` adds the oracle's judgement of every step as a second
channel, mixed as in RL Tango: what a perfect verifier would be worth. ``lora=16`` trains an adapter of that rank, at
α = 2 · rank, and not all weights; the KL reference is then its base. ``estimator`` is how an answer is compared with
its group: "grpo", "dr_grpo", "rloo", "maxrl" or "reinforce++" (``learn/algorithms.py``). ``format_reward`` pays for a
solution that can be read, as a channel of its own. Left out: several updates a batch.
"""

from __future__ import annotations

from typing import Literal

from cotrain.core.errors import ConfigError
from cotrain.core.signals import FORMAT, OUTCOME, STEP
from cotrain.core.types import TaskSource
from cotrain.learn.algorithms import BY_NAME, Name, pull_to
from cotrain.learn.mixing import decay
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import adapter, frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import single
from cotrain.metrics.heldout import solving
from cotrain.play.parts import solver
from cotrain.play.protocols import solve
from cotrain.tasks.words.source import study_problems


@recipe
def grpo(
    model: str = "embedded",
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    lr: float = 2e-4,
    lora: int = 0,
    kl: float = 0.001,
    format_reward: float = 0.0,
    estimator: Name = "grpo",
    alpha: float = 0.1,
    alpha_end: float = 0.001,
    steps_judged_by: Literal["nobody", "oracle"] = "nobody",
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    oracle = steps_judged_by == "oracle"
    if oracle and estimator == "maxrl":
        raise ConfigError("grpo: estimator='maxrl' divides by a rate of success, which the oracle's ±1 has not")
    learn = BY_NAME[estimator](
        rewards={OUTCOME: 1.0}
        | ({FORMAT: format_reward} if format_reward else {})
        | ({STEP: decay(alpha, alpha_end)} if oracle else {}),
        kl=pull_to("start", kl),
    )
    generator = adapter(model, rank=lora, alpha=2 * lora, lr=lr) if lora else trainable(model, lr=lr)
    policies = {"generator": generator} | ({"start": frozen(model)} if kl else {})
    return Recipe(
        name=estimator + ("-oracle" if oracle else ""),
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies=policies,
        roles={"solver": solver("generator", model)},
        objectives={"generator": Objective(policy="generator", on="solver", by=learn)},
        schedule=single(solve, "generator", name="generator", step_rewards="oracle" if oracle else "none"),
        evaluation=Evaluation(
            protocol=solve,
            measures=(solving("solver", 8),),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
        ),
        evaluate_every=evaluate_every,
    )
