"""Judging given solutions step by step with a verifier: the rows of ProcessBench and PRMBench.

Each solution gives one row, which ``metrics/suites.py`` reads. Left out: grading, for the truth comes with a solution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cotrain.core.errors import TooLong
from cotrain.core.notes import FAILURE, FINAL, SCORE, VERDICTS
from cotrain.core.seeding import make_nonce
from cotrain.core.types import Episode, NoGrader, Task, Trace
from cotrain.data.processbench import FixedSolution
from cotrain.formats.answers import final_answer
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.runner import CollectHeldOut, Roles, RolloutRunner
from cotrain.rollout.verifier_roles import guarded_fields


def judge_fixed_solutions(
    runner: RolloutRunner,
    samples: Sequence[FixedSolution],
    verifier: str,
    reviews: int,
    *,
    split: str,
    collect: CollectHeldOut,
) -> list[Mapping[str, Any]]:
    """A verifier's rows, one for each solution: by one greedy review, or the plurality of several sampled ones."""
    samples_by_id = {sample.id: sample for sample in samples}
    grader = NoGrader(reason="not asked")
    tasks = [
        Task(id=sample.id, prompt=sample.problem, gold=None, solution=None, difficulty=0.0, grader=grader)
        for sample in samples
    ]
    is_greedy = reviews == 1
    judging_runner = runner.greedy_copy() if is_greedy else runner
    what = "greedy" if is_greedy else "sampled"
    protocol = partial(judge_steps, given=samples_by_id, verifier=verifier, n=reviews)
    episodes = collect(judging_runner, protocol, tasks, split=split, group_size=1, what=what)
    return [_row_of(samples_by_id[episode.task_id], episode) for episode in episodes]


def verifier_fields(sample: FixedSolution, *, guarded: bool) -> dict[str, Any]:
    """The fields of a verifier's prompt on this solution. ``guarded``: its template wants the solution between
    markers."""
    text = "".join(f"<step>{step}</step>" for step in sample.steps)
    answer = final_answer(sample.steps[-1])
    if answer:
        text += f"<answer>{answer}</answer>"
    fields = {"solution": text}
    if guarded:
        fields = guarded_fields(make_nonce(0, sample.id), solution=text)
    return {"problem": sample.problem, "count": len(sample.steps), **fields}


async def judge_steps(task: Task, roles: Roles, *, given: dict[str, FixedSolution], verifier: str, n: int) -> None:
    """The verifier judges each step of a given solution."""
    handle = getattr(roles, verifier)
    fields = verifier_fields(given[task.id], guarded="nonce" in handle.fields)
    try:
        turns = await handle.many(n, **fields)
    except TooLong:
        return  # a row without a verdict
    for turn in turns:
        show_verdict(turn)


def _row_of(sample: FixedSolution, episode: Episode) -> dict[str, Any]:
    traces = episode.traces
    row: dict[str, Any] = {}
    if sample.wrong is not None:
        row |= _step_columns(sample, episode)
    row |= {
        "id": sample.id,
        "split": sample.split,
        "problem": sample.problem,
        "label": sample.label,
        "prediction": _predicted_first_wrong(traces),
        "final_answer_correct": sample.final_answer_correct,
        "finals": [FINAL.of(trace) for trace in traces],
        "scores": [SCORE.of(trace) for trace in traces],
        "failure": _failure_of(episode),
        "texts": [trace.text for trace in traces],
    }
    return row


def _predicted_first_wrong(traces: Sequence[Trace]) -> int | None:
    """The first wrong step by the plurality of reviews; −1 for none, None where no review judged steps."""
    votes: Counter[int] = Counter()
    for trace in traces:
        first_wrong = _first_wrong(trace)
        if first_wrong is not None:
            votes[first_wrong] += 1
    if not votes:
        return None
    return max(votes, key=lambda index: votes[index])


def _failure_of(episode: Episode) -> str | None:
    """Why there is no verdict, or not from all reviews; None where nothing failed."""
    if episode.failure:
        return episode.failure
    if not episode.traces:
        return "prompt too long"
    failures = [FAILURE.of(trace) for trace in episode.traces]
    return next((failure for failure in failures if failure), None)


def _step_columns(sample: FixedSolution, episode: Episode) -> dict[str, Any]:
    """The truth of every step beside the majority of verdicts on it; a tie is no objection."""
    all_verdicts = [VERDICTS.of(trace) for trace in episode.traces]
    readable = [verdicts for verdicts in all_verdicts if verdicts]
    steps = None
    if readable:
        steps = [2 * sum(map(bool, verdicts)) >= len(readable) for verdicts in zip(*readable, strict=True)]
    return {"wrong": list(sample.wrong or ()), "count": len(sample.steps), "steps": steps}


def _first_wrong(trace: Trace) -> int | None:
    """The first step called wrong, −1 for none, None where no step was judged."""
    verdicts = VERDICTS.of(trace)
    if not verdicts:
        return None
    for index, is_right in enumerate(verdicts):
        if not is_right:
            return index
    return -1
