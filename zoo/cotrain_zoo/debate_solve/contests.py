"""A solver is judged while a critic speaks against it: the game of "Debate Training Reduces Reward Hacking in RLAIF"
(Kenton et al. 2026).

::

    solver     writes a solution
    bob        names a step of it that is wrong
    judge      says CORRECT or INCORRECT of the solution; r is the share of CORRECT
    won        r for the solver, 1 − r for bob

The judge has a budget of one check: it looks at the step that bob names, or at a drawn one where nobody (readable)
speaks or bob calls no step wrong, and believes a solution whose step is right. Or it is a model that reads both and
votes (``jury``); one that judges each step is asked for its verdict on the step that was named. Its verdicts are
ordinary judgements of the solution: ``judge/mcc``, ``judge/balanced_accuracy`` and ``gap`` hold them against the truth.

    critic="opponent"     bob as above
    critic="consultant"   bob speaks for a side that is drawn: against, or for the solution by a step that is right; a
                          consultant wins what its side gets
    critic="none"         nobody speaks: RLAIF, where the same judge pays the solver alone

``won`` and ``paid`` as in ``debates.py``. A solution that cannot be read is paid ``unread`` and not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.notes import CORRECT, FINAL, STEP_OK
from cotrain.core.seeding import rng_of
from cotrain.core.signals import gives
from cotrain.core.types import ParseFailure, Task
from cotrain.formats.role_replies import step_verdicts
from cotrain.recipes.debate.debates import (
    PAID,
    RIGHT_SIDE,
    WON,
    Accusation,
    accusation_text,
    record_speech,
    reward_speech,
    word_limit_text,
)
from cotrain.rollout.event_loop import gather
from cotrain.rollout.protocols import examine
from cotrain.rollout.reviews import fields_for, show_verdict
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

Critic = Literal["opponent", "consultant", "none"]
ASKED = {False: "Wrong step", True: "Right step"}  # the step that a critic is to name; True: it speaks for the solution


def parse_review_as_accusation(text: str, fields: Mapping[str, Any]) -> Accusation | ParseFailure:
    """A critic who reviews every step accuses the first one that it calls INCORRECT; where it calls none so, nobody."""
    review = step_verdicts(text, int(fields["count"]))
    if isinstance(review, ParseFailure):
        return review
    first_wrong_step = next((i for i, right in enumerate(review.steps) if not right), None)
    return Accusation(step=first_wrong_step, argument=text.strip(), words=len(text.split()))


def check_step(fields: Mapping[str, Any], rng: Random) -> str:
    """The judge who checks one step: a program that is told whether it is right."""
    return f"<verdict>{'Yes' if fields['ok'] else 'No'}</verdict>"


@gives(*(signal.to(role) for signal in (WON, PAID) for role in ("solver", "bob")))
async def contest(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 1,
    critic: Critic = "opponent",
    jury: NotNegative = 0,
    words: NotNegative = 0,
    overlong_penalty: float = 1.0,
    unread: float = -1.0,
) -> None:
    """One contest. Prefix, then diverge: of the two plies one is drawn. Either the solver writes ``samples`` solutions,
    each criticised once, and is paid; or one solution is criticised ``samples`` times, and bob is paid.

    ``jury``: votes of a model that judges; 0 for the judge with one check, who needs an oracle of steps. ``words``: the
    limit of a speech, 0 for none.
    """
    # The drawn ply is bob's or the solver's.
    first_solution = await roles.solver(problem=task.prompt)
    pays_bob = critic != "none" and rng_of("ply", task.id, first_solution.id).random() < 0.5
    solutions = [first_solution]
    if not pays_bob and samples > 1:
        solutions += await roles.solver.many(samples - 1, problem=task.prompt)

    judged_solutions = []
    for solution in solutions:
        if await examine(task, roles, solution) is None:
            continue
        if not solution.parsed.ok:
            if not pays_bob:
                solution.reward(PAID, unread)
        elif jury or STEP_OK.of(solution):
            judged_solutions.append(solution)

    # A consultant speaks for a solution or against it, an opponent always against it.
    speaks_for = {}
    for solution in judged_solutions:
        is_for = critic == "consultant" and rng_of("side", task.id, solution.id).random() < 0.5
        speaks_for[solution.id] = is_for
    speeches: list[list[Turn | None]] = [[None] for _ in judged_solutions]
    if critic != "none":
        n = samples if pays_bob else 1
        calls = [
            roles.bob.many(n, **critic_fields(task, solution, speaks_for[solution.id], words))
            for solution in judged_solutions
        ]
        speeches = [list(turns) for turns in await gather(calls)]
        record_speeches(judged_solutions, speeches, speaks_for)

    pairs: list[Heard] = []
    for solution, turns in zip(judged_solutions, speeches, strict=True):
        pairs += [(solution, turn) for turn in turns]
    verdict_shares = await judge_verdicts(task, roles, pairs, speaks_for, jury)

    for solution, turns in zip(judged_solutions, speeches, strict=True):
        outcomes = [verdict_shares[(solution.id, None if turn is None else turn.id)] for turn in turns]
        mean_outcome = sum(outcomes) / len(outcomes)
        solution.reward(WON, mean_outcome)
        if not pays_bob:
            solution.reward(PAID, mean_outcome)
        for turn, outcome in zip(turns, outcomes, strict=True):
            if turn is None:
                continue
            share_won = outcome if speaks_for[solution.id] else 1.0 - outcome
            turn.reward(WON, share_won)
            if pays_bob:
                reward_speech(turn, share_won, words, overlong_penalty, unread)


def critic_fields(task: Task, solution: Turn, side: bool, words: int) -> dict[str, Any]:
    """The fields of a critic's prompt."""
    return {
        "problem": task.prompt,
        "solution": solution.tagged_text,
        "count": len(solution.parsed.steps),
        "asked": ASKED[side],
        "words": word_limit_text(words),
        "group": f"{solution.id}:{ASKED[side]}",
        "parent": solution,
    }


def record_speeches(
    solutions: Sequence[Turn], speeches: Sequence[Sequence[Turn | None]], sides: Mapping[str, bool]
) -> None:
    """Record what critics say, and whether it is true."""
    for solution, turns in zip(solutions, speeches, strict=True):
        for turn in turns:
            if turn is not None:
                turn.add_metadata(RIGHT_SIDE, sides[solution.id] == CORRECT.require(solution))
                record_speech(turn, None if sides[solution.id] else STEP_OK.of(solution))  # for it, nothing is accused


Heard = tuple[Turn, Turn | None]  # a solution, and a speech about it


async def judge_verdicts(
    task: Task, roles: Roles, pairs: Sequence[Heard], sides: Mapping[str, bool], jury: int
) -> dict[tuple[str, str | None], float]:
    """The share of the judge's verdicts that say CORRECT, of each pair; one that cannot be read is a half."""
    steps = [_checked_step(task, solution, turn) for solution, turn in pairs]
    requests = []
    for (solution, turn), step in zip(pairs, steps, strict=True):
        judged_text = solution.tagged_text
        if "nonce" in roles.judge.fields:  # a model that can be told in words
            judged_text += accusation_text(turn, f"It is said to be {'right' if sides[solution.id] else 'wrong'}")
        fields = fields_for(task, roles, roles.judge, solution, judged_text)
        if not jury:
            fields |= {"step": step + 1, "ok": STEP_OK.require(solution)[step]}
        requests.append(roles.judge.many(jury or 1, group=solution.id, parent=solution, **fields))
    vote_shares = {}
    for (solution, turn), step, judge_turns in zip(pairs, steps, await gather(requests), strict=True):
        named_step = step if _names_step(turn) else None
        votes = [_read_verdict(solution, vote, named_step) for vote in judge_turns]
        vote_shares[(solution.id, None if turn is None else turn.id)] = sum(votes) / len(votes)
    return vote_shares


def _checked_step(task: Task, solution: Turn, turn: Turn | None) -> int:
    """The step that is named, else a drawn one."""
    if turn is not None and _names_step(turn):
        return int(turn.parsed.step)
    return rng_of("check", task.id, solution.id, "" if turn is None else turn.id).randrange(len(solution.parsed.steps))


def _names_step(turn: Turn | None) -> bool:
    """Whether a speech names a step."""
    return turn is not None and turn.parsed.ok and turn.parsed.step is not None


def _read_verdict(solution: Turn, vote: Turn, named_step: int | None) -> float:
    """One verdict, shown with its truth. Where the judge speaks of each step and one was named, its verdict on that."""
    vote.add_metadata(CORRECT, CORRECT.require(solution))
    show_verdict(vote)
    if not vote.parsed.ok or vote.parsed.final is None:
        return 0.5
    final = bool(vote.parsed.steps[named_step] if vote.parsed.steps and named_step is not None else vote.parsed.final)
    vote.add_finding(FINAL, final)
    return float(final)
