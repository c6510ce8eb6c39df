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

# The prompts of a proposer: terse, for word problems in words, and for problems of any other kind.
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

Shown = Literal["problem", "nothing"]  # what a proposer sees of the pool
Pay = Literal["hard", "learnable", "parabola", "uncertain", "target"]
RECENT = 64  # problems of the pool that a new one is compared with
LEARNABLE = Signal("learnable", meaning="what the proposer is paid for how hard its problem is")
VALID = Metadata[bool]("valid", bool, "is what was proposed a problem, by the program")
DEPTH = Metadata[float]("depth", float, "operations of the problem")
SOLVED = Metadata[float]("solved", float, "share of solvers that are right, by the label")
NEW = Metadata[bool]("new", bool, "is the problem not in the pool")


def proposer_pay(pay: str, p: float, target: float = 0.5) -> float:
    """Return the reward in [0, 1] of proposing a problem that is solved in the share p of the tries."""
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
    problem = behind_thoughts(text)
    if problem is None:
        return ParseFailure(reason=UNFINISHED)
    if "problem>" in problem:
        before_end, _, _ = problem.rpartition("</problem>")
        _, opening, problem = before_end.rpartition("<problem>")
        if not opening:
            return ParseFailure(reason="no problem")
    if not problem.strip():
        return ParseFailure(reason="no problem")
    return Query(text=problem.strip())


def hint_of(task: Task, pool: TaskPool, shown: str, reader: Reader) -> str:
    """Return the problem that a proposer is shown: one of the pool, where it is to see one. Where problems are not word
    problems, it sees at least the task's, to know what they are like."""
    if shown == "problem":
        other = pool.draw_problem(rng_of("reference", task.id, len(pool.items)))
        if other is not None:
            return other.problem
    if isinstance(reader, WordReader):
        return ""
    return task.prompt


def text_of(proposal: Turn) -> str:
    """The problem that was written, "" for none."""
    parsed = proposal.parsed
    if parsed is None:  # a word problem is all that was written
        return proposal.text.strip()
    if parsed.ok:
        return str(parsed.text)
    return ""


async def read_proposal(
    proposal: Turn, task: Task, reader: Reader, pool: TaskPool | None
) -> tuple[str, Task | ParseFailure | None]:
    """The text of the problem, "" where it has none, and what the reader makes of it. What a program knows becomes
    metadata. Raises AskFailed where the program fails."""
    text = text_of(proposal)
    problem: Task | ParseFailure | None
    if isinstance(proposal.parsed, ParseFailure):
        problem = proposal.parsed
    else:
        problem = await reader.read(text, task)

    if problem is not None and reader.works_out:
        proposal.add_metadata(VALID, isinstance(problem, Task))
    if isinstance(problem, Task):
        if problem.difficulty:
            proposal.add_metadata(DEPTH, problem.difficulty)
        if pool is not None:
            proposal.add_metadata(NEW, reader.signature_of(text) not in pool.signatures)
    return text, problem


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
    """One proposal and ``samples`` solutions, paid as the variant says.

    ``gate``: pay only for what ``reader`` reads. ``reuse``: where the proposal is not valid, the solvers get a problem
    of the pool that no larger share than this solved.
    """
    proposal = await roles.proposer(hint=hint_of(task, pool, shown, reader), problem=task.prompt)
    is_refused = True
    try:
        text, problem = await read_proposal(proposal, task, reader, pool)
        is_held_out = reader.is_held_out(text)
        if isinstance(problem, ParseFailure):
            proposal.add_finding(FAILURE, problem.reason)
        elif is_held_out:
            proposal.add_finding(FAILURE, "held out")
        fails_gate = gate and not isinstance(problem, Task)
        is_refused = fails_gate or is_held_out or not text
        if is_refused:
            proposal.reward(LEARNABLE, invalid)
    except AskFailed as error:
        proposal.add_finding(FAILURE, str(error))
        proposal.fail(str(error))

    if is_refused:
        old = pool.draw_problem(rng_of("replay", proposal.id, task.id), below=reuse)
        if old is not None:
            old_task = reader.recall(old.problem, old.answer, task)
            share = await solve_proposal(roles, old.problem, old_task, proposal, samples, labels, band)
            if share is not None:
                proposal.add_finding(REPLAYED, (old.signature, share))
        return

    known_task = problem if isinstance(problem, Task) else None
    share = await solve_proposal(roles, text, known_task, proposal, samples, labels, band)
    if share is None:
        proposal.fail("ungraded")
        return
    answer = str(known_task.gold) if known_task else ""
    proposal.add_metadata(SOLVED, share)
    proposal.add_finding(MINTED, (text, answer, reader.signature_of(text), share))

    payment = proposer_pay(pay, share, target)
    if repeats:
        payment -= repeats * share_alike(text, pool, reader)
    proposal.reward(LEARNABLE, payment)


def share_alike(text: str, pool: TaskPool, reader: Reader) -> float:
    """The share of the pool's latest problems that have the shape of this one."""
    shape = reader.shape_of(text)
    latest = pool.items[-RECENT:]
    n_alike = sum(reader.shape_of(item.problem) == shape for item in latest)
    return n_alike / max(1, len(latest))


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

    Where that share is outside of ``band``, nobody is paid. Where a program knows the truth, it is metadata.
    """
    turns = await answer_proposal(roles.solver, samples, text, known, roles, group=proposal.id)
    if not turns:
        return None

    elected = None
    if labels == "vote":
        elected = elected_turn(turns)
        right_by_label = [agrees_with(turn, elected) for turn in turns]
    else:
        right_by_label = [bool(CORRECT.of(turn)) for turn in turns]
    share = sum(right_by_label) / len(right_by_label)

    low, high = band
    for turn, is_right_by_label in zip(turns, right_by_label, strict=True):
        if low <= share <= high:
            turn.reward(OUTCOME, float(is_right_by_label))
        if known is None:
            continue
        if labels == "program":
            turn.add_metadata(LABEL_RIGHT, True)
        elif elected is not None:
            turn.add_metadata(LABEL_RIGHT, is_right(elected))
    return share


async def answer_proposal(
    solver: RoleHandle, samples: int, text: str, known: Task | None, roles: Roles, group: str | None
) -> list[Turn]:
    """Solutions of a proposed problem, with the truth as metadata where a program knows it; those whose grading failed
    are left out."""
    turns = await solver.many(samples, group=group, problem=text)
    if known is not None:
        return [turn for turn in turns if await examine(known, roles, turn) is not None]
    for turn in turns:
        if turn.parsed.ok:
            turn.add_finding(ANSWER, turn.parsed.answer)
        else:
            turn.add_finding(FAILURE, turn.parsed.reason)
    return turns


def write_problem(fields: Mapping[str, Any], rng: Random) -> str:
    return str(fields["problem"])


def of_length(source: WordProblems, operations: int) -> Callable[[Mapping[str, Any], Random], str]:
    """A program that writes training problems like those of ``source``, all with so many operations."""
    one_length = replace(source, operations=(operations, operations))

    def write_one_length(fields: Mapping[str, Any], rng: Random) -> str:
        return one_length.get("train", rng.randrange(2**31)).prompt

    return write_one_length
