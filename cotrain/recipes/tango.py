"""RL Tango: a generator and a stepwise generative verifier, trained in turn (arXiv 2505.15034).

The verifier reviews each step of a solution and then the answer. It never sees a label of a step: it is paid only when
its final verdict is the truth, and for keeping the format. Its step verdicts are the generator's second reward channel,
mixed into the advantage with a weight α that decays over the generator's own updates.

Controls are parameters: ``verifier="frozen"`` never trains it, ``steps_judged_by="oracle"`` replaces its step verdicts
by the truth (the ceiling; each verdict is flipped with the chance ``oracle_noise``), ``balance=False`` drops the class weights,
``simultaneous=True`` trains both from the same episodes, ``step_scale="one"`` pays a step ±1 and not ±1/K. ``estimator`` is
that of both: "grpo", "dr_grpo", "rloo" or
"reinforce++" (for which the paper begins with ``alpha=0.5``); ``clip_high`` widens the upper
clip. ``lora=16`` makes generator and verifier adapters of that rank, at α = 2 · rank, which share one base with each other and
with the KL reference when the models are one. ``judge`` is the verifier's format ("steps", "genrm", "genprm", "scored":
``play/judges.py``), ``votes`` how many of its reviews pay a solution's steps, put together by ``combine``. Left out of the
paper: the bonus for several answers in a generator's format (its weight is 0 there).
"""

from __future__ import annotations

from typing import Any, Literal

from cotrain.core.errors import ConfigError
from cotrain.core.signals import AGREEMENT, FORMAT, OUTCOME, STEP
from cotrain.core.types import TaskSource
from cotrain.learn.algorithms import BY_NAME, Clipped, pull_to
from cotrain.learn.balance import ClassBalance
from cotrain.learn.mixing import decay
from cotrain.learn.samples import StepScale
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import Policy, adapter, frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate, single
from cotrain.metrics.heldout import selecting, solving, verifying
from cotrain.play import judges, parts
from cotrain.play.protocols import check_step_rewards, solve_then_verify
from cotrain.tasks.words.source import study_problems


@recipe
def tango(
    model: str = "embedded",
    verifier_model: str | None = None,
    steps: int = 160,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    reviews: int = 8,
    warmup: int = 40,
    ratio: tuple[int, int] = (3, 1),
    lr: float = 2e-4,
    verifier_lr: float = 2e-4,
    lora: int = 0,
    alpha: float = 0.1,
    alpha_end: float = 0.001,
    step_scale: StepScale = "1/K",
    estimator: Literal["grpo", "dr_grpo", "rloo", "reinforce++"] = "grpo",
    clip_high: float = 0.2,
    kl: float = 0.001,
    verifier: Literal["trained", "frozen"] = "trained",
    judge: judges.Format = "steps",
    votes: int = 1,
    combine: Literal["mean", "majority", "sum", "minimum", "product"] = "mean",
    steps_judged_by: Literal["verifier", "oracle", "nobody"] = "verifier",
    oracle_noise: float = 0.0,
    balance: bool = True,
    simultaneous: bool = False,
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    if min(reviews, votes) < 1:
        raise ConfigError(f"tango: reviews is {reviews} and votes {votes}; expected at least 1 review of each solution")
    critic, trained = verifier_model or model, verifier == "trained"
    paid_by = "none" if steps_judged_by == "nobody" else steps_judged_by
    check_step_rewards(paid_by, oracle_noise)
    pay: dict[str, Any] = {"step_rewards": paid_by, "oracle_noise": oracle_noise}
    learn, how = BY_NAME[estimator], {"step_scale": step_scale, "loss": Clipped(0.2, clip_high)}
    learn_to_solve = learn(rewards={OUTCOME: 1.0, STEP: decay(alpha, alpha_end)}, kl=pull_to("start", kl), **how)
    learn_to_judge = learn(
        rewards={AGREEMENT: 1.0, FORMAT: 0.8}, merge=True, balance=ClassBalance() if balance else None, **how
    )
    objectives = {"generator": Objective(policy="generator", on="solver", by=learn_to_solve)}
    if trained:
        objectives["verifier"] = Objective(policy="verifier", on="verifier", by=learn_to_judge)

    def learner(name: str, rate: float) -> Policy:
        return adapter(name, rank=lora, alpha=2 * lora, lr=rate) if lora else trainable(name, lr=rate)

    solving_step = Phase(
        name="generator",
        protocol=solve_then_verify,
        objectives=("generator",),
        options={**pay, "reviews": votes if paid_by == "verifier" else 0, "combine": combine},
    )
    judging_step = Phase(
        name="verifier",
        protocol=solve_then_verify,
        objectives=("verifier",),
        members=1,
        options={"reviews": reviews, "step_rewards": "none"},
    )
    if simultaneous and trained:
        both: dict[str, Any] = {"reviews": max(2, reviews // 4), **pay}
        schedule = single(solve_then_verify, "generator", "verifier", name="both", **both)
    elif trained:
        schedule = alternate(solving_step, judging_step, ratio=ratio, warmup={"verifier": warmup})
    else:
        schedule = alternate(solving_step, ratio=(1,))
    return Recipe(
        name="tango",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies={
            "generator": learner(model, lr),
            "verifier": learner(critic, verifier_lr) if trained else frozen(critic),
        }
        | ({"start": frozen(model)} if kl else {}),
        roles={"solver": parts.solver("generator", model), "verifier": judges.judge("verifier", critic, judge)},
        objectives=objectives,
        schedule=schedule,
        evaluation=Evaluation(
            protocol=solve_then_verify,
            measures=(solving("solver", 8), verifying("verifier"), selecting("solver", "verifier", 8)),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
            fixed={"solver": "start"} if kl else {},
            options={"reviews": votes},
        ),
        evaluate_every=evaluate_every,
    )
