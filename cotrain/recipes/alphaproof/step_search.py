"""Search over the steps of a solution, each checked by a program: how AlphaProof makes its data (Nature 2025).

::

    (problem)                                       a node is a chain of right steps
      ├─ <step> a=…</step>        right             ``width`` next steps are sampled at a node; the program strikes out
      │    ├─ <step> c=…</step>   wrong   ✗         the wrong ones and those that lead where another one has led
      │    └─ <step> b=…</step>   right
      │         └─ <answer>7</answer>  right  ✓     the chain is learned, step by step, each given all before it
      └─ <step> b=…</step>        wrong   ✗

Which node next: the largest mean of log π over the tokens of its chain, less 1 for each time that it was tried. It ends
with the first right chain, or when ``budget`` tokens were sampled. The program is the problem's oracle, or one of the
user's (``grading/step_checker.py``), which may call a chain complete before it has an answer. ``search=False`` is the
control at equal tokens: whole solutions, ``width`` at once, until one is right in every step. ``verdicts="answer"``
searches blind: every step that is one is taken for right until the answer is judged.

Every turn gets the signal ``on_chain``: 1 on those of the chain that was found, else 0. Left out: a value network (the
mean of log π stands in for it), a prior over visits, branches that must all be proved (AND nodes): steps of word
problems have one goal each.
"""

from __future__ import annotations

import re
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
_CHAIN = re.compile(rf"(?:{_STEP.pattern}\s*)+")


@dataclass(slots=True)
class ChainNode:
    """A chain of steps that the program let pass."""

    chat: Conversation
    turns: tuple[Turn, ...] = ()
    steps: tuple[str, ...] = ()
    tries: int = 0

    @property
    def chain_text(self) -> str:
        """All that was sampled, with what the last token held beyond a step's end."""
        return self.chat.messages[-1].content if self.turns else ""

    @property
    def promise(self) -> float:
        logprobs = [p for turn in self.turns for p in turn.completion.logprobs]
        return sum(logprobs) / max(1, len(logprobs)) - self.tries


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
    """One problem, see above. The first turn notes whether a chain was found, and what was spent of the budget, which
    the last expansion may overdraw. Raises UnknownName for ``verdicts``."""
    if verdicts not in get_args(Verdicts):
        raise UnknownName("verdicts", verdicts, get_args(Verdicts))
    root = ChainNode(roles.prover.begin(problem=task.prompt))
    judge = ChainJudge(task, roles, verdicts, checker)
    find = _search_chain(judge, root, budget, width) if search else _draw_solutions(judge, root, budget, width)
    chain, all_turns = await find
    chain_ids = {turn.id for turn in chain}
    for turn in all_turns:
        turn.add_finding(PROBLEM, task.prompt)
        turn.reward(ON_CHAIN, float(turn.id in chain_ids))
    all_turns[0].add_metadata(PROVED, bool(chain))
    all_turns[0].add_metadata(SPENT, sum(map(tokens_of, all_turns)) / budget)


@dataclass(frozen=True, slots=True)
class ChainJudge:
    """Checks chains of steps of one problem by a program: the oracle of its source, or ``checker``."""

    task: Task
    roles: Roles
    verdicts: str
    checker: StepChecker | None

    async def judge_step(self, turn: Turn, steps: tuple[str, ...], count: int) -> tuple[bool, bool]:
        """Whether the last of ``count`` steps passes, and whether the chain is a proof as it stands."""
        found: CheckedSteps | str | None = None
        if self.checker is not None and self.verdicts == "steps" and len(steps) == count:
            async with self.roles.busy():
                found = await self.checker.check(self.task.prompt, steps, None)
        if isinstance(found, str):
            note_failure(turn, found)
            return False, False
        if found is None:
            reason = wrong_reason(self.task, steps, count, self.verdicts if self.checker is None else "answer")
        else:
            wrong = (reason or "wrong" for reason, ok in zip(found.reasons, found.ok, strict=True) if not ok)
            reason = next(wrong, None)
        turn.add_metadata(STEP_PASSED, reason is None)
        turn.add_finding(STRUCK, reason or "")
        return reason is None, reason is None and found is not None and found.done

    async def judge_end(self, turn: Turn, text: str, struck: str) -> bool:
        """Whether all steps of a whole solution and its answer are right. ``struck``: why not, as it is shown."""
        right = await self._is_right(text)
        if isinstance(right, str):
            note_failure(turn, right)
            return False
        turn.add_metadata(STEP_PASSED, right)
        turn.add_finding(STRUCK, "" if right else struck)
        return right

    async def _is_right(self, text: str) -> bool | str:
        task = self.task
        parsed = tagged_solution(text)
        if isinstance(parsed, ParseFailure):
            return False
        if (task.gradable or self.checker is None) and (await self.roles.grade(task, text)).value is not True:
            return False
        steps = tuple(step.text for step in parsed.steps)
        if self.checker is None:
            judged = task.grade_steps(steps)
            return judged is None or all(judged.ok)
        async with self.roles.busy():
            found = await self.checker.check(task.prompt, steps, parsed.answer)
        return found if isinstance(found, str) else found.done and all(found.ok)


def note_failure(turn: Turn, reason: str) -> None:
    """The program said nothing of a turn: it is not gone on from, and counted."""
    turn.add_finding(FAILURE, reason)
    turn.add_finding(STRUCK, reason)


async def _search_chain(
    judge: ChainJudge, root: ChainNode, budget: int, width: int
) -> tuple[tuple[Turn, ...], list[Turn]]:
    """The chain that was found, () for none, and all turns."""
    nodes = [root]
    all_turns = list[Turn]()
    seen_states = set[frozenset[str]]()
    while sum(map(tokens_of, all_turns)) < budget:
        node = max(nodes, key=lambda one: one.promise)  # of equals the one that came first
        node.tries += 1
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
            passes, is_proof = await judge.judge_step(turn, steps, len(node.steps) + 1)
            if is_proof:
                return (*node.turns, turn), all_turns
            if passes and (state := frozenset(steps)) not in seen_states:
                seen_states.add(state)
                nodes.append(ChainNode(turn.chat, (*node.turns, turn), steps))
    return (), all_turns


def steps_in(text: str) -> tuple[str, ...]:
    """The insides of the steps that a text consists of; () where there is anything else."""
    return tuple(_STEP.findall(text)) if _CHAIN.fullmatch(text) else ()


def wrong_reason(task: Task, steps: tuple[str, ...], count: int, verdicts: str) -> str | None:
    """Why the oracle does not let the last of ``count`` steps pass; None where it does."""
    if len(steps) != count:
        return "no step"
    if verdicts == "answer":
        return None
    judged = task.grade_steps(steps)
    return "nobody knows" if judged is None else judged.reasons[-1] or None


async def _draw_solutions(
    judge: ChainJudge, root: ChainNode, budget: int, width: int
) -> tuple[tuple[Turn, ...], list[Turn]]:
    """The control: whole solutions of the same policy."""
    all_turns: list[Turn] = []
    while sum(map(tokens_of, all_turns)) < budget:
        turns = await root.chat.many(width)
        all_turns += turns
        for turn in turns:
            if await judge.judge_end(turn, turn.text, "wrong somewhere"):
                return (turn,), all_turns
    return (), all_turns


def tokens_of(turn: Turn) -> int:
    return len(turn.completion.token_ids)
