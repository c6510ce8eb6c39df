"""Cooper: a generator and the reward model that pays it, updated together so that the reward cannot be gamed for long.

Hong et al. 2025 (arXiv 2508.05613). The reward model, a scalar head that sees the reference answer, pays the generator
σ(score). After each batch it learns from one pair a problem: an answer that a precise rule calls right (it may overlook some,
but what it accepts is right) over a corrupted one. It begins as ``rm_model``, a reward model that has learned to compare
answers before, as the paper's VerifyRM had: "embedded-rater" for the embedded models, or any of the Hub with one label.
Without one it begins with a head of zeros on ``model`` and is first trained alone, ``warmup`` (20) steps of cross-entropy on
the rule's labels.

Controls are parameters: ``rm="frozen"`` never trains it after the warm-up (reward → 1 while accuracy falls), ``rm="rule"`` pays
the rule itself. ``negatives`` are made by a "program" (another answer is written over the right one) or a "model" (the start,
hot, at most three tries). ``overlooked`` is the share of right answers that the rule misses. ``reference=False`` hides the
reference answer from the reward model, ``anchor`` holds its scores in place by cross-entropy, which the paper lacks. The
authors' outer loop is not public; this one is from the paper's text.
"""

from __future__ import annotations

import math
import random
from asyncio import gather
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from cotrain.core.address import rng_of
from cotrain.core.notes import CORRECT, FINAL, SCORE
from cotrain.core.signals import LABEL, Signal, gives
from cotrain.core.types import Sampling, Task, TaskSource
from cotrain.learn.algorithms import grpo, pull_to
from cotrain.learn.rating import Pairwise, Pointwise
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, program, reward_model, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import selecting, solving, verifying
from cotrain.play import parts
from cotrain.play.executor import Roles
from cotrain.play.protocols import examine
from cotrain.play.role import Role, Turn
from cotrain.tasks.words.corrupt import another_answer
from cotrain.tasks.words.source import study_problems

TRIES = 3  # of the model that corrupts
PROXY = Signal("proxy", meaning="what the reward model, or the rule, pays, in [0, 1]")


async def rate(task: Task, roles: Roles, solution: Turn, *, reference: bool = True) -> Turn:
    """The reward model's turn on a solution; it shows its verdict and notes the truth."""
    told = (task.answer or "") if reference else ""
    rating = await roles.rater(parent=solution, problem=task.prompt, solution=solution.text, reference=told)
    rating.show(FINAL, rating.score > 0.0)
    rating.show(SCORE, probability(rating.score))
    rating.note(CORRECT, CORRECT.known(solution))
    return rating


@gives(PROXY.to("solver"), LABEL.to("rater"))
async def rated(
    task: Task,
    roles: Roles,
    *,
    samples: int = 1,
    pay: str = "model",
    learn: str = "",
    negatives: str = "program",
    overlooked: float = 0.0,
    reference: bool = True,
) -> None:
    """``samples`` solutions, each rated. ``pay``: ``PROXY`` from the "model" or the "rule". ``learn``: labels for the
    reward model, "" none, "pair" one pair a problem, "all" the rule's word on every solution."""
    solutions = await roles.solver.many(samples, problem=task.prompt)
    solutions = [s for s in solutions if await examine(task, roles, s) is not None]
    ratings = await gather(*(rate(task, roles, s, reference=reference) for s in solutions))
    first: tuple[Turn, Turn] | None = None
    for solution, rating in zip(solutions, ratings, strict=True):
        seen = rng_of("overlooked", task.id, solution.id).random() >= overlooked
        accepted = CORRECT.known(solution) and seen
        solution.reward(PROXY, probability(rating.score) if pay == "model" else float(accepted))
        if learn == "all":
            rating.reward(LABEL, float(accepted))
        first = first or ((solution, rating) if accepted else None)
    if learn != "pair" or first is None:
        return
    solution, rating = first
    wrong = await corrupted(task, roles, solution, negatives)
    if wrong is not None:
        rating.reward(LABEL, 1.0)
        told = (task.answer or "") if reference else ""
        worse = await roles.rater(parent=wrong, problem=task.prompt, solution=wrong.text, reference=told)
        worse.reward(LABEL, 0.0)  # its truth is not noted: verdict rates are about the generator's solutions


async def corrupted(task: Task, roles: Roles, solution: Turn, negatives: str) -> Turn | None:
    """A wrong solution like a right one; None where the model found none in ``TRIES``."""
    for _ in range(TRIES):
        if negatives == "program":
            wrong = await roles.corruptor(parent=solution, solution=solution.text, answer=task.answer)
        else:
            wrong = await roles.assistant(parent=solution, problem=task.prompt)
        grade = await roles.grade(task, wrong.text)
        wrong.note(CORRECT, grade.value)
        if grade.value is False and "<answer>" in wrong.text:
            return wrong
    return None


def write_over(fields: Mapping[str, Any], rng: random.Random) -> str:
    """The program that corrupts."""
    return another_answer(str(fields["solution"]), str(fields["answer"]), rng)


def probability(score: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * score))


@recipe
def cooper(
    model: str = "embedded",
    rm_model: str | None = None,
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    lr: float = 2e-4,
    rm_lr: float = 2e-4,
    kl: float = 0.001,
    rm: Literal["online", "frozen", "rule"] = "online",
    warmup: int | None = None,
    negatives: Literal["program", "model"] = "program",
    overlooked: float = 0.0,
    reference: bool = True,
    anchor: float = 0.0,
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    begun = rm_model or (parts.RATER if model in parts.EMBEDDED else model)
    alone = warmup if warmup is not None else 20 * (begun == model)
    shown = {"reference": reference}
    how = {"samples": group_size, "overlooked": overlooked, "negatives": negatives, **shown}
    generator = Objective(policy="generator", on="solver", by=grpo(rewards={PROXY: 1.0}, kl=pull_to("start", kl)))
    objectives = {
        "generator": generator,
        "rm": Objective(policy="rm", on="rater", by=Pairwise(anchor=anchor)),
        "rm_start": Objective(policy="rm", on="rater", by=Pointwise()),
    }
    paying = {"pay": "rule" if rm == "rule" else "model", "learn": "pair" if rm == "online" else ""}
    due = ("generator", "rm") if rm == "online" else ("generator",)
    phases = [
        Phase(name="generator", protocol=rated, objectives=due, members=1, options={**how, **paying}),
        Phase(name="rm_start", protocol=rated, objectives=("rm_start",), members=1, options={**how, "learn": "all"}),
    ]
    if rm != "online":
        del objectives["rm"]
    if not alone:
        del objectives["rm_start"]
        phases.pop()
    solver = parts.solver("generator", model)
    return Recipe(
        name="cooper" if rm == "online" else f"cooper-{rm}",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies={
            "generator": trainable(model, lr=lr),
            "rm": reward_model(begun, lr=rm_lr),
            "start": frozen(model),
            "corruptor": program(write_over),
        },
        roles={
            "solver": solver,
            "rater": parts.rater("rm"),
            "corruptor": Role(policy="corruptor", prompt="{solution}", sampling=Sampling(max_tokens=1)),
            "assistant": replace(parts.solver("start", model), sampling=replace(solver.sampling, temperature=1.3)),
        },
        objectives=objectives,
        schedule=alternate(*phases, ratio=(1, 0)[: len(phases)], warmup={"rm_start": alone} if alone else {}),
        evaluation=Evaluation(
            protocol=rated,
            measures=(solving("solver", 8), verifying("rater"), selecting("solver", "rater", 8)),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
            options=shown,
        ),
        evaluate_every=evaluate_every,
    )
