r"""Programs inside of a review: the verifier writes one, it is run, and the verifier goes on with the output before it.

::

    asked    … prompt │ <analyze>…</analyze><verify>print(6 * 7)</verify>   and what it imagines behind that: cut off
    asked    … prompt, the same, <ran id=9f3c01ab>42</ran id=9f3c01ab> │ <output>\boxed{Yes}</output><analyze>…

GenPRM (Zhao et al. 2025, arXiv 2504.00891). There a stop string ends the turn; here sampling knows none, so a turn is cut behind
its first closed ``<verify>`` (``Turn.cut``): the tokens that are kept are distributed in the same way, and the rest costs time and is
neither read nor learned. Each part of a review is a turn of its own that holds only what the verifier sampled, and what is run,
shown and read comes from no other place. All parts have to be rewarded for all of the review to be learned: ``whole``.

What a program prints is material and no verdict. It stands between markers with the nonce of the solution, with judges' tags
broken (``text/nonce.py``), it is cut (``script_worker.MAX_OUTPUT``), it is encoded without control tokens, and the verdicts are read from
the verifier's own words alone. A program that fails is a value with a reason, which the verifier is told and the metrics count.

All reviews of an episode take their rounds together: so the calls have their addresses, and with them their seeds, in an order that
does not depend on which program was faster. They run in cells (``tasks/isolation.py``).

Left out: names that one program leaves to the next (the released code keeps them), its three programs a step, each step in a request
of its own, and the verdict without a program that it forces where the tokens run out. ``most`` programs of a review are run, and later
ones are read past; the format has room for one a step.
"""

from __future__ import annotations

import asyncio
import builtins
import textwrap
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, get_args

from cotrain.core.errors import TooLong
from cotrain.core.types import ParseFailure, Span
from cotrain.functional.aggregate import aggregate
from cotrain.play.executor import RoleHandle
from cotrain.play.idle_loop import busy, together
from cotrain.play.role import Turn
from cotrain.tasks.grading import WORKERS, GradingPool
from cotrain.tasks.isolation import MEMORY_BYTES, chosen
from cotrain.tasks.programs import MAX_PROGRAM, program_of
from cotrain.text.nonce import wrap
from cotrain.text.verdicts import Refused, Verdict, first_program, read_genprm

Tool = Literal["none", "python"]
TOOLS: tuple[str, ...] = get_args(Tool)
RUNNER = "cotrain.tasks.script_worker:load_scripts"
DEADLINE_S = 5.0  # CPU time of a program, as in the released code (there by the clock)
MOST = 8  # programs of one review that are run
_CLOSING = "</verify>"
_REASONS = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
) | {"error", "no output", "program died", "program too long", "syntax error", "timeout"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What became of a program."""

    output: str = (
        ""  # what it printed, at most ``script_worker.MAX_OUTPUT`` characters and "(cut)"; of a failed one, before that
    )
    reason: str | None = None  # why there is no good output, of a fixed set; it is a metric's key

    @property
    def page(self) -> str:
        """What the verifier is shown."""
        return self.output if self.reason is None else f"{self.output}\n({self.reason})".strip()


async def run(program: str) -> Ran:
    """Run a program, with or without a fence of ``` around it, in a process with limits; the engine waits for it.

    Reasons: "timeout" (``DEADLINE_S`` of CPU time, or four times as long by the clock), "program died" (it ended its process, or said
    what is not readable), "program too long", "syntax error", "no output", a built-in exception or "error".
    """
    async with busy():
        return await asyncio.get_running_loop().run_in_executor(None, _run, program)


def _run(program: str) -> Ran:
    source = textwrap.dedent((program_of(program) or program).strip("\n"))
    if len(source) > MAX_PROGRAM:
        return Ran(reason="program too long")
    reason, _, printed = (_pool().ask("", source).reason or "").replace("grader died", "program died").partition("\n")
    output = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in printed).strip()
    if reason:
        return Ran(output=output, reason=reason if reason in _REASONS else "error")
    return Ran(output=output, reason=None if output else "no output")


@cache
def _pool() -> GradingPool:
    """One pool for all episodes; its processes start when first needed and end with this one."""
    return GradingPool(workers=WORKERS, deadline_s=DEADLINE_S, judging=(RUNNER,), memory=MEMORY_BYTES, cell=chosen())


@dataclass(slots=True, kw_only=True)
class _Chain:
    """One review on its way."""

    fields: Mapping[str, Any]  # what the role was asked with
    turns: list[Turn]
    said: list[str] = field(default_factory=list)  # the verifier's words of each turn that was cut
    begin: str = ""  # these, and the outputs behind them


async def go_on(
    judge: RoleHandle, reviews: Sequence[Turn], fields: Sequence[Mapping[str, Any]], *, most: int = MOST
) -> list[Turn]:
    """Reviews in GenPRM's format, continued until none has a program left to run, or ``most`` of it have been run.

    Args:
        judge: the role that wrote them, such as ``roles.verifier``; made by ``judges.genprm`` with ``runs=True``.
        reviews: [R] first turns, fresh from the role: no reward has been given.
        fields: [R] what each was asked with, ``count`` and ``nonce`` among it.
        most: rounds.

    Returns [R] the last turn of each review. Its ``parsed`` is that of the whole review, with the probability of all verdicts as
    ``score`` and no spans; the turns ``before`` it are parts whose parent it is, and each shows as ``program`` what became of its own.
    A review whose prompt outgrows the context cannot be read: "no room".
    """
    chains = [_Chain(fields=asked, turns=[turn]) for turn, asked in zip(reviews, fields, strict=True)]
    going = chains
    for _ in range(most):
        found = [(chain, program) for chain in going if (program := first_program(chain.turns[-1].text)) is not None]
        if not found:
            break
        results = await together([run(program.text) for _, program in found])
        for (chain, program), ran in zip(found, results, strict=True):
            _take(chain, program, ran)
        going = [chain for chain, _ in found]
        asked = [
            judge(group=c.turns[0].group, parent=c.turns[0].parent, begin=c.begin, **c.fields) for c in going
        ]  # in this order they get their addresses
        answers = await together([_unless_too_long(answer) for answer in asked])
        for chain, turn in zip(going, answers, strict=True):
            if turn is None:
                chain.turns[-1].parsed = ParseFailure(reason="no room")
            else:
                chain.turns.append(turn)
        going = [chain for chain, turn in zip(going, answers, strict=True) if turn is not None]
    return [_joined(chain) for chain in chains]


def whole(review: Turn) -> tuple[Turn, ...]:
    """All turns of a review, the last one included: what is to be learned together gets its rewards together."""
    return (*review.before, review)


def _take(chain: _Chain, program: Span, ran: Ran) -> None:
    """Cut the last turn behind its program, and put down what the program printed."""
    turn, end = chain.turns[-1], program.end + len(_CLOSING)
    chain.said.append(turn.text[:end])
    chain.begin += f"{turn.text[:end]}\n{wrap(ran.page, chain.fields['nonce'], 'ran')}\n"
    turn.cut(end)
    turn.show(program=ran.reason or "printed")


async def _unless_too_long(answer: Awaitable[Turn]) -> Turn | None:
    try:
        return await answer
    except TooLong:
        return None


def _joined(chain: _Chain) -> Turn:
    *before, last = chain.turns
    for part in before:
        part.parent = last
    last.before = tuple(before)
    if len(chain.said) == len(before) > 0:  # else it had no program, or no room
        last.parsed = _read(chain)
    return last


def _read(chain: _Chain) -> Verdict | Refused | ParseFailure:
    """The review as the verifier wrote it, outputs left out; ``score`` as ``judges.confidence`` has it for one turn."""
    pieces = [*chain.said, chain.turns[-1].text]
    read = read_genprm("".join(pieces), int(chain.fields["count"]))
    if not isinstance(read, Verdict):
        return read
    believed: list[float] = []
    start, at = 0, iter(zip(chain.turns, pieces, strict=True))
    turn, piece = next(at)
    for word, right in zip(read.spans, read.steps, strict=True):
        while word.start >= start + len(piece):
            start += len(piece)
            turn, piece = next(at)
        p = turn.probability(Span(start=word.start - start, end=word.end - start, text=word.text))
        believed.append(p if right else 1.0 - p)
    return replace(read, score=aggregate("product", believed), spans=())
