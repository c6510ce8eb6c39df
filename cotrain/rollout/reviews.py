"""Protocols in which a verifier judges what a solver wrote: reviews, and solving before a verifier (RL Tango)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from cotrain.algorithms.functional.aggregate import Combine, aggregate
from cotrain.core.arguments import AtLeast
from cotrain.core.errors import UnknownName
from cotrain.core.notes import CORRECT, FAILURE, FINAL, PAYER_SAID, SCORE, STEP_OK, VERDICTS
from cotrain.core.seeding import rng_of
from cotrain.core.signals import AGREEMENT, CLASS_LABEL, FORMAT, STEP, gives
from cotrain.core.types import Task
from cotrain.rollout.event_loop import gather
from cotrain.rollout.judges import confidence, guarded_fields
from cotrain.rollout.protocols import SOLVED, StepRewards, include_closing_tag, solve
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles

Tool = Literal["none", "python"]
TOOLS: tuple[str, ...] = get_args(Tool)
REVIEWED = (AGREEMENT.to("verifier"), FORMAT.to("verifier"), CLASS_LABEL.to("verifier"))


async def review(
    task: Task,
    roles: Roles,
    solution: Turn,
    *,
    n: int = 1,
    group: str | None = None,
    role: str = "verifier",
    text: str | None = None,
) -> list[Turn]:
    """``n`` judgements, in whatever format the role has (``judges.py``), of a solution that could be parsed and was
    examined: shown, with the truth noted where it is known, without any reward.

    ``group``: pool key, by default the reviews of this solution are compared with each other. ``text``: as in
    ``examine``.
    """
    judge = getattr(roles, role)
    fields = fields_for(task, roles, judge, solution, solution.tagged_text if text is None else text)
    turns = await judge.many(n, group=solution.id if group is None else group, parent=solution, **fields)
    return _note_reviews(solution, turns)


async def review_all(
    task: Task, roles: Roles, solutions: Sequence[Turn], *, n: int = 1, tool: str = "none"
) -> list[list[Turn]]:
    """``n`` judgements of each solution by the role ``verifier``, as ``review`` has them; ``tool`` "python" runs the
    programs in them while they are written (``rollout/tools/calls.py``, for roles of ``judges.genprm``) and gives the
    last turn of each, parsed with all of it."""
    if tool not in TOOLS:
        raise UnknownName("tool", tool, TOOLS)
    solution_fields = [fields_for(task, roles, roles.verifier, s, s.tagged_text) for s in solutions]
    if tool == "none":
        review_turns = await gather(
            [roles.verifier.many(n, group=s.id, parent=s, **f) for s, f in zip(solutions, solution_fields, strict=True)]
        )
    else:
        review_turns = await gather(
            [_with_programs(roles.verifier, n, s, f) for s, f in zip(solutions, solution_fields, strict=True)]
        )
    return [_note_reviews(s, review_turn) for s, review_turn in zip(solutions, review_turns, strict=True)]


async def _with_programs(judge: RoleHandle, n: int, solution: Turn, fields: Mapping[str, Any]) -> list[Turn]:
    from cotrain.rollout.tools.calls import tag_format, use_tools
    from cotrain.rollout.tools.python import run_python

    programs = tag_format("verify", "ran")  # how GenPRM writes them
    chats = [judge.begin(group=solution.id, parent=solution, **fields) for _ in range(n)]
    tools = {"python": run_python}
    return await gather([use_tools(chat, tools, form=programs, mark=fields["nonce"]) for chat in chats])


def fields_for(task: Task, roles: Roles, judge: RoleHandle, solution: Turn, text: str) -> dict[str, Any]:
    """The fields of a judge's prompt: between markers with a nonce, where its template has them."""
    fields = {"solution": text}
    if "nonce" in judge.fields:
        fields = guarded_fields(roles.nonce(solution), solution=text)
    return {"problem": task.prompt, "count": len(solution.parsed.steps), **fields}


def _note_reviews(solution: Turn, turns: list[Turn]) -> list[Turn]:
    right = CORRECT.of(solution)
    for turn in turns:
        if right is not None:
            turn.add_metadata(CORRECT, right)
            turn.add_metadata(STEP_OK, STEP_OK.of(solution))
        show_verdict(turn)
    return turns


def mean_verdict(turns: Sequence[Turn]) -> float | None:
    """The share of readable judgements that call a solution right, "half right" counting half; None where none can be
    read."""
    verdicts = [0.5 if turn.parsed.final is None else float(turn.parsed.final) for turn in turns if turn.parsed.ok]
    return sum(verdicts) / len(verdicts) if verdicts else None


async def hidden_audit(task: Task, roles: Roles, solution: Turn, *, payer_said: float, share: float) -> None:
    """A second judge, the role ``auditor``, says of a sample of the solutions whether they are right, and nobody is
    paid for it (arXiv 2609.01345).

    ``payer_said``: the share of the paying judge's readable reviews that call this solution right; it is shown beside
    the auditor's verdict, so that both are compared on the same solutions. ``share``: the chance with which a solution
    is audited, drawn from its address. The auditor's answers are drawn from addresses of its own, so that a run with
    an audit learns the same, bit for bit, as one without.
    """
    is_audited = rng_of("hidden audit", task.id, solution.id).random() < share
    if not is_audited:
        return
    [verdict] = await review(task, roles, solution, role="auditor")
    verdict.add_finding(PAYER_SAID, payer_said)


def show_verdict(turn: Turn) -> None:
    """Show what a judgement says: its verdict, the probability of CORRECT, its verdicts on steps; else why it is
    unreadable."""
    verdict = turn.parsed
    if not verdict.ok:
        turn.add_finding(FAILURE, verdict.reason)
        return
    if verdict.final is not None:  # a tie
        turn.add_finding(FINAL, verdict.final)
    turn.add_finding(SCORE, confidence(turn))
    if verdict.steps:
        turn.add_finding(VERDICTS, verdict.steps)


@gives(*SOLVED, *REVIEWED, once=("solver",))
async def solve_then_verify(
    task: Task,
    roles: Roles,
    *,
    reviews: Annotated[int, AtLeast(0, held_out=1)] = 1,
    step_rewards: StepRewards = "verifier",
    oracle_noise: float = 0.0,
    combine: Combine = "mean",
    tool: Tool = "none",
) -> None:
    """The solver answers and the verifier reviews the answer ``reviews`` times (RL Tango, arXiv 2505.15034, §3).

    Verifier rewards: ``agreement`` 1 when its final verdict is the truth, ``format`` in [0, 1]; the signal
    ``class_label`` carries the class for balancing. An unparsed review earns no agreement and says nothing about the
    solution. Step verdicts become the solver's reward ``step`` when ``step_rewards="verifier"``: 2x − 1 for the share x
    that calls the step right, or for what another aggregation (``combine``) makes of several reviews; a step without
    majority gets none. A solution that cannot be parsed is not shown to the verifier, and counts as one wrong step.
    ``tool``: as in ``review_all``. ``oracle_noise``: as in ``solve``. ``reviews=0`` where nobody reads them.
    """
    solution = await solve(task, roles, step_rewards=step_rewards, oracle_noise=oracle_noise)
    if not reviews or not solution.parsed.ok or solution.failed:
        return
    [review_turns] = await review_all(task, roles, [solution], n=reviews, tool=tool)
    for turn in review_turns if task.gradable else ():  # else nobody knows which verdict is right
        reward_review(turn, CORRECT.require(solution))
    votes = [turn.parsed.steps for turn in review_turns if turn.parsed.ok and turn.parsed.steps]
    if step_rewards == "verifier" and votes:
        for span, step_votes in zip(solution.parsed.steps, zip(*votes, strict=True), strict=True):
            share = aggregate(combine, step_votes)
            if share is not None:
                solution.reward(STEP, 2.0 * share - 1.0, span=include_closing_tag(span, solution))


def reward_review(turn: Turn, label: bool) -> None:
    """``agreement`` with a label of the whole solution, ``format``, and the label itself as ``class_label``."""
    turn.chat.reward(CLASS_LABEL, float(label))
    turn.chat.reward(FORMAT, turn.parsed.format_score)
    turn.chat.reward(AGREEMENT, float(turn.parsed.ok and turn.parsed.final == label))
