"""Protocols that several methods share: solving a problem; ``reviews.py`` has those in which a verifier judges.

A protocol is ordinary asynchronous Python over roles. What it writes as a *reward* may be trained on; what it writes
as a *note* is ground truth for telemetry and evaluation, and no algorithm reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, FIRST_WRONG, GOLD, PROBLEM, STEP_OK, STEP_REASONS, STEPS
from cotrain.core.seeding import rng_of
from cotrain.core.signals import FORMAT, OUTCOME, STEP, gives
from cotrain.core.types import Span, Task
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

CLOSING = "</step>"
SOLVED = (OUTCOME.to("solver"), FORMAT.to("solver"), STEP.to("solver"))


async def examine(task: Task, roles: Roles, solution: Turn, *, text: str | None = None) -> bool | None:
    """Show what a solution says and note what the oracle knows of it, without any reward. Returns whether the answer is
    right; None where the problem has no answer to compare with, and, the turn fails, where grading failed. ``text``:
    the solution, if it is not all of the turn."""
    grade = await roles.grade(task, solution, text=text) if task.gradable else None
    parsed = solution.parsed
    solution.add_finding(PROBLEM, task.prompt)
    if parsed.ok:
        solution.add_finding(STEPS, [(s.start, s.end, s.text) for s in parsed.steps])
        solution.add_finding(ANSWER, parsed.answer)
    else:
        solution.add_finding(FAILURE, parsed.reason)
    if grade is None:
        return None
    if grade.value is None:
        solution.fail(grade.reason or "ungraded")
        return None
    solution.add_metadata(CORRECT, grade.value)
    solution.add_metadata(GOLD, task.gold)
    step_verdicts = task.grade_steps(tuple(s.text for s in parsed.steps)) if parsed.ok else None
    if step_verdicts is not None:
        solution.add_metadata(STEP_OK, step_verdicts.ok)
        solution.add_metadata(STEP_REASONS, step_verdicts.reasons)
        solution.add_metadata(FIRST_WRONG, step_verdicts.first_wrong)
    return grade.value


StepRewards = Literal["none", "oracle", "verifier"]  # source of step rewards; "verifier" needs a verifier in the
# protocol
STEP_REWARDS: tuple[str, ...] = get_args(StepRewards)


def check_step_rewards(step_rewards: str, oracle_noise: float) -> None:
    """Raise UnknownName or ConfigError for what ``solve`` does not take."""
    if step_rewards not in STEP_REWARDS:
        raise UnknownName("step_rewards", step_rewards, STEP_REWARDS)
    if not 0.0 <= oracle_noise <= 1.0 or (oracle_noise and step_rewards != "oracle"):
        raise ConfigError(
            f"oracle_noise is {oracle_noise} and step rewards come from {step_rewards!r}; expected a chance in [0, 1], "
            "and the oracle where it is not 0",
            code="E_ORACLE_NOISE",
        )


@gives(*SOLVED, once=("solver",))
async def solve(task: Task, roles: Roles, *, step_rewards: StepRewards = "none", oracle_noise: float = 0.0) -> Turn:
    """The solver answers; its reward ``outcome`` is 1 when the answer is right, else 0.

    ``step_rewards="oracle"`` adds the oracle's ±1 on each step as reward ``step``: the ceiling of any verifier. Each of
    these is flipped with the chance ``oracle_noise``, so that a verifier of known skill stands in the verifier's place;
    a step that is flipped at one chance is flipped at every larger one. Whoever pays for steps, a solution that cannot
    be read counts as one wrong step; if it earned nothing, breaking the format would beat many wrong steps. Returns the
    solver's turn.
    """
    check_step_rewards(step_rewards, oracle_noise)
    solution = await roles.solver(problem=task.prompt)
    correct = await examine(task, roles, solution)
    if correct is None:
        return solution
    solution.reward(OUTCOME, float(correct))
    solution.reward(FORMAT, solution.parsed.format_score)
    if step_rewards != "none" and not solution.parsed.ok and solution.text:
        solution.reward(STEP, -1.0, span=Span(start=0, end=len(solution.text), text=solution.text))
    elif step_rewards == "oracle" and solution.parsed.ok:
        chance = rng_of("oracle noise", task.id, solution.id)
        for span, ok in zip(solution.parsed.steps, STEP_OK.of(solution) or (), strict=False):
            step_right = ok != (chance.random() < oracle_noise)
            solution.reward(STEP, 1.0 if step_right else -1.0, span=include_closing_tag(span, solution))
    return solution


async def attempts(task: Task, roles: Roles, n: int, *, role: str = "solver", problem: str | None = None) -> list[Turn]:
    """``n`` answers of a role, with the truth noted; those whose grading failed are left out.

    ``problem``: what is asked, by default the task's prompt.
    """
    asked = task.prompt if problem is None else problem
    written = await getattr(roles, role).many(n, problem=asked)
    turns = [t for t in written if await examine(task, roles, t) is not None or not task.gradable]
    for turn in turns:
        turn.add_finding(PROBLEM, asked)
    return turns


async def continue_from(chat: Conversation, beginning: str) -> Turn:
    """The role goes on from a beginning of its answer, which is given."""
    if beginning:
        chat.assistant(beginning)
    return await chat.say()


def plurality_answer(turns: Sequence[Turn]) -> str | None:
    """The answer that most of these solutions give; of equals the one that came first; None when none could be read."""
    votes = Counter(turn.parsed.answer for turn in turns if turn.parsed.ok)
    return max(votes, key=lambda answer: votes[answer]) if votes else None


def include_closing_tag(step: Span, solution: Turn) -> Span:
    """A step with its closing tag, where its reward is paid: a step may be empty, its end never is. Lines of free text
    have no tag and are never empty."""
    if solution.tagged_text is not solution.text:
        return step
    return Span(start=step.start, end=step.end + len(CLOSING), text=step.text + CLOSING)
