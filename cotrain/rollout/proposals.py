"""A proposer writes word problems, solvers solve them, and each is paid by what the others make of it.

``proposer_solver`` says which methods pay how. p is the share of solvers that are right by the label. The gate is a
program that reads the problem and works it out (``tasks/words/reader.py``); it fails closed, with a reason that is
counted. A text that held-out problems could have (``is_held_out``) is never learned from, with a gate or without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any, Literal

from cotrain.core.address import rng_of
from cotrain.core.arguments import Positive
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, LABEL_RIGHT, Note
from cotrain.core.signals import OUTCOME, Signal, gives
from cotrain.core.types import ParseFailure, Task
from cotrain.rollout.executor import Roles
from cotrain.rollout.protocols import examine, plurality_answer
from cotrain.rollout.role import Turn
from cotrain.rollout.stores import MINTED, REPLAYED, TaskPool
from cotrain.tasks.words.problem import Problem
from cotrain.tasks.words.reader import operation_string, problem_signature, read_problem, task_of
from cotrain.tasks.words.source import BUCKETS, WordProblems, text_bucket

# Of proposers.
PROPOSE = "{hint}\nWrite a problem:"
PROPOSE_FULL = """Write one word problem about counts of things, in sentences of exactly these forms and no other words:

There are 12 apples.
There are 4 more pears than apples.
There are 3 fewer plums than pears.
There are 2 times as many nuts as plums.
There are as many eggs as nuts and pears together.
There are as many cakes as eggs minus nuts.
How many cakes are there?

Begin with counts that are given, end with the question, and keep all counts between 1 and 99. Where an answer is asked
for, the problem must have it; where another problem is shown, write a different one.

{hint}"""

Shown = Literal["problem", "nothing"]  # of the pool, to a proposer
Pay = Literal["hard", "learnable", "parabola", "uncertain", "target"]
RECENT = 64  # problems of the pool that a new one is compared with
LEARNABLE = Signal("learnable", meaning="what the proposer is paid for how hard its problem is")
VALID = Note[bool]("valid", bool, "is what was proposed a problem, by the program")
DEPTH = Note[float]("depth", float, "operations of the problem")
SOLVED = Note[float]("solved", float, "share of solvers that are right, by the label")
NEW = Note[bool]("new", bool, "is the problem not in the pool")


def proposer_pay(pay: str, p: float, target: float = 0.5) -> float:
    """What a problem is worth that the share p solves, in [0, 1]."""
    if pay == "hard":
        return 1.0 - p
    if pay == "learnable":
        return 1.0 - p if 0.0 < p < 1.0 else 0.0
    if pay == "parabola":
        return 4.0 * p * (1.0 - p)
    if pay == "uncertain":
        return min(p, 1.0 - p)
    return 1.0 - abs(p - target) / max(target, 1.0 - target)


@lru_cache(maxsize=4096)
def shape_of(text: str) -> str:
    read = read_problem(text)
    return text if isinstance(read, ParseFailure) else operation_string(read)


def is_held_out(text: str) -> bool:
    """Whether a problem may be one of those that runs are tested on."""
    return text_bucket(text) not in BUCKETS["train"]


def hint_of(task: Task, pool: TaskPool, shown: str) -> str:
    other = pool.draw_problem(rng_of("reference", task.id, len(pool.items))) if shown == "problem" else None
    return "" if other is None else other.problem


@gives(LEARNABLE.to("proposer"), OUTCOME.to("solver"))
async def propose_and_solve(
    task: Task,
    roles: Roles,
    *,
    pool: TaskPool,
    samples: Positive,
    shown: Shown,
    labels: Literal["program", "vote"],
    pay: Pay,
    target: float,
    gate: bool,
    band: tuple[float, float],
    repeats: float,
    invalid: float,
    reuse: float,
) -> None:
    """One proposal and ``samples`` solutions, paid as the variant says. ``reuse``: of the pool's problems, those that
    no larger share solved are given to the solvers where the proposal is not valid."""
    proposal = await roles.proposer(hint=hint_of(task, pool, shown), problem=task.prompt)
    text = proposal.text.strip()
    parsed = read_problem(text)
    problem = None if isinstance(parsed, ParseFailure) else parsed
    proposal.note(VALID, problem is not None)
    if problem is not None:
        proposal.note(DEPTH, float(len(problem.needed)))
        proposal.note(NEW, problem_signature(problem) not in pool.signatures)
    held_out = is_held_out(text)
    if isinstance(parsed, ParseFailure) or held_out:
        proposal.show(FAILURE, parsed.reason if isinstance(parsed, ParseFailure) else "held out")
    if (problem is None and gate) or held_out or not text:
        proposal.reward(LEARNABLE, invalid)
        if (old := pool.draw_problem(rng_of("replay", proposal.id, task.id), below=reuse)) is not None:
            old_parsed = read_problem(old.problem)
            old_problem = None if isinstance(old_parsed, ParseFailure) else old_parsed
            share = await solve_proposal(task, roles, old.problem, old_problem, proposal, samples, labels, band)
            proposal.show(REPLAYED, (old.signature, share))
        return
    share = await solve_proposal(task, roles, text, problem, proposal, samples, labels, band)
    name = text if problem is None else problem_signature(problem)
    proposal.note(SOLVED, share)
    proposal.show(MINTED, (text, "" if problem is None else str(problem.answer), name, share))
    alike = [shape_of(item.problem) == shape_of(text) for item in pool.items[-RECENT:]] if repeats else []
    proposal.reward(LEARNABLE, proposer_pay(pay, share, target) - repeats * sum(alike) / max(1, len(alike)))


async def solve_proposal(
    task: Task,
    roles: Roles,
    text: str,
    problem: Problem | None,
    proposal: Turn,
    samples: int,
    labels: str,
    band: tuple[float, float],
) -> float:
    """Solve it ``samples`` times; returns the share that is right by the label. Outside of ``band`` nobody is paid. The
    truth is noted where the program knows it."""
    turns = await roles.solver.many(samples, group=proposal.id, problem=text)
    if problem is not None:
        minted = task_of(problem, f"{task.id}/proposed")
        turns = [t for t in turns if await examine(minted, roles, t) is not None]
    else:
        for turn in turns:
            turn.show(*((ANSWER, turn.parsed.answer) if turn.parsed.ok else (FAILURE, turn.parsed.reason)))
    label = plurality_answer(turns) if labels == "vote" else None if problem is None else str(problem.answer)
    right_by_label = [label is not None and t.parsed.ok and t.parsed.answer == label for t in turns]
    if labels == "program":
        right_by_label = [bool(CORRECT.of(t)) for t in turns]
    share = sum(right_by_label) / max(1, len(right_by_label))
    for turn, right in zip(turns, right_by_label, strict=True):
        if band[0] <= share <= band[1]:
            turn.reward(OUTCOME, float(right))
        if problem is not None and label is not None:
            turn.note(LABEL_RIGHT, label == str(problem.answer))
    return share


def write_problem(fields: Mapping[str, Any], rng: Random) -> str:
    return str(fields["problem"])


def of_length(source: WordProblems, operations: int) -> Callable[[Mapping[str, Any], Random], str]:
    """A program that writes training problems like those of ``source``, all with so many operations."""
    drawn = replace(source, operations=(operations, operations))

    def write_one_length(fields: Mapping[str, Any], rng: Random) -> str:
        return drawn.get("train", rng.randrange(2**31)).prompt

    return write_one_length
