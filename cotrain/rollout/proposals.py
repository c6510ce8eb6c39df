"""A proposer writes problems, and solvers solve them. Solvers are rewarded for right answers, and the proposer for how
hard its problem was: by p, the share of solutions that are right by the label.

The recipe ``proposer_solver`` lists the methods with their rewards. The gate is a program that reads a problem and
solves it (``readers.py``): the package's own for word problems, a user's for any others. A text that a held-out problem
could have is never learned from, with a gate or without. Neither is one on which the program fails. The turn of such a
proposal is masked, with the reason.
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
from cotrain.rollout.votes import agrees_with, elected_turn, label_is_right

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

Example = Literal["problem", "nothing"]  # what a proposer sees of the pool
Pay = Literal["hard", "learnable", "parabola", "uncertain", "target"]  # ``proposer_pay`` has their equations
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
    """A role that writes a problem. Its field ``hint`` is another problem, or nothing.

    The whole text of the role is a word problem. Problems of other kinds stand in tags.
    """
    is_short = is_terse(model)
    sampling = Sampling(max_tokens=192 if is_short else 512)
    if isinstance(reader, WordReader):
        return Role(policy=policy, prompt=PROPOSE if is_short else PROPOSE_FULL, sampling=sampling)
    return Role(policy=policy, prompt=PROPOSE_LIKE, parse=parse_proposal, sampling=sampling)


def parse_proposal(text: str, fields: Mapping[str, Any]) -> Query | ParseFailure:
    """The last ``<problem>…</problem>`` behind any thought; the whole text behind the thought where it has no such tag.

    Reasons of failure: "too long", "unclosed think", "no problem".
    """
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


def hint_of(task: Task, pool: TaskPool, example: str, reader: Reader) -> str:
    """Return the problem in a proposer's prompt: one of the pool, if ``example`` is "problem" and the pool has one.

    Else it is "" for word problems. For any others it is the task's, so that the proposer knows what they are like.
    """
    if example == "problem":
        pool_item = pool.draw_problem(rng_of("reference", task.id, len(pool.items)))
        if pool_item is not None:
            return pool_item.problem
    if isinstance(reader, WordReader):
        return ""
    return task.prompt


def text_of(proposal: Turn) -> str:
    """The text of a proposal's problem, "" for none."""
    query = proposal.parsed
    if query is None:  # the role has no parser: its whole text is a word problem
        return proposal.text.strip()
    if query.ok:
        return str(query.text)
    return ""


async def read_proposal(
    proposal: Turn, task: Task, reader: Reader, pool: TaskPool | None
) -> tuple[str, Task | ParseFailure | None]:
    """The text of the problem, "" for none, and the task that the reader makes of it; or the reason why it makes none,
    or None where no program reads such problems.

    What a program finds out becomes metadata. Raises AskFailed where the program fails.
    """
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
    example: Example,
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
    """One proposal and ``samples`` solutions, with their rewards.

    Args:
        pool: problems that were proposed before.
        samples: solutions of a problem.
        example: what the proposer sees of the pool.
        labels: what an answer is compared with: the answer of a program, or the majority of the answers.
        pay: the reward of the proposer, as a function of p.
        target: the p of the highest reward for ``pay="target"``.
        gate: reward only problems that ``reader`` reads.
        band: solvers are rewarded only where p is in [low, high].
        repeats: reward that is taken off a problem, times the share of the pool's latest ones that are like it.
        invalid: reward of a proposal that is refused.
        reuse: instead of a refused proposal the solvers get a problem of the pool whose p was at most this.
        reader: reads and solves problems.
    """
    proposal = await roles.proposer(hint=hint_of(task, pool, example, reader), problem=task.prompt)
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
        pool_item = pool.draw_problem(rng_of("replay", proposal.id, task.id), below=reuse)
        if pool_item is not None:
            pool_task = reader.recall(pool_item.problem, pool_item.answer, task)
            p = await solve_proposal(roles, pool_item.problem, pool_task, proposal, samples, labels, band)
            if p is not None:
                proposal.add_finding(REPLAYED, (pool_item.signature, p))
        return

    solved_task = problem if isinstance(problem, Task) else None  # with the program's answer
    p = await solve_proposal(roles, text, solved_task, proposal, samples, labels, band)
    if p is None:
        proposal.fail("ungraded")
        return
    answer = str(solved_task.gold) if solved_task else ""
    proposal.add_metadata(SOLVED, p)
    proposal.add_finding(MINTED, (text, answer, reader.signature_of(text), p))

    reward = proposer_pay(pay, p, target)
    if repeats:
        reward -= repeats * share_alike(text, pool, reader)
    proposal.reward(LEARNABLE, reward)


def share_alike(text: str, pool: TaskPool, reader: Reader) -> float:
    """The share of the pool's latest problems that have the shape of this one."""
    shape = reader.shape_of(text)
    latest = pool.items[-RECENT:]
    n_alike = sum(reader.shape_of(item.problem) == shape for item in latest)
    return n_alike / max(1, len(latest))


async def solve_proposal(
    roles: Roles,
    text: str,
    solved_task: Task | None,
    proposal: Turn,
    samples: int,
    labels: str,
    band: tuple[float, float],
) -> float | None:
    """Solve the problem ``text`` ``samples`` times. Returns p, the share of answers that are right by the label; None
    where no answer could be graded.

    ``solved_task``: the problem with the answer of a program, which becomes metadata; None where no program solves it.
    Where p is outside of ``band``, no solver is rewarded.
    """
    turns = await answer_proposal(roles.solver, samples, text, solved_task, roles, group=proposal.id)
    if not turns:
        return None

    label = None
    if labels == "vote":
        label = elected_turn(turns)
        grades = [agrees_with(turn, label) for turn in turns]
    else:
        grades = [bool(CORRECT.of(turn)) for turn in turns]
    p = sum(grades) / len(grades)

    low, high = band
    for turn, grade in zip(turns, grades, strict=True):
        if low <= p <= high:
            turn.reward(OUTCOME, float(grade))
        if solved_task is None:
            continue
        if labels == "program":
            turn.add_metadata(LABEL_RIGHT, True)
        elif label is not None:
            turn.add_metadata(LABEL_RIGHT, label_is_right(label))
    return p


async def answer_proposal(
    solver: RoleHandle, samples: int, text: str, solved_task: Task | None, roles: Roles, group: str | None
) -> list[Turn]:
    """Solutions of a proposed problem, without those whose grading failed. ``solved_task``: the problem with the answer
    of a program, by which they are graded; None where no program solves it."""
    turns = await solver.many(samples, group=group, problem=text)
    if solved_task is not None:
        return [turn for turn in turns if await examine(solved_task, roles, turn) is not None]
    for turn in turns:
        if turn.parsed.ok:
            turn.add_finding(ANSWER, turn.parsed.answer)
        else:
            turn.add_finding(FAILURE, turn.parsed.reason)
    return turns


def write_problem(fields: Mapping[str, Any], rng: Random) -> str:
    """A program that writes the problem in its prompt."""
    return str(fields["problem"])


def of_length(source: WordProblems, operations: int) -> Callable[[Mapping[str, Any], Random], str]:
    """A program that writes training problems like those of ``source``, all with so many operations."""
    one_length = replace(source, operations=(operations, operations))

    def write_one_length(fields: Mapping[str, Any], rng: Random) -> str:
        return one_length.get("train", rng.randrange(2**31)).prompt

    return write_one_length
