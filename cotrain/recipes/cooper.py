"""Cooper: a generator and the reward model that pays it, updated together so that the reward cannot be gamed for long.

Hong et al. 2025 (arXiv 2508.05613). Generator and reward model are trained at every step. The reward model has a scalar
head and sees the reference answer; the generator learns by GRPO from σ(score). The reward model learns from one pair a
problem, by the pairwise loss: a solution that a precise rule accepts over a corrupted one. The rule may overlook right
answers, but what it accepts is right.

The reward model begins as ``rm_model``, which has learned to compare answers before, as the paper's VerifyRM had:
"shipped-rater" for the shipped models, or any model of the Hub with one label. Without one it begins with a head of
zeros on ``model``, and the first ``warmup`` (20) steps train it alone, by cross-entropy on the rule's labels.

Controls are parameters:

- ``rm="frozen"``: it is not trained after the warm-up. Then the reward goes to 1 while accuracy falls.
- ``rm="rule"``: the rule itself is the reward.
- ``negatives``: corrupted solutions are written by a "program", which writes another answer over the right one, or by a
  "model", the initial one at a high temperature, in at most three tries. "own" are the generator's rejected answers,
  each compared with each accepted one, which the paper does not have.
- ``reference=False``: the reward model does not see the reference answer.
- ``anchor``: weight of cross-entropy beside the pairs, which holds the scores in place. The paper has none.

What differs from the authors' settings: generator and reward model learn at the same rate, theirs at 1 : 10; groups
have 8 answers, theirs 16. Their outer loop is not public; this one is from the paper's text.
"""

from __future__ import annotations

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
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS, SHIPPED_RATER
from cotrain.core.signals import LABEL
from cotrain.data.word_problems.corrupt import another_answer
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import rate

Learned = Literal["", "pair", "all"]  # labels for the reward model: none, one pair a problem, or every solution
TRIES = 3  # corrupted solutions that are tried
PROXY = Signal("proxy", meaning="what the reward model, or the rule, pays, in [0, 1]")


@gives(PROXY.to("solver"), LABEL.to("rater"))
async def solve_and_rate(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 1,
    pay: Literal["model", "rule"] = "model",
    learn: Learned = "",
    negatives: Literal["program", "model", "own"] = "program",
    false_negative_rate: float = 0.0,
    reference: bool = True,
) -> None:
    """``samples`` solutions, each rated.

    ``pay``: the reward ``PROXY`` is from the "model" or the "rule". A solution that is too long for the model has none
    from it. ``learn``: labels for the reward model. ``false_negative_rate``: share of right answers that the rule
    misses.
    """
    solutions = await attempts(task, roles, samples)
    reference_answer = (task.gold or "") if reference else ""
    ratings = await gather([rate(task, roles, solution, reference=reference_answer) for solution in solutions])
    accepted_solutions: list[tuple[Turn, Turn]] = []  # (solution, its rating), those that the rule accepts
    for solution, rating in zip(solutions, ratings, strict=True):
        draw = rng_of("overlooked", task.id, solution.id).random()  # the name stays, as it seeds the draw
        is_noticed = draw >= false_negative_rate
        is_accepted = CORRECT.require(solution) and is_noticed
        if is_accepted:
            accepted_solutions.append((solution, rating))
        if pay == "rule":
            solution.reward(PROXY, float(is_accepted))
        elif not rating.failed:
            solution.reward(PROXY, rating.score_probability)
        if learn == "all":
            rating.reward(LABEL, float(is_accepted))
    if learn != "pair" or not accepted_solutions:
        return

    better, better_rating = accepted_solutions[0]
    worse = await corrupt_solution(task, roles, better, negatives)
    if worse is not None:
        better_rating.reward(LABEL, 1.0)
        # Without a verdict: metrics of verdicts are about the generator's solutions.
        worse_rating = await roles.rater(
            parent=worse, problem=task.prompt, solution=worse.tagged_text, reference=reference_answer
        )
        worse_rating.reward(LABEL, 0.0)


async def corrupt_solution(task: Task, roles: Roles, solution: Turn, negatives: str) -> Turn | None:
    """A wrong solution of the same problem, made from a right one; None where ``TRIES`` tries gave none."""
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
    """The policy of the role ``corruptor``: it writes another answer over the right one."""
    return another_answer(str(fields["solution"]), str(fields["answer"]), rng)


@recipe
def cooper(
    run: RunConfig,
    *,
    rm_model: str | None = None,  # initial reward model; by default shipped-rater, or the generator's model with a head
    rm_lr: float = 2e-4,  # learning rate of the reward model
    rm: Literal["online", "frozen", "rule"] = "online",  # reward: a model that learns, one that does not, or the rule
    warmup: int | None = None,  # first steps, in which only the reward model is trained
    negatives: Literal["program", "model", "own"] = "program",  # who corrupts right answers; own: rejected ones instead
    false_negative_rate: Share = 0.0,  # share of right answers that the rule misses
    reference: bool = True,  # show the reward model the reference answer
    anchor: Weight = 0.0,  # weight of cross-entropy beside the pairs
) -> Recipe:
    if rm_model:
        initial_rm = rm_model
    elif run.model in SHIPPED_LANGUAGE_MODELS:
        initial_rm = SHIPPED_RATER
    else:
        initial_rm = run.model
    if warmup is None:
        has_new_head = initial_rm == run.model
        warmup = 20 if has_new_head else 0
    learns_online = rm == "online"

    learn_to_solve = GRPO(reward_weights={PROXY: 1.0}, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}
    labels: Learned = ""
    if learns_online:
        labels = "all" if negatives == "own" else "pair"
        objectives["rm"] = Objective(policy="rm", role="rater", algorithm=Pairwise(anchor=anchor))

    protocol = partial(
        solve_and_rate,
        samples=run.group_size,
        false_negative_rate=false_negative_rate,
        negatives=negatives,
        reference=reference,
    )
    generator_phase = Phase(
        name="generator",
        protocol=partial(protocol, pay="rule" if rm == "rule" else "model", learn=labels),
        objectives=tuple(objectives),
        group_size=1,  # the protocol samples the whole group itself
    )
    if warmup:
        objectives["rm_start"] = Objective(policy="rm", role="rater", algorithm=Pointwise())
        rm_phase = Phase(
            name="rm_start", protocol=partial(protocol, learn="all"), objectives=("rm_start",), group_size=1
        )
        schedule = alternate(generator_phase, rm_phase, ratio=(1, 0), warmup={"rm_start": warmup})
    else:
        schedule = alternate(generator_phase, ratio=(1,))

    solver = common_roles.solver("generator", run.model)
    return run.recipe(
        "cooper" if learns_online else f"cooper-{rm}",
        policies={
            "generator": run.learner(),
            "rm": reward_model(initial_rm, lr=rm_lr),
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
        schedule=schedule,
        evaluate=partial(solve_and_rate, reference=reference),
        measures=measure_solver_and_verifier("rater"),
    )
