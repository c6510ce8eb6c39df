"""Protocols in which a verifier judges what a solver wrote: reviews, and solving with a review after it (RL Tango)."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from cotrain.algorithms.functional.aggregate import Combine, aggregate
from cotrain.core.arguments import AtLeast
from cotrain.core.errors import UnknownName
from cotrain.core.notes import CORRECT, FAILURE, FINAL, PAYER_SAID, SCORE, STEP_OK, VERDICTS
from cotrain.core.seeding import rng_of
from cotrain.core.signals import AGREEMENT, CLASS_LABEL, FORMAT, STEP, gives
from cotrain.core.types import Task
from cotrain.rollout.event_loop import gather
from cotrain.rollout.protocols import SOLVED, StepRewards, include_closing_tag, solve
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain.rollout.verifier_roles import confidence, fields_to_show

Tool = Literal["none", "python"]
TOOLS: tuple[str, ...] = get_args(Tool)
# What each review is rewarded with, and labelled.
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
    """``n`` judgements of a solution that could be parsed and was examined, without any reward.

    They have the format of the role (``verifier_roles.py``), their findings, and the truth as metadata where it is
    known.

    Args:
        group: reviews of one group are compared with each other; by default those of this solution.
        role: name of the verifier.
        text: is shown as the solution; by default the solution in tags.
    """
    verifier = getattr(roles, role)
    solution_text = solution.tagged_text if text is None else text
    fields = fields_for(task, roles, verifier, solution, solution_text)
    turns = await verifier.many(n, group=solution.id if group is None else group, parent=solution, **fields)
    return _record_reviews(solution, turns)


async def review_all(
    task: Task, roles: Roles, solutions: Sequence[Turn], *, n: int = 1, tool: str = "none"
) -> list[list[Turn]]:
    """``n`` judgements of each solution by the role ``verifier``, as ``review`` has them, all at once.

    ``tool="python"`` runs the programs in them while they are written (``rollout/tools/calls.py``, for roles of
    ``verifier_roles.genprm``). A judgement then has several turns. The last one is returned, with what was parsed from
    the text of all.
    """
    if tool not in TOOLS:
        raise UnknownName("tool", tool, TOOLS)
    calls: list[Coroutine[Any, Any, list[Turn]]] = []
    for solution in solutions:
        fields = fields_for(task, roles, roles.verifier, solution, solution.tagged_text)
        if tool == "none":
            calls.append(roles.verifier.many(n, group=solution.id, parent=solution, **fields))
        else:
            calls.append(_review_with_programs(roles.verifier, n, solution, fields))

    review_turns = await gather(calls)
    return [_record_reviews(solution, turns) for solution, turns in zip(solutions, review_turns, strict=True)]


async def _review_with_programs(verifier: RoleHandle, n: int, solution: Turn, fields: Mapping[str, Any]) -> list[Turn]:
    from cotrain.rollout.tools.calls import tag_format, use_tools
    from cotrain.rollout.tools.python import run_python

    program_format = tag_format("verify", "ran")  # how GenPRM writes programs
    tools = {"python": run_python}
    chats = [verifier.begin(group=solution.id, parent=solution, **fields) for _ in range(n)]
    return await gather([use_tools(chat, tools, form=program_format, nonce=fields["nonce"]) for chat in chats])


def fields_for(task: Task, roles: Roles, verifier: RoleHandle, solution: Turn, text: str) -> dict[str, Any]:
    """The fields of a verifier's prompt: the problem, the number of steps, and ``text`` as the solution."""
    solution_fields = fields_to_show(verifier.fields, roles.nonce(solution), solution=text)
    return {"problem": task.prompt, "count": len(solution.parsed.steps), **solution_fields}


def _record_reviews(solution: Turn, turns: list[Turn]) -> list[Turn]:
    """Record what each review says, and the truth about the solution where it is known."""
    is_right = CORRECT.of(solution)
    for turn in turns:
        if is_right is not None:
            turn.add_metadata(CORRECT, is_right)
            turn.add_metadata(STEP_OK, STEP_OK.of(solution))
        show_verdict(turn)
    return turns


async def rate(task: Task, roles: Roles, solution: Turn, *, role: str = "rater", reference: str = "") -> Turn:
    """The turn of a reward model on a solution that was examined (``common_roles.rater``), without any reward.

    Its verdict, a score above 0, and its probability σ(score) are findings; the truth is metadata where it is known. It
    fails, without a score, where the solution is too long for the reward model.

    Args:
        role: name of the reward model.
        reference: the reference answer that it is shown; "" for none.
    """
    rater = getattr(roles, role)
    rating: Turn = await rater(parent=solution, problem=task.prompt, solution=solution.tagged_text, reference=reference)
    if rating.failed:
        return rating
    rating.add_finding(FINAL, rating.score > 0.0)
    rating.add_finding(SCORE, rating.score_probability)
    is_right = CORRECT.of(solution)
    if is_right is not None:
        rating.add_metadata(CORRECT, is_right)
    return rating


def mean_verdict(turns: Sequence[Turn]) -> float | None:
    """The share of readable judgements that call a solution right, "half right" counting half; None where none can be
    read."""
    verdicts = []
    for turn in turns:
        if turn.parsed.ok:
            is_undecided = turn.parsed.final is None
            verdicts.append(0.5 if is_undecided else float(turn.parsed.final))
    if not verdicts:
        return None
    return sum(verdicts) / len(verdicts)


async def hidden_audit(task: Task, roles: Roles, solution: Turn, *, payer_said: float, share: float) -> None:
    """A second verifier, the role ``auditor``, says of a sample of the solutions whether they are right, and nobody is
    paid for it (arXiv 2609.01345).

    The auditor's answers are drawn from addresses of its own, so that a run with an audit learns the same, bit for bit,
    as one without.

    Args:
        payer_said: the share of the paying judge's readable reviews that call this solution right. It becomes a finding
            of the auditor's verdict, so that both are compared on the same solutions.
        share: the chance with which a solution is audited, drawn from its address.
    """
    is_audited = rng_of("hidden audit", task.id, solution.id).random() < share
    if not is_audited:
        return
    [verdict] = await review(task, roles, solution, role="auditor")
    verdict.add_finding(PAYER_SAID, payer_said)


def show_verdict(turn: Turn) -> None:
    """Record what a judgement says: its verdict, the probability of a right solution, its verdicts on steps; else why
    it cannot be read."""
    verdict = turn.parsed
    if not verdict.ok:
        turn.add_finding(FAILURE, verdict.reason)
        return
    if verdict.final is not None:  # None: a tie
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

    - The verifier's rewards: ``agreement`` is 1 when its final verdict is the truth, ``format`` is in [0, 1], and the
      class label is for balancing. A review that cannot be read has no agreement, and no vote on the solution.
    - The solver's step rewards, with ``step_rewards="verifier"``: 2x − 1 for the share x of reviews that call the step
      right, or for what another ``combine`` makes of several reviews; a step without a majority gets none.
    - A solution that cannot be read is not shown to the verifier, and counts as one wrong step.

    ``tool``: as in ``review_all``. ``oracle_noise``: as in ``solve``. ``reviews=0`` where nobody needs them.
    """
    solution = await solve(task, roles, step_rewards=step_rewards, oracle_noise=oracle_noise)
    if reviews == 0 or solution.failed or not solution.parsed.ok:
        return
    [review_turns] = await review_all(task, roles, [solution], n=reviews, tool=tool)

    if task.gradable:  # else nobody knows which verdict is right
        is_right = CORRECT.require(solution)
        for turn in review_turns:
            reward_review(turn, is_right)

    if step_rewards == "verifier":
        _reward_steps_by_reviews(solution, review_turns, combine)


def _reward_steps_by_reviews(solution: Turn, review_turns: Sequence[Turn], combine: Combine) -> None:
    """2x − 1 for each step, where x is what ``combine`` makes of the readable reviews' verdicts on it."""
    verdicts = [turn.parsed.steps for turn in review_turns if turn.parsed.ok and turn.parsed.steps]
    if not verdicts:
        return
    verdicts_by_step = zip(*verdicts, strict=True)
    for step, step_verdicts in zip(solution.parsed.steps, verdicts_by_step, strict=True):
        share = aggregate(combine, step_verdicts)
        if share is not None:
            solution.reward(STEP, 2.0 * share - 1.0, span=include_closing_tag(step, solution))


def reward_review(turn: Turn, label: bool) -> None:
    """``agreement`` with a label of the whole solution, ``format``, and the label itself, by which classes are
    balanced. They are of the whole conversation, as a review that runs programs has several turns."""
    agrees = turn.parsed.ok and turn.parsed.final == label
    turn.chat.reward(CLASS_LABEL, float(label))
    turn.chat.reward(FORMAT, turn.parsed.format_score)
    turn.chat.reward(AGREEMENT, float(agrees))
