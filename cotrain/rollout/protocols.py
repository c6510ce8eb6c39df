"""Protocols that several methods share: solving a problem. Those in which a verifier judges are in ``reviews.py``.

A protocol is ordinary asynchronous Python over roles. What it writes as a *reward* may be trained on. What it writes as
*metadata* is ground truth for telemetry and evaluation, and no algorithm reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.notes import ANSWER, CORRECT, FAILURE, FIRST_WRONG, GOLD, PROBLEM, STEP_OK, STEP_REASONS, STEPS
from cotrain.core.seeding import rng_of
from cotrain.core.signals import FORMAT, OUTCOME, STEP, gives
from cotrain.core.types import NoGrader, Span, Task
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import Roles

CLOSING = "</step>"
SOLVED = (OUTCOME.to("solver"), FORMAT.to("solver"), STEP.to("solver"))


async def examine(task: Task, roles: Roles, solution: Turn, *, text: str | None = None) -> bool | None:
    """Record what a solution says and what the oracle knows of it, without any reward.

    Returns whether the answer is right. None where the problem has no answer to compare with, and where grading failed;
    then the turn fails too. ``text``: the solution, if it is not all of the turn.
    """
    grade = None
    is_an_environments = isinstance(task.grader, NoGrader)  # the grade is then an error, which says who plays it
    if task.gradable or is_an_environments:
        grade = await roles.grade(task, solution, text=text)

    parsed = solution.parsed
    solution.add_finding(PROBLEM, task.prompt)
    if parsed.ok:
        solution.add_finding(STEPS, [(step.start, step.end, step.text) for step in parsed.steps])
    show_answer(solution)

    if grade is None:
        return None
    if grade.value is None:
        solution.fail(grade.reason or "ungraded")
        return None

    solution.add_metadata(CORRECT, grade.value)
    solution.add_metadata(GOLD, task.gold)
    if not parsed.ok:
        return grade.value
    step_verdicts = task.grade_steps(tuple(step.text for step in parsed.steps))
    if step_verdicts is not None:
        solution.add_metadata(STEP_OK, step_verdicts.ok)
        solution.add_metadata(STEP_REASONS, step_verdicts.reasons)
        solution.add_metadata(FIRST_WRONG, step_verdicts.first_wrong)
    return grade.value


def show_answer(solution: Turn) -> None:
    """Record the answer that a solution gives, or why it cannot be read."""
    if solution.parsed.ok:
        solution.add_finding(ANSWER, solution.parsed.answer)
    else:
        solution.add_finding(FAILURE, solution.parsed.reason)


StepRewards = Literal["none", "oracle", "verifier"]  # who judges steps; a verifier has to be in the protocol
STEP_REWARDS: tuple[str, ...] = get_args(StepRewards)


def check_step_rewards(step_rewards: str, oracle_noise: float) -> None:
    """Raise UnknownName or ConfigError for what ``solve`` does not take."""
    if step_rewards not in STEP_REWARDS:
        raise UnknownName("step_rewards", step_rewards, STEP_REWARDS)
    is_chance = 0.0 <= oracle_noise <= 1.0
    has_oracle = step_rewards == "oracle"
    if not is_chance or (oracle_noise and not has_oracle):
        raise ConfigError(
            f"oracle_noise is {oracle_noise} and step rewards come from {step_rewards!r}; expected a chance in [0, 1], "
            "and the oracle where it is not 0",
            code="E_ORACLE_NOISE",
        )


@gives(*SOLVED, once=("solver",))
async def solve(task: Task, roles: Roles, *, step_rewards: StepRewards = "none", oracle_noise: float = 0.0) -> Turn:
    """The solver answers; its reward ``outcome`` is 1 when the answer is right, else 0. Returns the solver's turn.

    ``step_rewards="oracle"`` adds the oracle's ±1 on each step as reward ``step``: the ceiling of any verifier. Each of
    these is flipped with the chance ``oracle_noise``, so that it stands for a verifier of known skill; a step that is
    flipped at one chance is flipped at every larger one.

    Whoever judges steps, a solution that cannot be read counts as one wrong step. If it earned nothing, breaking the
    format would beat many wrong steps.
    """
    check_step_rewards(step_rewards, oracle_noise)
    solution = await roles.solver(problem=task.prompt)
    is_right = await examine(task, roles, solution)
    if is_right is None:
        return solution

    solution.reward(OUTCOME, float(is_right))
    solution.reward(FORMAT, solution.parsed.format_score)
    if step_rewards == "none":
        return solution
    if not solution.parsed.ok:
        if solution.text:
            solution.reward(STEP, -1.0, span=Span(start=0, end=len(solution.text), text=solution.text))
        return solution
    if step_rewards == "oracle":
        _reward_steps_by_oracle(task, solution, oracle_noise)
    return solution


def _reward_steps_by_oracle(task: Task, solution: Turn, noise: float) -> None:
    """±1 for each step of which the oracle knows whether it is right, flipped with the chance ``noise``."""
    rng = rng_of("oracle noise", task.id, solution.id)
    steps_ok = STEP_OK.of(solution) or ()
    for step, is_right in zip(solution.parsed.steps, steps_ok, strict=False):
        is_flipped = rng.random() < noise
        said_right = is_right != is_flipped
        solution.reward(STEP, 1.0 if said_right else -1.0, span=include_closing_tag(step, solution))


async def attempts(task: Task, roles: Roles, n: int, *, role: str = "solver", problem: str | None = None) -> list[Turn]:
    """``n`` answers of a role, with the truth as metadata; those whose grading failed are left out.

    ``problem``: what is asked, by default the task's prompt.
    """
    question = task.prompt if problem is None else problem
    turns = []
    for turn in await getattr(roles, role).many(n, problem=question):
        is_right = await examine(task, roles, turn)
        grading_failed = is_right is None and task.gradable
        if not grading_failed:
            turn.add_finding(PROBLEM, question)
            turns.append(turn)
    return turns


async def continue_from(chat: Conversation, beginning: str) -> Turn:
    """The role goes on from a beginning of its answer, which is given."""
    if beginning:
        chat.assistant(beginning)
    return await chat.say()


def plurality_answer(turns: Sequence[Turn]) -> str | None:
    """The answer that most of these solutions give; of equals the one that came first; None when none could be read."""
    votes = Counter(turn.parsed.answer for turn in turns if turn.parsed.ok)
    if not votes:
        return None
    return max(votes, key=lambda answer: votes[answer])


def include_closing_tag(step: Span, solution: Turn) -> Span:
    """A step with its closing tag, where its reward is paid: a step may be empty, its tag never is."""
    is_free_text = solution.tagged_text is not solution.text
    if is_free_text:  # its steps are lines, which have no tag and are never empty
        return step
    return Span(start=step.start, end=step.end + len(CLOSING), text=step.text + CLOSING)
