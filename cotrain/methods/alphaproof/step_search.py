"""Search over the steps of a solution, each checked by a program: how AlphaProof makes its data (Nature 2025).

::

    (problem)                                       a node is a chain of right steps
      ├─ <step> a=…</step>        right             ``width`` next steps are sampled at a node; the program strikes out
      │    ├─ <step> c=…</step>   wrong   ✗         the wrong ones and those that lead where another one has led
      │    └─ <step> b=…</step>   right
      │         └─ <answer>7</answer>  right  ✓     the chain is learned, step by step, each given all before it
      └─ <step> b=…</step>        wrong   ✗

Which node next: the largest mean of log π over the tokens of its chain, less 1 for each time that it was tried. It ends
with the first right chain, or when ``budget`` tokens were sampled. ``search=False`` is the control at equal tokens:
whole solutions, ``width`` at once, until one is right in every step. ``verdicts="answer"`` searches blind: every step
that is one is taken for right until the answer is judged.

Every turn gets the signal ``on_chain``: 1 on those of the chain that was found, else 0. Left out: a value network (the
mean of log π stands in for it), a prior over visits, branches that must all be proved (AND nodes): steps of word
problems have one goal each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from cotrain.core.arguments import Positive
from cotrain.core.errors import UnknownName
from cotrain.core.notes import PROBLEM, Finding, Note
from cotrain.core.signals import Signal, gives
from cotrain.core.types import ParseFailure, Task
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.executor import Roles
from cotrain.rollout.protocols import CLOSING
from cotrain.rollout.role import Turn
from cotrain.text.parsers import tagged_solution

ON_CHAIN = Signal("on_chain", meaning="1 on a step of the chain that was found right, else 0")
PROVED = Note[bool]("proved", bool, "was a chain found of which every step and the answer are right")
SPENT = Note[float]("spent", float, "tokens that were sampled to find it, as a share of the budget")
STEP_PASSED = Note[bool]("step_passed", bool, "did the program let the step pass, or the answer")
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
) -> None:
    """One problem, see above. The first turn notes whether a chain was found, and what was spent of the budget, which
    the last expansion may overdraw. Raises UnknownName for ``verdicts``."""
    if verdicts not in get_args(Verdicts):
        raise UnknownName("verdicts", verdicts, get_args(Verdicts))
    root = ChainNode(roles.prover.begin(problem=task.prompt))
    find = (
        _search_chain(task, roles, root, budget, width, verdicts)
        if search
        else _draw_solutions(task, roles, root, budget, width)
    )
    chain, all_turns = await find
    chain_ids = {turn.id for turn in chain}
    for turn in all_turns:
        turn.show(PROBLEM, task.prompt)
        turn.reward(ON_CHAIN, float(turn.id in chain_ids))
    all_turns[0].note(PROVED, bool(chain))
    all_turns[0].note(SPENT, sum(map(tokens_of, all_turns)) / budget)


async def _search_chain(
    task: Task, roles: Roles, root: ChainNode, budget: int, width: int, verdicts: str
) -> tuple[tuple[Turn, ...], list[Turn]]:
    """The chain that was found, () for none, and all turns."""
    nodes, all_turns, seen_states = [root], list[Turn](), set[frozenset[str]]()
    while sum(map(tokens_of, all_turns)) < budget:
        node = max(nodes, key=lambda one: one.promise)  # of equals the one that came first
        node.tries += 1
        turns = await node.chat.many(width, stop=(CLOSING, END))
        all_turns += turns
        for turn in turns:
            if turn.text.endswith(END):
                right = await _ends_right(task, roles, node.chain_text + turn.text)
                turn.note(STEP_PASSED, right)
                turn.show(STRUCK, "" if right else "wrong end")
                if right:
                    return (*node.turns, turn), all_turns
                continue
            steps = steps_in(node.chain_text + turn.text)
            reason = wrong_reason(task, steps, len(node.steps) + 1, verdicts)
            turn.note(STEP_PASSED, reason is None)
            turn.show(STRUCK, reason or "")
            if reason is None and (state := frozenset(steps)) not in seen_states:
                seen_states.add(state)
                nodes.append(ChainNode(turn.chat, (*node.turns, turn), steps))
    return (), all_turns


def steps_in(text: str) -> tuple[str, ...]:
    """The insides of the steps that a text consists of; () where there is anything else."""
    return tuple(_STEP.findall(text)) if _CHAIN.fullmatch(text) else ()


def wrong_reason(task: Task, steps: tuple[str, ...], count: int, verdicts: str) -> str | None:
    """Why the program does not let the last of ``count`` steps pass; None where it does."""
    if len(steps) != count:
        return "no step"
    if verdicts == "answer":
        return None
    judged = task.grade_steps(steps)
    return "nobody knows" if judged is None else judged.reasons[-1] or None


async def _ends_right(task: Task, roles: Roles, text: str) -> bool:
    """Are all steps of a whole solution and its answer right?"""
    parsed = tagged_solution(text)
    if isinstance(parsed, ParseFailure) or (await roles.grade(task, text)).value is not True:
        return False
    judged = task.grade_steps(tuple(step.text for step in parsed.steps))
    return judged is None or all(judged.ok)


async def _draw_solutions(
    task: Task, roles: Roles, root: ChainNode, budget: int, width: int
) -> tuple[tuple[Turn, ...], list[Turn]]:
    """The control: whole solutions of the same policy."""
    all_turns: list[Turn] = []
    while sum(map(tokens_of, all_turns)) < budget:
        turns = await root.chat.many(width)
        all_turns += turns
        for turn in turns:
            right = await _ends_right(task, roles, turn.text)
            turn.note(STEP_PASSED, right)
            turn.show(STRUCK, "" if right else "wrong somewhere")
            if right:
                return (turn,), all_turns
    return (), all_turns


def tokens_of(turn: Turn) -> int:
    return len(turn.completion.token_ids)
