"""A proposer writes problems, solvers solve them, and each is paid by what the others make of it.

``proposer_solver`` says which methods pay how. p is the share of solvers that are right by the label. The gate is a
program that reads the problem and works it out (``readers.py``): the package's own of word problems, a user's of any
others. A text that held-out problems could have is never learned from, with a gate or without; neither is one that the
program fails on. The turn of such a proposal is masked, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Literal

from cotrain.core.arguments import Positive
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, LABEL_RIGHT, Metadata
from cotrain.core.seeding import rng_of
from cotrain.core.signals import OUTCOME, Signal, gives
from cotrain.core.types import ParseFailure, Sampling, Task
from cotrain.data.word_problems.source import WordProblems
from cotrain.formats.role_replies import Query
from cotrain.formats.solutions import MAX_CHARS, UNFINISHED, behind_thoughts
from cotrain.rollout.common_roles import is_terse
from cotrain.rollout.protocols import examine
from cotrain.rollout.readers import WORDS, Reader, WordReader
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain.rollout.stores import MINTED, REPLAYED, TaskPool
from cotrain.rollout.tools.search import AskFailed
from cotrain.rollout.votes import agrees_with, elected_turn, is_right

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
PROPOSE_LIKE = """Write one new problem of the same kind as the one below, about something else. It must have one
answer, which follows from its own text. Do not solve it. Write the problem alone, as <problem> ... </problem>

{hint}"""

Shown = Literal["problem", "nothing"]  # of the pool, to a proposer
Pay = Literal["hard", "learnable", "parabola", "uncertain", "target"]
RECENT = 64  # problems of the pool that a new one is compared with
LEARNABLE = Signal("learnable", meaning="what the proposer is paid for how hard its problem is")
VALID = Metadata[bool]("valid", bool, "is what was proposed a problem, by the program")
DEPTH = Metadata[float]("depth", float, "operations of the problem")
SOLVED = Metadata[float]("solved", float, "share of solvers that are right, by the label")
NEW = Metadata[bool]("new", bool, "is the problem not in the pool")


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


def proposer_role(policy: str, model: str, reader: Reader) -> Role:
    """Writes a problem: field ``hint``, another problem or nothing. A word problem is all that it writes, any other one
    stands in tags."""
    short = is_terse(model)
    sampling = Sampling(max_tokens=192 if short else 512)
    if isinstance(reader, WordReader):
        return Role(policy=policy, prompt=PROPOSE if short else PROPOSE_FULL, sampling=sampling)
    return Role(policy=policy, prompt=PROPOSE_LIKE, parse=parse_proposal, sampling=sampling)


def parse_proposal(text: str, fields: Mapping[str, Any]) -> Query | ParseFailure:
    """The last ``<problem>…</problem>`` behind any thought; all that is said there where it has no such tag. Reasons of
    failure: "too long", "unclosed think", "no problem"."""
    if len(text) > MAX_CHARS:
        return ParseFailure(reason="too long")
    if (inside := behind_thoughts(text)) is None:
        return ParseFailure(reason=UNFINISHED)
    if "problem>" in inside:
        _, opened, inside = inside.rpartition("</problem>")[0].rpartition("<problem>")
        inside = inside if opened else ""
    return Query(text=inside.strip()) if inside.strip() else ParseFailure(reason="no problem")


def hint_of(task: Task, pool: TaskPool, shown: str, reader: Reader) -> str:
    """What a proposer is shown: a problem of the pool, where it is to see one. Where problems are not word problems, it
    sees at least the task's, to know what they are like."""
    other = pool.draw_problem(rng_of("reference", task.id, len(pool.items))) if shown == "problem" else None
    return other.problem if other else "" if isinstance(reader, WordReader) else task.prompt


def text_of(proposal: Turn) -> str:
    """The problem that was written, "" for none."""
    parsed = proposal.parsed
    return proposal.text.strip() if parsed is None else str(parsed.text) if parsed.ok else ""


async def read_proposal(
    proposal: Turn, task: Task, reader: Reader, pool: TaskPool | None
) -> tuple[str, Task | ParseFailure | None]:
    """The text of the problem, "" where it has none, and what the reader says of it, with notes of what a program
    knows. Raises AskFailed where the program fails."""
    parsed, text = proposal.parsed, text_of(proposal)
    found = parsed if isinstance(parsed, ParseFailure) else await reader.read(text, task)
    if found is not None and reader.works_out:
        proposal.add_metadata(VALID, isinstance(found, Task))
    if isinstance(found, Task):
        if found.difficulty:
            proposal.add_metadata(DEPTH, found.difficulty)
        if pool is not None:
            proposal.add_metadata(NEW, reader.signature_of(text) not in pool.signatures)
    return text, found


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
    reader: Reader = WORDS,
) -> None:
    """One proposal and ``samples`` solutions, paid as the variant says. ``gate``: pay only for what ``reader`` reads.
    ``reuse``: of the pool's problems, those that no larger share solved are given to the solvers where the proposal is
    not valid."""
    proposal = await roles.proposer(hint=hint_of(task, pool, shown, reader), problem=task.prompt)
    refused = True
    try:
        text, found = await read_proposal(proposal, task, reader, pool)
        held_out = reader.is_held_out(text)
        if isinstance(found, ParseFailure) or held_out:
            proposal.add_finding(FAILURE, found.reason if isinstance(found, ParseFailure) else "held out")
        refused = (gate and not isinstance(found, Task)) or held_out or not text
        if refused:
            proposal.reward(LEARNABLE, invalid)
    except AskFailed as error:
        proposal.add_finding(FAILURE, str(error))
        proposal.fail(str(error))
    if refused:
        if (old := pool.draw_problem(rng_of("replay", proposal.id, task.id), below=reuse)) is not None:
            known = reader.recall(old.problem, old.answer, task)
            share = await solve_proposal(roles, old.problem, known, proposal, samples, labels, band)
            if share is not None:
                proposal.add_finding(REPLAYED, (old.signature, share))
        return
    known = found if isinstance(found, Task) else None
    share = await solve_proposal(roles, text, known, proposal, samples, labels, band)
    if share is None:
        proposal.fail("ungraded")
        return
    proposal.add_metadata(SOLVED, share)
    proposal.add_finding(MINTED, (text, str(known.gold) if known else "", reader.signature_of(text), share))
    shape = reader.shape_of(text)
    alike = [reader.shape_of(item.problem) == shape for item in pool.items[-RECENT:]] if repeats else []
    proposal.reward(LEARNABLE, proposer_pay(pay, share, target) - repeats * sum(alike) / max(1, len(alike)))


async def solve_proposal(
    roles: Roles,
    text: str,
    known: Task | None,
    proposal: Turn,
    samples: int,
    labels: str,
    band: tuple[float, float],
) -> float | None:
    """Solve it ``samples`` times; returns the share that is right by the label, None where no answer could be graded.
    Outside of ``band`` nobody is paid. The truth is noted where a program knows it."""
    turns = await answer_proposal(roles.solver, samples, text, known, roles, group=proposal.id)
    if not turns:
        return None
    elected = elected_turn(turns) if labels == "vote" else None
    right_by_label = [agrees_with(t, elected) if labels == "vote" else bool(CORRECT.of(t)) for t in turns]
    share = sum(right_by_label) / len(right_by_label)
    for turn, right in zip(turns, right_by_label, strict=True):
        if band[0] <= share <= band[1]:
            turn.reward(OUTCOME, float(right))
        if known is not None and (elected is not None or labels == "program"):
            turn.add_metadata(LABEL_RIGHT, elected is None or is_right(elected))
    return share


async def answer_proposal(
    solver: RoleHandle, samples: int, text: str, known: Task | None, roles: Roles, group: str | None
) -> list[Turn]:
    """Solutions of a proposed problem, with the truth noted where a program knows it; those whose grading failed are
    left out."""
    turns = await solver.many(samples, group=group, problem=text)
    if known is not None:
        return [turn for turn in turns if await examine(known, roles, turn) is not None]
    for turn in turns:
        turn.add_finding(*((ANSWER, turn.parsed.answer) if turn.parsed.ok else (FAILURE, turn.parsed.reason)))
    return turns


def write_problem(fields: Mapping[str, Any], rng: Random) -> str:
    return str(fields["problem"])


def of_length(source: WordProblems, operations: int) -> Callable[[Mapping[str, Any], Random], str]:
    """A program that writes training problems like those of ``source``, all with so many operations."""
    one_length = replace(source, operations=(operations, operations))

    def write_one_length(fields: Mapping[str, Any], rng: Random) -> str:
        return one_length.get("train", rng.randrange(2**31)).prompt

    return write_one_length
