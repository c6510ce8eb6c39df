"""Learning to Self-Verify: one set of weights solves and judges its own answers (Chen et al. 2026, arXiv 2602.07594).

Two objectives on one policy, both GRPO without KL: an answer is paid when it is right, a verdict when it agrees with
the truth of the answer. In a verification step a group of solutions is sampled for each problem, as many right as wrong
ones are chosen (``choose_to_review``), and each is reviewed several times; the reviews of one solution are a group. The
claim: learning to judge improves solving, and learning to solve leaves judging as it was.

Controls are parameters: ``mode="alternate"`` (``ratio`` of generation to verification steps), "joint" (both objectives
in one optimiser step, from the same solutions), "generate" and "verify" (one of the two alone). ``warmup`` puts
verification steps first: with "generate", the paper's verifier as initial policy. ``balance=False`` reviews solutions
whatever their truth. The paper has no ``kl``.

Left out: the buffer of the last five generation steps (here the solutions are fresh, of the weights that judge them);
its balance over problems, which repeats wrong solutions where there are too few (here each problem has as many right as
wrong); verdicts that see the final answer alone.
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
    """``samples`` solutions, rewarded as by ``solve``; the chosen ones are reviewed ``reviews`` times, rewarded for
    ``agreement``. Solutions note whether they were ``judged``, and whether their problem was ``mixed``: right and
    wrong."""
    solutions = await gather([solve(task, roles) for _ in range(samples)])
    readable = [s for s in solutions if s.parsed.ok and not s.failed]
    right = [CORRECT.require(s) for s in readable]
    rng = rng_of("judged", task.id, solutions[0].id)
    places = choose_to_review([s.parsed.answer for s in readable], right, pairs, rng, balance=balance)
    judged = [readable[place] for place in places]
    for solution in solutions:
        solution.add_metadata(JUDGED, solution in judged)
        solution.add_metadata(MIXED, len(set(right)) == 2)
    review_turns = await review_all(task, roles, judged, n=reviews)
    for solution, turns in zip(judged, review_turns, strict=True):
        for turn in turns:
            reward_review(turn, CORRECT.require(solution))


def choose_to_review(
    answers: Sequence[str], right: Sequence[bool], pairs: int, rng: Random, *, balance: bool = True
) -> list[int]:
    """Places of the solutions to review, in order: ``pairs`` right ones and as many wrong ones, fewer of both where
    either runs short; without ``balance`` 2 · ``pairs`` of all. On each side distinct answers come first, else chance
    decides."""
    places = range(len(answers))
    if balance:
        right_places = [place for place in places if right[place]]
        wrong_places = [place for place in places if not right[place]]
        sides = [right_places, wrong_places]
        count = min(pairs, len(right_places), len(wrong_places))
    else:
        sides = [list(places)]
        count = 2 * pairs

    chosen: list[int] = []
    for side in sides:
        times: Counter[str] = Counter()
        rank: dict[int, int] = {}  # how often the same answer came before
        for place in rng.sample(side, len(side)):
            rank[place] = times[answers[place]]
            times[answers[place]] += 1
        chosen += sorted(rank, key=lambda place: rank[place])[:count]
    return sorted(chosen)


@recipe(steps=120, kl=0.0)
def self_verify(
    run: RunConfig,
    *,
    reviews: int = 8,  # of a solution
    pairs: int = 1,  # of a right and a wrong solution, of each problem
    mode: Literal["alternate", "joint", "generate", "verify"] = "alternate",  # what is learned when
    ratio: tuple[int, int] = (5, 1),  # generation and verification steps, in turn
    warmup: int = 0,  # verification steps before all others
    balance: bool = True,  # review as many right as wrong solutions
    clip_high: float = 0.28,  # upper clip of the ratio
) -> Recipe:
    if reviews < 2 or pairs < 1:
        raise ConfigError(
            f"self_verify: reviews {reviews} and pairs {pairs}; expected at least 2 reviews of a solution, which are "
            "compared with each other, and at least 1 pair of solutions a problem",
            code="E_SETTING_RANGE",
        )
    judging = partial(judge_own, samples=run.group_size, reviews=reviews, pairs=pairs, balance=balance)
    phases = (
        Phase(name="generator", protocol=solve, objectives=("generator",)),
        Phase(name="verifier", protocol=judging, objectives=("verifier",), group_size=1),
        Phase(name="both", protocol=judging, objectives=("generator", "verifier"), group_size=1),
    )
    steps_of_phases = {  # how many steps of a round each of the three phases has
        "alternate": (*ratio, 0),
        "joint": (0, 0, 1),
        "generate": (1, 0, 0),
        "verify": (0, 1, 0),
    }[mode]
    played_phases = []
    played_steps = []
    learners: set[str] = set()
    for phase, steps in zip(phases, steps_of_phases, strict=True):
        is_warmup = phase.name == "verifier" and warmup > 0
        if steps or is_warmup:
            played_phases.append(phase)
            played_steps.append(steps)
            learners |= set(phase.objectives)

    def make_objective(role: str, reward: Signal) -> Objective:
        algorithm = GRPO(reward_weights={reward: 1.0}, loss=PPOClip(0.2, clip_high), kl=run.kl_penalty())
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
        schedule=alternate(*played_phases, ratio=tuple(played_steps), warmup={"verifier": warmup}),
        evaluate=partial(solve_then_verify, step_rewards="none"),
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles={"solver": "reference"},
    )
