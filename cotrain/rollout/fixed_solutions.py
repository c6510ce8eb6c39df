"""Judging given solutions step by step with a verifier: the rows of ProcessBench and PRMBench.

What came of each is one row (read by ``metrics/suites.py``). Left out: grading; of given solutions the truth is given
too.
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
from cotrain.rollout.judges import guarded_fields
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.runner import Roles, RolloutRunner


def judge_fixed_solutions(
    executor: RolloutRunner, samples: Sequence[FixedSolution], verifier: str, reviews: int, *, step: int, split: str
) -> list[Mapping[str, Any]]:
    """A verifier's rows, one for each solution: by one greedy review, or the plurality of several sampled ones."""
    solutions_by_id = {sample.id: sample for sample in samples}
    grader = NoGrader(reason="not asked")
    tasks = [Task(id=s.id, prompt=s.problem, gold=None, solution=None, difficulty=0.0, grader=grader) for s in samples]
    reader = executor.greedy_copy() if reviews == 1 else executor
    judge = partial(judge_steps, given=solutions_by_id, verifier=verifier, n=reviews)
    episodes = reader.collect(judge, tasks, step=step, split=split, group_size=1)
    return [_judged_row(solutions_by_id[e.task_id], e) for e in episodes]


def judge_fields(sample: FixedSolution, *, guarded: bool) -> dict[str, Any]:
    """The fields of a judge's prompt on this solution. ``guarded``: its template wants the solution between markers."""
    answer = final_answer(sample.steps[-1])
    text = "".join(f"<step>{step}</step>" for step in sample.steps) + (f"<answer>{answer}</answer>" if answer else "")
    fields = guarded_fields(make_nonce(0, sample.id), solution=text) if guarded else {"solution": text}
    return {"problem": sample.problem, "count": len(sample.steps), **fields}


async def judge_steps(task: Task, roles: Roles, *, given: dict[str, FixedSolution], verifier: str, n: int) -> None:
    """The verifier judges each step of a given solution."""
    sample, judge = given[task.id], getattr(roles, verifier)
    try:
        turns = await judge.many(n, **judge_fields(sample, guarded="nonce" in judge.fields))
    except TooLong:
        return
    for turn in turns:
        show_verdict(turn)


def _judged_row(sample: FixedSolution, episode: Episode) -> dict[str, Any]:
    first = [_first_wrong(trace) for trace in episode.traces]
    votes = Counter(index for index in first if index is not None)
    failures = [reason for t in episode.traces if (reason := FAILURE.of(t))]
    marked = {} if sample.wrong is None else _step_marks(sample, episode)
    return marked | {
        "id": sample.id,
        "split": sample.split,
        "problem": sample.problem,
        "label": sample.label,
        "prediction": max(votes, key=lambda index: votes[index]) if votes else None,
        "final_answer_correct": sample.final_answer_correct,
        "finals": [FINAL.of(t) for t in episode.traces],
        "scores": [SCORE.of(t) for t in episode.traces],
        "failure": episode.failure or next(iter(failures), None if episode.traces else "prompt too long"),
        "texts": [t.text for t in episode.traces],
    }


def _step_marks(sample: FixedSolution, episode: Episode) -> dict[str, Any]:
    """The truth of every step beside the majority of verdicts on it; a tie is no objection."""
    read = [said for t in episode.traces if (said := VERDICTS.of(t))]
    steps = [2 * sum(map(bool, verdicts)) >= len(read) for verdicts in zip(*read, strict=True)] if read else None
    return {"wrong": list(sample.wrong or ()), "count": len(sample.steps), "steps": steps}


def _first_wrong(trace: Trace) -> int | None:
    """The first step called wrong, −1 for none, None where no step was judged."""
    steps = VERDICTS.of(trace)
    return next((i for i, ok in enumerate(steps) if not ok), -1) if steps else None
