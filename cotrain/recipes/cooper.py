"""Cooper: a generator and the reward model that pays it, updated together so that the reward cannot be gamed for long.

Hong et al. 2025 (arXiv 2508.05613). The reward model, a scalar head that sees the reference answer, pays the generator
σ(score). After each batch it learns from one pair a problem: an answer that a precise rule calls right (it may overlook
some, but what it accepts is right) over a corrupted one. It begins as ``rm_model``, a reward model that has learned to
compare answers before, as the paper's VerifyRM had: "shipped-rater" for the shipped models, or any of the Hub with
one label. Without one it begins with a head of zeros on ``model`` and is first trained alone, ``warmup`` (20) steps of
cross-entropy on the rule's labels.

Controls are parameters: ``rm="frozen"`` never trains it after the warm-up (reward → 1 while accuracy falls),
``rm="rule"`` pays the rule itself. ``negatives`` are made by a "program" (another answer is written over the right one)
or a "model" (the start, hot, at most three tries), or are the generator's "own" rejected answers, each compared with
each that was accepted; the paper has no such form. ``reference=False`` hides the reference answer from the reward
model, ``anchor`` holds its scores in place by cross-entropy, which the paper lacks.

Different from the authors' settings: generator and reward model learn at one rate (theirs are 1 : 10), with groups of 8
(theirs 16). Their outer loop is not public; this one is from the paper's text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from cotrain import (
    CORRECT,
    GRPO,
    Objective,
    Phase,
    Recipe,
    Role,
    Roles,
    RunConfig,
    Sampling,
    Signal,
    Task,
    Turn,
    alternate,
    frozen,
    gather,
    gives,
    program,
    recipe,
    reward_model,
    rng_of,
)
from cotrain.algorithms.reward_model import Pairwise, Pointwise
from cotrain.core.arguments import Positive, Share, Weight
from cotrain.core.notes import FINAL, SCORE
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS, SHIPPED_RATER
from cotrain.core.signals import LABEL
from cotrain.data.word_problems.corrupt import another_answer
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts

Learned = Literal["", "pair", "all"]  # by the reward model
TRIES = 3  # of the model that corrupts
PROXY = Signal("proxy", meaning="what the reward model, or the rule, pays, in [0, 1]")


async def ask_rater(task: Task, roles: Roles, solution: Turn, *, reference: bool) -> Turn:
    """The reward model's turn alone."""
    reference_answer = (task.gold or "") if reference else ""
    return await roles.rater(
        parent=solution, problem=task.prompt, solution=solution.tagged_text, reference=reference_answer
    )


async def rate_solution(task: Task, roles: Roles, solution: Turn, *, reference: bool = True) -> Turn:
    """The reward model's turn on a solution; it shows its verdict and notes the truth, unless the solution is too long
    for it."""
    rating = await ask_rater(task, roles, solution, reference=reference)
    if rating.failed:
        return rating
    rating.add_finding(FINAL, rating.score > 0.0)
    rating.add_finding(SCORE, score_probability(rating.score))
    rating.add_metadata(CORRECT, CORRECT.require(solution))
    return rating


@gives(PROXY.to("solver"), LABEL.to("rater"))
async def solve_and_rate(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 1,
    pay: Literal["model", "rule"] = "model",
    learn: Learned = "",
    negatives: Literal["program", "model", "own"] = "program",
    overlooked: float = 0.0,
    reference: bool = True,
) -> None:
    """``samples`` solutions, each rated. ``pay``: ``PROXY`` from the "model" or the "rule"; a solution that is too long
    for the model gets none from it. ``learn``: labels for the
    reward model, "" none, "pair" one pair a problem, "all" the rule's word on every solution."""
    solutions = await attempts(task, roles, samples)
    ratings = await gather([rate_solution(task, roles, s, reference=reference) for s in solutions])
    first: tuple[Turn, Turn] | None = None
    for solution, rating in zip(solutions, ratings, strict=True):
        noticed = rng_of("overlooked", task.id, solution.id).random() >= overlooked
        accepted = CORRECT.require(solution) and noticed
        if pay == "rule":
            solution.reward(PROXY, float(accepted))
        elif not rating.failed:
            solution.reward(PROXY, score_probability(rating.score))
        if learn == "all":
            rating.reward(LABEL, float(accepted))
        first = first or ((solution, rating) if accepted else None)
    if learn != "pair" or first is None:
        return
    solution, rating = first
    wrong = await corrupt_solution(task, roles, solution, negatives)
    if wrong is not None:
        rating.reward(LABEL, 1.0)
        worse = await ask_rater(task, roles, wrong, reference=reference)
        worse.reward(LABEL, 0.0)  # its truth is not noted: verdict rates are about the generator's solutions


async def corrupt_solution(task: Task, roles: Roles, solution: Turn, negatives: str) -> Turn | None:
    """A wrong solution like a right one; None where the model found none in ``TRIES``."""
    for _ in range(TRIES):
        if negatives == "program":
            wrong = await roles.corruptor(parent=solution, solution=solution.tagged_text, answer=task.gold)
        else:
            wrong = await roles.assistant(parent=solution, problem=task.prompt)
        grade = await roles.grade(task, wrong)
        wrong.add_metadata(CORRECT, grade.value)
        if grade.value is False and "<answer>" in wrong.tagged_text:
            return wrong
    return None


def write_over(fields: Mapping[str, Any], rng: random.Random) -> str:
    """The program that corrupts."""
    return another_answer(str(fields["solution"]), str(fields["answer"]), rng)


def score_probability(score: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * score))


@recipe
def cooper(
    run: RunConfig,
    *,
    rm_model: str | None = None,  # begins the reward model
    rm_lr: float = 2e-4,  # learning rate of the reward model
    rm: Literal["online", "frozen", "rule"] = "online",  # who pays, and does it learn?
    warmup: int | None = None,  # steps in which the reward model alone learns
    negatives: Literal["program", "model", "own"] = "program",  # who corrupts right answers, or own rejected ones
    overlooked: Share = 0.0,  # share of right answers that the rule misses
    reference: bool = True,  # show the reward model the reference answer
    anchor: Weight = 0.0,  # weight of cross-entropy beside the pairs
) -> Recipe:
    rater_model = rm_model or (SHIPPED_RATER if run.model in SHIPPED_LANGUAGE_MODELS else run.model)
    alone = warmup if warmup is not None else 20 * (rater_model == run.model)
    online = rm == "online"
    play = partial(
        solve_and_rate, samples=run.group_size, overlooked=overlooked, negatives=negatives, reference=reference
    )
    learned: Learned = "all" if negatives == "own" else "pair"
    paid = partial(play, pay="rule" if rm == "rule" else "model", learn=learned if online else "")
    objectives = {
        "generator": Objective(
            policy="generator", role="solver", algorithm=GRPO(reward_weights={PROXY: 1.0}, kl=run.kl_penalty())
        ),
        **({"rm": Objective(policy="rm", role="rater", algorithm=Pairwise(anchor=anchor))} if online else {}),
    }
    phases = [Phase(name="generator", protocol=paid, objectives=tuple(objectives), group_size=1)]
    if alone:
        objectives["rm_start"] = Objective(policy="rm", role="rater", algorithm=Pointwise())
        taught = partial(play, learn="all")
        phases.append(Phase(name="rm_start", protocol=taught, objectives=("rm_start",), group_size=1))
    solver = common_roles.solver("generator", run.model)
    return run.recipe(
        "cooper" if online else f"cooper-{rm}",
        policies={
            "generator": run.learner(),
            "rm": reward_model(rater_model, lr=rm_lr),
            "reference": frozen(run.model),
            "corruptor": program(write_over),
        },
        roles={
            "solver": solver,
            "rater": common_roles.rater("rm"),
            "corruptor": Role(policy="corruptor", prompt="{solution}", sampling=Sampling(max_tokens=1)),
            "assistant": replace(solver, policy="reference", sampling=replace(solver.sampling, temperature=1.3)),
        },
        objectives=objectives,
        schedule=alternate(*phases, ratio=(1, 0)[: len(phases)], warmup={"rm_start": alone} if alone else {}),
        evaluate=partial(solve_and_rate, reference=reference),
        measures=measure_solver_and_verifier("rater"),
    )
