"""Protocols that several methods share: solving a problem, and solving it before a verifier.

A protocol is ordinary asynchronous Python over roles. What it writes as a *reward* may be trained on; what it writes
as a *note* is ground truth for telemetry and evaluation, and no algorithm reads it.
"""

from __future__ import annotations

from cotrain.core.types import Span, Task
from cotrain.play.executor import Roles
from cotrain.play.role import Turn

CLOSING = "</step>"


async def solve(task: Task, roles: Roles, *, step_rewards: str = "none") -> Turn:
    """The solver answers; its reward ``outcome`` is 1 when the answer is right, else 0.

    ``step_rewards="oracle"`` adds the oracle's ±1 on each step as reward ``step``: the ceiling of any verifier.
    Returns the solver's turn.
    """
    solution = await roles.solver(problem=task.prompt)
    grade = await roles.grade(task, solution.text)
    parsed = solution.parsed
    solution.show(problem=task.prompt)
    if parsed.ok:
        solution.show(steps=[[s.start, s.end, s.text] for s in parsed.steps], answer=parsed.answer)
    else:
        solution.show(failure=parsed.reason)
    if grade.value is None:
        solution.fail(grade.reason or "ungraded")
        return solution
    solution.reward("outcome", float(grade.value))
    solution.reward("format", parsed.format_score)
    solution.note(correct=grade.value, gold=task.answer)
    judged = task.judge_steps(tuple(s.text for s in parsed.steps)) if parsed.ok else None
    if judged is not None:
        solution.note(step_ok=list(judged.ok), step_reasons=list(judged.reasons), first_wrong=judged.first_wrong)
        if step_rewards == "oracle":
            for span, ok in zip(parsed.steps, judged.ok, strict=True):
                solution.reward("step", 1.0 if ok else -1.0, span=_closed(span))
    return solution


async def solve_then_verify(task: Task, roles: Roles, *, reviews: int = 1, step_rewards: str = "verifier") -> None:
    """The solver answers and the verifier reviews the answer ``reviews`` times (RL Tango, arXiv 2505.15034, §3).

    Verifier rewards: ``agreement`` 1 when its final verdict is the truth, ``format`` in [0, 1]; the signal ``truth``
    carries the class for balancing. An unparsed review earns no agreement and says nothing about the solution. Step
    verdicts become the solver's reward ``step`` when ``step_rewards="verifier"``; with several reviews, their mean.
    A solution that cannot be parsed has no steps to review and is not shown to the verifier.
    """
    solution = await solve(task, roles, step_rewards=step_rewards)
    if not solution.parsed.ok or solution.failed:
        return
    steps, correct = solution.parsed.steps, bool(solution.truth["correct"])
    sheets = await roles.verifier.many(
        reviews,
        group=solution.id,
        parent=solution,
        problem=task.prompt,
        solution=solution.text,
        count=len(steps),
    )
    votes: list[tuple[bool, ...]] = []
    for review in sheets:
        verdict = review.parsed
        review.reward("truth", float(correct))
        review.reward("format", verdict.format_score)
        review.reward("agreement", float(verdict.ok and verdict.final == correct))
        review.note(correct=correct, step_ok=solution.truth.get("step_ok"))
        if not verdict.ok:
            review.show(failure=verdict.reason)
            continue
        said = review.probability(verdict.final_span)
        review.show(steps=list(verdict.steps), final=verdict.final, score=said if verdict.final else 1.0 - said)
        votes.append(verdict.steps)
    if step_rewards == "verifier" and votes:
        for index, span in enumerate(steps):
            mean = sum(1.0 if vote[index] else -1.0 for vote in votes) / len(votes)
            solution.reward("step", mean, span=_closed(span))


def _closed(step: Span) -> Span:
    """A step with its closing tag, where its reward is paid: a step may be empty, its end never is."""
    return Span(start=step.start, end=step.end + len(CLOSING), text=step.text + CLOSING)
