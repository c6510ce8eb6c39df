"""Learning to Self-Verify: one set of weights solves and judges its own answers (Chen et al. 2026, arXiv 2602.07594).

One policy has two objectives, both by GRPO without KL: a solution earns 1 if its answer is right, and a review earns 1
if its verdict is the truth. In a verification step a group of solutions is sampled for each problem; as many right as
wrong ones are chosen (``choose_to_review``), and each is reviewed ``reviews`` times. The reviews of one solution are
compared with each other. The paper's claim: learning to judge improves solving, and learning to solve leaves judging as
it was.

Controls are parameters:

- ``mode``: "alternate" has ``ratio`` generation and verification steps in turn; "joint" learns both objectives in one
  optimiser step, from the same solutions; "generate" and "verify" learn one of the two alone.
- ``warmup``: verification steps before all others. With ``mode="generate"`` this is the paper's arm in which the
  verifier is the initial policy.
- ``balance=False``: solutions are chosen for review whether right or wrong.

What differs from the paper:

- Solutions are reviewed by the weights that wrote them; theirs come from a buffer of the last five generation steps.
- Each problem has as many right as wrong solutions; theirs are balanced over all problems, and wrong ones are repeated
  where there are too few.
- Left out: verdicts that see the final answer alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    GRPO,
    OUTCOME,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    alternate,
    frozen,
    gather,
    gives,
    recipe,
    rng_of,
    solve,
    solve_then_verify,
)
from cotrain.algorithms.policy_gradient import PPOClip
from cotrain.core.arguments import Positive
from cotrain.core.notes import JUDGED, Metadata
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import SOLVED
from cotrain.rollout.reviews import REVIEWED, review_all, reward_review

MIXED = Metadata[bool]("mixed", bool, "has the problem right and wrong solutions")


@gives(*SOLVED, *REVIEWED)
async def judge_own(
    task: Task, roles: Roles, *, samples: Positive, reviews: Positive, pairs: Positive = 1, balance: bool = True
) -> None:
    """``samples`` solutions, rewarded as by ``solve``. The chosen ones are reviewed ``reviews`` times, and the reviews
    rewarded for ``agreement`` with the truth."""
    solutions = await gather([solve(task, roles) for _ in range(samples)])
    readable = [solution for solution in solutions if solution.parsed.ok and not solution.failed]
    answers = [solution.parsed.answer for solution in readable]
    grades = [CORRECT.require(solution) for solution in readable]
    rng = rng_of("judged", task.id, solutions[0].id)
    indices = choose_to_review(answers, grades, pairs, rng, balance=balance)
    solutions_to_review = [readable[i] for i in indices]

    is_mixed = len(set(grades)) == 2
    for solution in solutions:
        solution.add_metadata(JUDGED, solution in solutions_to_review)
        solution.add_metadata(MIXED, is_mixed)

    reviews_by_solution = await review_all(task, roles, solutions_to_review, n=reviews)
    for solution, review_turns in zip(solutions_to_review, reviews_by_solution, strict=True):
        for turn in review_turns:
            reward_review(turn, CORRECT.require(solution))


def choose_to_review(
    answers: Sequence[str], grades: Sequence[bool], pairs: int, rng: Random, *, balance: bool = True
) -> list[int]:
    """Indices of the solutions to review, in order: ``pairs`` right ones and as many wrong ones, fewer of both where
    there are too few of either. Without ``balance``, 2 · ``pairs`` of all.

    They are drawn at random, but a solution whose answer was drawn before comes after those with new answers.
    """
    indices = range(len(answers))
    if balance:
        right_indices = [i for i in indices if grades[i]]
        wrong_indices = [i for i in indices if not grades[i]]
        sides = [right_indices, wrong_indices]
        n_chosen = min(pairs, len(right_indices), len(wrong_indices))
    else:
        sides = [list(indices)]
        n_chosen = 2 * pairs

    indices_to_review: list[int] = []
    for side in sides:
        times_drawn: Counter[str] = Counter()
        n_same_before: dict[int, int] = {}  # index → how often its answer was drawn before it
        for i in rng.sample(side, len(side)):
            n_same_before[i] = times_drawn[answers[i]]
            times_drawn[answers[i]] += 1
        new_answers_first = sorted(n_same_before, key=lambda i: n_same_before[i])
        indices_to_review += new_answers_first[:n_chosen]
    return sorted(indices_to_review)


@recipe(steps=120, kl=0.0)
def self_verify(
    run: RunConfig,
    *,
    reviews: int = 8,  # reviews of each chosen solution
    pairs: int = 1,  # pairs of a right and a wrong solution that are reviewed, of each problem
    mode: Literal["alternate", "joint", "generate", "verify"] = "alternate",  # what is learned when
    ratio: tuple[int, int] = (5, 1),  # generation and verification steps, in turn
    warmup: int = 0,  # verification steps before all others
    balance: bool = True,  # review as many right as wrong solutions
    clip_high: float = 0.28,  # upper clip of the importance ratio
) -> Recipe:
    if reviews < 2 or pairs < 1:
        raise ConfigError(
            f"self_verify: reviews {reviews} and pairs {pairs}; expected at least 2 reviews of a solution, which are "
            "compared with each other, and at least 1 pair of solutions a problem",
            code="E_SETTING_RANGE",
        )
    solve_and_judge = partial(judge_own, samples=run.group_size, reviews=reviews, pairs=pairs, balance=balance)
    phases = (
        Phase(name="generator", protocol=solve, objectives=("generator",)),
        Phase(name="verifier", protocol=solve_and_judge, objectives=("verifier",), group_size=1),
        Phase(name="both", protocol=solve_and_judge, objectives=("generator", "verifier"), group_size=1),
    )
    if mode == "alternate":
        steps_in_a_round = (*ratio, 0)  # one number for each of the three phases
    elif mode == "joint":
        steps_in_a_round = (0, 0, 1)
    elif mode == "generate":
        steps_in_a_round = (1, 0, 0)
    else:
        steps_in_a_round = (0, 1, 0)

    # The phases that have a step, in a round or in the warm-up.
    used_phases = []
    used_steps = []
    learners: set[str] = set()
    for phase, n_steps in zip(phases, steps_in_a_round, strict=True):
        is_warmup = phase.name == "verifier" and warmup > 0
        if n_steps or is_warmup:
            used_phases.append(phase)
            used_steps.append(n_steps)
            learners |= set(phase.objectives)

    def make_objective(role: str, signal: Signal) -> Objective:
        algorithm = GRPO(reward_weights={signal: 1.0}, loss=PPOClip(0.2, clip_high), kl=run.kl_penalty())
        return Objective(policy="model", role=role, algorithm=algorithm)

    objectives = {}
    if "generator" in learners:
        objectives["generator"] = make_objective("solver", OUTCOME)
    if "verifier" in learners:
        objectives["verifier"] = make_objective("verifier", AGREEMENT)

    return run.recipe(
        "self_verify" if mode == "alternate" else f"self_verify-{mode}",
        policies={"model": run.learner(), "reference": frozen(run.model)},
        roles={
            "solver": common_roles.solver("model", run.model),
            "verifier": common_roles.verifier("model", run.model),
        },
        objectives=objectives,
        schedule=alternate(*used_phases, ratio=tuple(used_steps), warmup={"verifier": warmup}),
        evaluate=partial(solve_then_verify, step_rewards="none"),
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles={"solver": "reference"},
    )
