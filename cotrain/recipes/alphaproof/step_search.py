"""Search over the steps of a solution, each checked by a program: how AlphaProof makes its data (Nature 2025).

::

    (problem)                                       a node is a chain of right steps
      ├─ <step> a=…</step>        right             ``width`` next steps are sampled at a node; the program strikes out
      │    ├─ <step> c=…</step>   wrong   ✗         wrong steps; a set of steps that was reached before is no new node
      │    └─ <step> b=…</step>   right
      │         └─ <answer>7</answer>  right  ✓     the chain is learned, step by step, each given all before it
      └─ <step> b=…</step>        wrong   ✗

The node that is expanded next has the largest priority:

    priority(node) = mean of log π over the sampled tokens of its chain − number of its expansions

The search ends with the first right chain, or when ``budget`` tokens were sampled. The program is the problem's oracle,
or one of the user's (``grading/step_checker.py``), which may call a chain complete before it has an answer.

Controls: ``search=False`` samples whole solutions with the same budget, ``width`` at once, until one is right in every
step. ``verdicts="answer"`` searches without verdicts on steps: every text in the form of a step passes, and only the
answer is judged.

Every turn gets the signal ``on_chain``: 1 on the turns of the chain that was found, else 0. Left out: a value network
(the mean of log π stands in for it), a prior over visits, branches that must all be proved (AND nodes): steps of word
problems have one goal each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from cotrain.core.arguments import Positive
from cotrain.core.errors import TooLong, UnknownName
from cotrain.core.notes import FAILURE, PROBLEM, Finding, Metadata
from cotrain.core.signals import Signal, gives
from cotrain.core.types import ParseFailure, Task
from cotrain.formats.solutions import tagged_solution
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.protocols import CLOSING
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

if TYPE_CHECKING:
    from cotrain.grading.step_checker import CheckedSteps, StepChecker

ON_CHAIN = Signal("on_chain", meaning="1 on a step of the chain that was found right, else 0")
PROVED = Metadata[bool]("proved", bool, "was a chain found of which every step and the answer are right")
SPENT = Metadata[float]("spent", float, "tokens that were sampled to find it, as a share of the budget")
STEP_PASSED = Metadata[bool]("step_passed", bool, "did the program let the step pass, or the answer")
STRUCK = Finding[str]("struck_out", str, "why the program did not let a step or a solution pass, empty where it did")
Verdicts = Literal["steps", "answer"]
END = "</answer>"
_STEP = re.compile(r"<step>([^<]*)</step>")
_CHAIN = re.compile(r"(?:<step>[^<]*</step>\s*)+")  # steps and nothing else


@dataclass(slots=True)
class ChainNode:
    """A chain of steps that the program let pass; the root has none."""

    chat: Conversation  # goes on where the chain ends
    turns: tuple[Turn, ...] = ()  # [K] one per step
    steps: tuple[str, ...] = ()  # [K]
    expansions: int = 0

    @property
    def chain_text(self) -> str:
        """The sampled text of the chain. The last token of a step may go on behind its closing tag; that is part of
        the text."""
        return self.chat.messages[-1].content if self.turns else ""

    @property
    def priority(self) -> float:
        """The mean of log π over the tokens of the chain, minus the number of expansions."""
        logprobs = [p for turn in self.turns for p in turn.completion.logprobs]
        return sum(logprobs) / max(1, len(logprobs)) - self.expansions


@gives(ON_CHAIN.to("prover"))
async def prove(
    task: Task,
    roles: Roles,
    *,
    budget: Positive,
    width: Positive = 4,
    search: bool = True,
    verdicts: Verdicts = "steps",
    checker: StepChecker | None = None,
) -> None:
    """Search for a right chain of one problem, as the head of this file says.

    Metadata of the first turn: whether a chain was found, and the share of the budget that was spent. It may be above
    1, as the last expansion is sampled to its end. Raises UnknownName for ``verdicts``.
    """
    if verdicts not in get_args(Verdicts):
        raise UnknownName("verdicts", verdicts, get_args(Verdicts))
    root = ChainNode(roles.prover.begin(problem=task.prompt))
    judge = ChainJudge(task, roles, verdicts, checker)
    if search:
        chain, all_turns = await _search_chain(judge, root, budget, width)
    else:
        chain, all_turns = await _sample_solutions(judge, root, budget, width)

    chain_ids = {turn.id for turn in chain}
    for turn in all_turns:
        turn.add_finding(PROBLEM, task.prompt)
        turn.reward(ON_CHAIN, float(turn.id in chain_ids))
    all_turns[0].add_metadata(PROVED, bool(chain))
    all_turns[0].add_metadata(SPENT, n_tokens(all_turns) / budget)


class NoVerdict(Exception):
    """The user's program gave no verdict; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdict:
    """The program's verdict on the last step of a chain."""

    reason: str | None = None  # why the step does not pass; None if it passes
    is_proof: bool = False  # True if the chain needs no answer: the program calls it complete

    @property
    def passes(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class ChainJudge:
    """Checks chains of steps of one problem by a program: the oracle of its source, or ``checker``."""

    task: Task
    roles: Roles
    verdicts: str
    checker: StepChecker | None

    async def judge_step(self, turn: Turn, steps: tuple[str, ...], count: int) -> StepVerdict:
        """The verdict on the step that ``turn`` has added to a chain, recorded on the turn.

        Args:
            steps: the steps that can be read in the whole chain.
            count: how many there are if the turn is a step.
        """
        try:
            verdict = await self.check_step(steps, count)
        except NoVerdict as error:
            note_no_verdict(turn, str(error))
            return StepVerdict(reason=str(error))
        turn.add_metadata(STEP_PASSED, verdict.passes)
        turn.add_finding(STRUCK, verdict.reason or "")
        return verdict

    async def check_step(self, steps: tuple[str, ...], count: int) -> StepVerdict:
        """The verdict on the last of ``count`` steps. Raises NoVerdict."""
        if len(steps) != count:
            return StepVerdict(reason="no step")
        if self.verdicts == "answer":
            return StepVerdict()
        if self.checker is None:
            return StepVerdict(reason=oracle_reason(self.task, steps))
        checked = await self._run_checker(self.checker, steps, None)
        reason = first_failure(checked)
        return StepVerdict(reason=reason, is_proof=reason is None and checked.done)

    async def judge_end(self, turn: Turn, text: str, reason: str) -> bool:
        """Whether all steps of a whole solution and its answer are right, recorded on the turn. ``reason``: recorded
        where they are not."""
        try:
            is_right = await self._is_right(text)
        except NoVerdict as error:
            note_no_verdict(turn, str(error))
            return False
        turn.add_metadata(STEP_PASSED, is_right)
        turn.add_finding(STRUCK, "" if is_right else reason)
        return is_right

    async def _is_right(self, text: str) -> bool:
        """Raises NoVerdict."""
        solution = tagged_solution(text)
        if isinstance(solution, ParseFailure):
            return False
        if self.task.gradable or self.checker is None:
            grade = await self.roles.grade(self.task, text)
            if grade.value is not True:
                return False

        steps = tuple(step.text for step in solution.steps)
        if self.checker is None:
            step_grades = self.task.grade_steps(steps)
            return step_grades is None or all(step_grades.ok)
        checked = await self._run_checker(self.checker, steps, solution.answer)
        return checked.done and all(checked.ok)

    async def _run_checker(self, checker: StepChecker, steps: tuple[str, ...], answer: str | None) -> CheckedSteps:
        """The answer of the user's program. Raises NoVerdict."""
        async with self.roles.busy():
            result = await checker.check(self.task.prompt, steps, answer)
        if isinstance(result, str):
            raise NoVerdict(result)
        return result


def first_failure(checked: CheckedSteps) -> str | None:
    """Why the first wrong step is wrong; None if all are right."""
    for is_right, reason in zip(checked.ok, checked.reasons, strict=True):
        if not is_right:
            return reason or "wrong"
    return None


def oracle_reason(task: Task, steps: tuple[str, ...]) -> str | None:
    """Why the oracle does not let the last step pass; None where it does."""
    step_grades = task.grade_steps(steps)
    if step_grades is None:
        return "nobody knows"
    return step_grades.reasons[-1] or None


def note_no_verdict(turn: Turn, reason: str) -> None:
    """Count a turn of which the program says nothing; the search does not go on from it."""
    turn.add_finding(FAILURE, reason)
    turn.add_finding(STRUCK, reason)


async def _search_chain(
    judge: ChainJudge, root: ChainNode, budget: int, width: int
) -> tuple[tuple[Turn, ...], list[Turn]]:
    """The turns of the chain that was found, () for none, and all turns."""
    nodes = [root]
    all_turns: list[Turn] = []
    reached: set[frozenset[str]] = set()  # the steps of each node: their order makes no other node
    while n_tokens(all_turns) < budget:
        node = max(nodes, key=lambda candidate: candidate.priority)  # the first of equal ones
        node.expansions += 1
        try:
            turns = await node.chat.many(width, stop=(CLOSING, END))
        except TooLong:
            if node is root:
                raise
            nodes.remove(node)  # the chain has outgrown the context
            continue

        all_turns += turns
        for turn in turns:
            if turn.text.endswith(END):
                if await judge.judge_end(turn, node.chain_text + turn.text, "wrong end"):
                    return (*node.turns, turn), all_turns
                continue

            steps = steps_in(node.chain_text + turn.text)
            verdict = await judge.judge_step(turn, steps, len(node.steps) + 1)
            if verdict.is_proof:
                return (*node.turns, turn), all_turns
            if verdict.passes and frozenset(steps) not in reached:
                reached.add(frozenset(steps))
                nodes.append(ChainNode(turn.chat, (*node.turns, turn), steps))
    return (), all_turns


def steps_in(text: str) -> tuple[str, ...]:
    """The texts inside of the step tags; () where a text has anything besides steps."""
    if not _CHAIN.fullmatch(text):
        return ()
    return tuple(_STEP.findall(text))


async def _sample_solutions(
    judge: ChainJudge, root: ChainNode, budget: int, width: int
) -> tuple[tuple[Turn, ...], list[Turn]]:
    """The control: whole solutions of the same policy. Returns the right one, () for none, and all turns."""
    all_turns: list[Turn] = []
    while n_tokens(all_turns) < budget:
        turns = await root.chat.many(width)
        all_turns += turns
        for turn in turns:
            if await judge.judge_end(turn, turn.text, "wrong somewhere"):
                return (turn,), all_turns
    return (), all_turns


def n_tokens(turns: Sequence[Turn]) -> int:
    """How many tokens were sampled in these turns."""
    return sum(len(turn.completion.token_ids) for turn in turns)
