"""Protocols that several methods share: solving a problem, and solving it before a verifier.

A protocol is ordinary asynchronous Python over roles. What it writes as a *reward* may be trained on; what it writes
as a *note* is ground truth for telemetry and evaluation, and no algorithm reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from cotrain.core.address import rng_of
from cotrain.core.arguments import AtLeast
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.notes import (
    ANSWER,
    CORRECT,
    FAILURE,
    FINAL,
    FIRST_WRONG,
    GOLD,
    PROBLEM,
    SCORE,
    STEP_OK,
    STEP_REASONS,
    STEPS,
    VERDICTS,
)
from cotrain.core.signals import AGREEMENT, FORMAT, OUTCOME, STEP, TRUTH, gives
from cotrain.core.types import Span, Task
from cotrain.functional.aggregate import Combine
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.executor import RoleHandle, Roles
from cotrain.rollout.idle_loop import together
from cotrain.rollout.role import Turn

CLOSING = "</step>"
Tool = Literal["none", "python"]
TOOLS: tuple[str, ...] = get_args(Tool)
SOLVED = (OUTCOME.to("solver"), FORMAT.to("solver"), STEP.to("solver"))
REVIEWED = (AGREEMENT.to("verifier"), FORMAT.to("verifier"), TRUTH.to("verifier"))


async def examine(task: Task, roles: Roles, solution: Turn, *, text: str | None = None) -> bool | None:
    """Show what a solution says and note what the oracle knows of it, without any reward. Returns whether the answer is
    right; None, and the turn fails, where that could not be found out. ``text``: the solution, if it is not all of the
    turn."""
    grade = await roles.grade(task, solution, text=text)
    parsed = solution.parsed
    solution.show(PROBLEM, task.prompt)
    if parsed.ok:
        solution.show(STEPS, [(s.start, s.end, s.text) for s in parsed.steps])
        solution.show(ANSWER, parsed.answer)
    else:
        solution.show(FAILURE, parsed.reason)
    if grade.value is None:
        solution.fail(grade.reason or "ungraded")
        return None
    solution.note(CORRECT, grade.value)
    solution.note(GOLD, task.answer)
    step_verdicts = task.grade_steps(tuple(s.text for s in parsed.steps)) if parsed.ok else None
    if step_verdicts is not None:
        solution.note(STEP_OK, step_verdicts.ok)
        solution.note(STEP_REASONS, step_verdicts.reasons)
        solution.note(FIRST_WRONG, step_verdicts.first_wrong)
    return grade.value


StepRewards = Literal["none", "oracle", "verifier"]  # who pays for single steps; "verifier" where one is asked
STEP_REWARDS: tuple[str, ...] = get_args(StepRewards)


def check_step_rewards(step_rewards: str, oracle_noise: float) -> None:
    """Raise UnknownName or ConfigError for what ``solve`` does not take."""
    if step_rewards not in STEP_REWARDS:
        raise UnknownName("step_rewards", step_rewards, STEP_REWARDS)
    if not 0.0 <= oracle_noise <= 1.0 or (oracle_noise and step_rewards != "oracle"):
        raise ConfigError(
            f"oracle_noise is {oracle_noise} and step rewards come from {step_rewards!r}; expected a chance in [0, 1], "
            "and the oracle where it is not 0"
        )


@gives(*SOLVED)
async def solve(task: Task, roles: Roles, *, step_rewards: StepRewards = "none", oracle_noise: float = 0.0) -> Turn:
    """The solver answers; its reward ``outcome`` is 1 when the answer is right, else 0.

    ``step_rewards="oracle"`` adds the oracle's ±1 on each step as reward ``step``: the ceiling of any verifier. Each of
    these is flipped with the chance ``oracle_noise``, so that a verifier of known skill stands in the verifier's place;
    a step that is flipped at one chance is flipped at every larger one. Returns the solver's turn.
    """
    check_step_rewards(step_rewards, oracle_noise)
    solution = await roles.solver(problem=task.prompt)
    correct = await examine(task, roles, solution)
    if correct is None:
        return solution
    solution.reward(OUTCOME, float(correct))
    solution.reward(FORMAT, solution.parsed.format_score)
    if step_rewards == "oracle" and solution.parsed.ok:
        chance = rng_of("oracle noise", task.id, solution.id)
        for span, ok in zip(solution.parsed.steps, STEP_OK.of(solution) or (), strict=False):
            step_right = ok != (chance.random() < oracle_noise)
            solution.reward(STEP, 1.0 if step_right else -1.0, span=closed(span, solution))
    return solution


async def attempts(task: Task, roles: Roles, n: int, *, role: str = "solver", problem: str | None = None) -> list[Turn]:
    """``n`` answers of a role, with the truth noted; those that could not be graded are left out.

    ``problem``: what is asked, by default the task's prompt.
    """
    asked = task.prompt if problem is None else problem
    turns = [t for t in await getattr(roles, role).many(n, problem=asked) if await examine(task, roles, t) is not None]
    for turn in turns:
        turn.show(PROBLEM, asked)
    return turns


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
    examined: shown, with the truth noted, without any reward.

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
    programs in them while they are written (``calls.py``, for roles of ``judges.genprm``) and gives the last turn of
    each, parsed with all of it."""
    if tool not in TOOLS:
        raise UnknownName("tool", tool, TOOLS)
    solution_fields = [fields_for(task, roles, roles.verifier, s, s.tagged_text) for s in solutions]
    if tool == "none":
        review_turns = await together(
            [roles.verifier.many(n, group=s.id, parent=s, **f) for s, f in zip(solutions, solution_fields, strict=True)]
        )
    else:
        review_turns = await together(
            [_with_programs(roles.verifier, n, s, f) for s, f in zip(solutions, solution_fields, strict=True)]
        )
    return [_note_reviews(s, review_turn) for s, review_turn in zip(solutions, review_turns, strict=True)]


async def _with_programs(judge: RoleHandle, n: int, solution: Turn, fields: Mapping[str, Any]) -> list[Turn]:
    from cotrain.rollout.calls import tag_format, use_tools
    from cotrain.rollout.python_tool import run_python

    programs = tag_format("verify", "ran")  # how GenPRM writes them
    chats = [judge.begin(group=solution.id, parent=solution, **fields) for _ in range(n)]
    tools = {"python": run_python}
    return await together([use_tools(chat, tools, form=programs, mark=fields["nonce"]) for chat in chats])


def fields_for(task: Task, roles: Roles, judge: RoleHandle, solution: Turn, text: str) -> dict[str, Any]:
    """The fields of a judge's prompt: between markers with a nonce, where its template has them."""
    fields = {"solution": text}
    if "nonce" in judge.fields:
        from cotrain.rollout.judges import guarded_fields

        fields = guarded_fields(roles.nonce(solution), solution=text)
    return {"problem": task.prompt, "count": len(solution.parsed.steps), **fields}


def _note_reviews(solution: Turn, turns: list[Turn]) -> list[Turn]:
    for turn in turns:
        turn.note(CORRECT, CORRECT.known(solution))
        turn.note(STEP_OK, STEP_OK.of(solution))
        show_verdict(turn)
    return turns


def show_verdict(turn: Turn) -> None:
    """Show what a judgement says: its verdict, the probability of CORRECT, its verdicts on steps; else why it is
    unreadable."""
    from cotrain.rollout.judges import confidence

    verdict = turn.parsed
    if not verdict.ok:
        turn.show(FAILURE, verdict.reason)
        return
    if verdict.final is not None:  # a tie
        turn.show(FINAL, verdict.final)
    turn.show(SCORE, confidence(turn))
    if verdict.steps:
        turn.show(VERDICTS, verdict.steps)


@gives(*SOLVED, *REVIEWED)
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

    Verifier rewards: ``agreement`` 1 when its final verdict is the truth, ``format`` in [0, 1]; the signal ``truth``
    carries the class for balancing. An unparsed review earns no agreement and says nothing about the solution. Step
    verdicts become the solver's reward ``step`` when ``step_rewards="verifier"``: 2x − 1 for the share x that calls the
    step right, or for what another aggregation (``combine``) makes of several reviews; a step without majority gets
    none. A solution that cannot be parsed has no steps to review and is not shown to the verifier. ``tool``: as in
    ``review_all``. ``oracle_noise``: as in ``solve``. ``reviews=0`` where nobody reads them.
    """
    solution = await solve(task, roles, step_rewards=step_rewards, oracle_noise=oracle_noise)
    if not reviews or not solution.parsed.ok or solution.failed:
        return
    [review_turns] = await review_all(task, roles, [solution], n=reviews, tool=tool)
    for turn in review_turns:
        reward_review(turn, CORRECT.known(solution))
    votes = [turn.parsed.steps for turn in review_turns if turn.parsed.ok and turn.parsed.steps]
    if step_rewards == "verifier" and votes:
        from cotrain.functional.aggregate import aggregate

        for span, step_votes in zip(solution.parsed.steps, zip(*votes, strict=True), strict=True):
            share = aggregate(combine, step_votes)
            if share is not None:
                solution.reward(STEP, 2.0 * share - 1.0, span=closed(span, solution))


async def continue_from(chat: Conversation, beginning: str) -> Turn:
    """The role goes on from a beginning of its answer, which is given."""
    if beginning:
        chat.assistant(beginning)
    return await chat.say()


def reward_review(turn: Turn, label: bool) -> None:
    """``agreement`` with a label of the whole solution, ``format``, and the label itself as the signal ``truth``."""
    turn.chat.reward(TRUTH, float(label))
    turn.chat.reward(FORMAT, turn.parsed.format_score)
    turn.chat.reward(AGREEMENT, float(turn.parsed.ok and turn.parsed.final == label))


def plurality_answer(turns: Sequence[Turn]) -> str | None:
    """The answer that most of these solutions give; of equals the one that came first; None when none could be read."""
    votes = Counter(turn.parsed.answer for turn in turns if turn.parsed.ok)
    return max(votes, key=lambda answer: votes[answer]) if votes else None


def closed(step: Span, solution: Turn) -> Span:
    """A step with its closing tag, where its reward is paid: a step may be empty, its end never is. Lines of free text
    have no tag and are never empty."""
    if solution.tagged_text is not solution.text:
        return step
    return Span(start=step.start, end=step.end + len(CLOSING), text=step.text + CLOSING)
