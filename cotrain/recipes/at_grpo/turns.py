"""A solver, a verifier and a refiner who work on one problem in turn: the game of AT-GRPO and of Dr. MAS.

::

    turn 0   solver      a solution
    turn 1   verifier    its review; a verdict CORRECT ends the game
    turn 2   refiner     the solution revised after the review, and so on for ``rounds`` reviews

At every turn the role speaks ``samples`` times; the best of them goes on, the first of equals (the tree of AT-GRPO,
arXiv 2510.11062). With one sample this is a plain trajectory, and several episodes are several of them (Dr. MAS, arXiv
2602.08847). The team's score is 1 where its present solution is right. A turn earns ``alpha`` · team + ``local`` · own,
where own is the format of a solution, and of a review whether its verdict is the truth. With ``pay="end"`` the team's
score is that of the last solution, for every turn of a trajectory.

``group`` says whose turns are compared with each other: "turn" those of one problem, turn and agent, "agent" those of
one problem and agent, "global" those of one problem. Solver and refiner are one agent, the verifier is the other one.
"""

from __future__ import annotations

from typing import Literal, get_args

from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.notes import CORRECT, TEAM, Metadata
from cotrain.core.signals import Signal, gives
from cotrain.core.types import Task
from cotrain.rollout.protocols import examine
from cotrain.rollout.reviews import review
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

Grouping = Literal["turn", "agent", "global"]
GROUPINGS: tuple[str, ...] = get_args(Grouping)
REASONER, CHECKER = "reasoner", "checker"  # the two agents
EARNED = Signal("turn_reward", meaning="of a turn: the team's score and its own")
TURNS = Metadata[float]("turns", float, "turns until the team's game ended")


def check_turns(samples: int, rounds: int, pay: str) -> None:
    """Raise ConfigError for what ``take_turns`` does not take."""
    if rounds < 0 or samples < 1:
        raise ConfigError(
            f"turns: rounds is {rounds} and samples {samples}; expected 0 or more, and at least 1",
            code="E_SETTING_RANGE",
        )
    if pay == "end" and samples > 1:
        raise ConfigError(
            f"turns: pay='end' with {samples} samples a turn; expected 1, since a branch that is left has no end",
            code="E_PAY_END_WITH_SAMPLES",
        )


def group_key(group: str, problem: str, turn: int, agent: str) -> str:
    """Pool key of a turn. Raises UnknownName."""
    if group not in GROUPINGS:
        raise UnknownName("grouping of turns", group, GROUPINGS)
    return problem + {"turn": f"/{turn}/{agent}", "agent": f"/{agent}", "global": ""}[group]


@gives(EARNED.to("solver"), EARNED.to("verifier"), EARNED.to("refiner"))
async def take_turns(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 1,
    rounds: NotNegative = 1,
    pay: Literal["turn", "end"] = "turn",
    alpha: float = 1.0,
    local: float = 1.0,
    group: Grouping = "turn",
) -> None:
    """The game above. A solution that cannot be read is not reviewed and ends it. The first solution notes how the
    team's game went on: ``team`` and ``turns``. Turns that cannot be graded fail."""
    check_turns(samples, rounds, pay)
    owed: list[tuple[Turn, float]] = []  # of all turns of a trajectory that is paid at its end: what is its own
    place = roles.solver.whole_group  # a problem that is drawn twice is two
    asking = roles.solver.many(samples, group=group_key(group, place, 0, REASONER), problem=task.prompt)
    solutions = [turn for turn in await asking if await examine(task, roles, turn) is not None]
    first, solution, turn = (solutions[0] if solutions else None), None, 0
    while solutions:
        scored_solutions = [(s, float(CORRECT.require(s)), s.parsed.format_score) for s in solutions]
        solution, turn = _pay_or_owe(scored_solutions, owed, pay, alpha, local), turn + 1
        if turn > 2 * rounds or not solution.parsed.ok:
            break
        team = float(CORRECT.require(solution))
        reviews = await review(task, roles, solution, n=samples, group=group_key(group, place, turn, CHECKER))
        right = [float(r.parsed.ok and r.parsed.final == CORRECT.require(solution)) for r in reviews]
        best_review = _pay_or_owe(
            [(r, team, own) for r, own in zip(reviews, right, strict=True)], owed, pay, alpha, local
        )
        turn += 1
        if best_review.parsed.ok and best_review.parsed.final:
            break
        key = group_key(group, place, turn, REASONER)
        refine_fields = {"problem": task.prompt, "solution": solution.tagged_text, "review": best_review.text}
        revisions = await roles.refiner.many(samples, group=key, parent=solution, **refine_fields)
        solutions = [r for r in revisions if await examine(task, roles, r) is not None]
    if first is None or solution is None:
        return
    for owed_turn, own in owed:
        owed_turn.reward(EARNED, alpha * float(CORRECT.require(solution)) + local * own)
    first.add_metadata(TEAM, CORRECT.require(solution))
    first.add_metadata(TURNS, float(turn))


def _pay_or_owe(
    played: list[tuple[Turn, float, float]], owed: list[tuple[Turn, float]], pay: str, alpha: float, local: float
) -> Turn:
    """Pay (turn, team's score, own) now, or owe it for the end; returns the turn that goes on."""
    worth = [alpha * team + local * own for _, team, own in played]
    for (one, _, own), value in zip(played, worth, strict=True):
        if pay == "end":
            owed.append((one, own))
        else:
            one.reward(EARNED, value)
    return played[max(range(len(played)), key=lambda i: (worth[i], -i))][0]
