"""Measures on held-out problems, from the episodes that were collected on them: solvers, verifiers, and one for the
other.

A ``Measure`` is a function from episodes to ``{key: Estimate}``: it counts per task, and ``clusters`` makes the
intervals. It may read the ground truth; what it makes of it goes to reports and never to an algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cotrain.core.notes import ANSWER, CORRECT, FINAL, MEASURED, SCORE, STEP_OK, VERDICTS, Metadata
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Reward, Trace, TurnRange
from cotrain.metrics.clusters import Bounded, Share, Statistic, defined_figures, make_figure, mean_of_values
from cotrain.metrics.verdicts import (
    MCC,
    MCC_UNDEFINED,
    answer_agreement,
    belief_gap,
    best_is_right,
    calibration_counts,
    calibration_error,
    confusion_counts,
    error_accuracy,
    first_error_counts,
    first_wrong,
    pass_at_k,
    processbench_f1,
    rate_statistics,
    vote_is_right,
)

Measure = Callable[[Sequence[Episode]], dict[str, Estimate]]


BASE_RATE = Share("correct", "all")
CALLED_RIGHT = Share("said", "parsed")
READ = Share("parsed", "all")
WRONG_STEP = Share("wrong_reason", "right_verdict")
GAP = Bounded(belief_gap, -1.0, 1.0, frozenset(("said", "believable", "parsed")))
CALIBRATION = Bounded(calibration_error, 0.0, 1.0, frozenset(calibration_counts(())))
STEP_RATES = ("balanced_accuracy", "true_positive_rate", "true_negative_rate", "error_f1")
VERDICTS_SHOWN: Mapping[str, Statistic] = {
    **rate_statistics(),
    "mcc": MCC,
    "mcc_undefined": MCC_UNDEFINED,
    "base_rate": BASE_RATE,
    "predicted_positive": CALLED_RIGHT,
    "calibration_error": CALIBRATION,
    **{f"step_{name}": rate_statistics("step_")[f"step_{name}"] for name in STEP_RATES},
    "first_error_accuracy": error_accuracy(),
    "processbench_f1": processbench_f1(),
    "right_verdict_wrong_step": WRONG_STEP,
    "parsed": READ,
}


def with_names(measure: Measure, *, roles: Sequence[str], figures: Iterable[str]) -> Measure:
    """Mark a measure with the roles that it reads, so that a recipe without one of them is refused, and with the names
    of all figures that it may give, so that a comparison by another one is refused before it is run."""
    vars(measure)["roles"] = tuple(roles)
    vars(measure)["figures"] = frozenset(figures)
    return measure


def measure_solver(role: str, k: int) -> Measure:
    """``pass@1``, ``pass@k``, ``majority@k`` and ``step_accuracy`` of a solver at its own temperature."""

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        counts = {task: answer_counts(traces, k) for task, traces in traces_by_task(episodes, role).items()}
        samples = sum(row["samples"] for row in counts.values())
        shares = {
            f"{role}/pass@1": make_figure(counts, Share("right", "samples"), samples),
            f"{role}/step_accuracy": make_figure(
                counts, Share("right_steps", "steps"), sum(r["steps"] for r in counts.values())
            ),
            f"{role}/parsed": make_figure(counts, Share("read", "samples"), samples),
        }
        if k > 1:
            tasks = sum(row["enough"] for row in counts.values())
            shares[f"{role}/pass@{k}"] = make_figure(counts, Share("any", "enough"), tasks)
            shares[f"{role}/majority@{k}"] = make_figure(counts, Share("vote", "enough"), tasks)
        return defined_figures(shares)

    names = ["pass@1", "step_accuracy", "parsed"]
    if k > 1:
        names += [f"pass@{k}", f"majority@{k}"]
    return with_names(measure, roles=[role], figures=[f"{role}/{name}" for name in names])


NEEDS_NO_TRUTH = ("parsed", "swap_agreement")  # figures of problems that nobody knows the answer to


def without_truth(figures: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """The held-out figures that need no truth: where no problem has an answer, none is right or wrong."""
    return {key: figure for key, figure in figures.items() if key.endswith(NEEDS_NO_TRUTH)}


def answer_agreement_of(episodes: Sequence[Episode]) -> dict[str, Estimate]:
    """``{role}/majority_share`` of every role that answers: the share of a problem's answers that are the most frequent
    one, over the problems with an answer that can be read."""
    roles = {trace.role for episode in episodes for trace in episode.traces if ANSWER.is_in(trace)}
    figures = {}
    for role in sorted(roles):
        counts = {}
        for task, traces in traces_by_task(episodes, role).items():
            read_or_none = [ANSWER.of(trace) for trace in traces]
            answers = [answer for answer in read_or_none if answer is not None]
            share = 0.0
            if answers:
                _, share = answer_agreement(answers)
            counts[task] = {"share": share, "read": float(bool(answers))}
        read = sum(row["read"] for row in counts.values())
        figures[f"{role}/majority_share"] = make_figure(counts, Share("share", "read"), read)
    return defined_figures(figures)


def measure_pass_at_k(role: str, most: int) -> Measure:
    """``pass@k`` of a solver for k = 1, 2, 4, … and ``most``, each unbiased from all samples of a task."""
    powers_of_two = [2**i for i in range(most.bit_length())]
    ks = sorted({most, *(k for k in powers_of_two if k <= most)})

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        counts = {}
        for task, traces in traces_by_task(episodes, role).items():
            n = len(traces)
            right = sum(bool(CORRECT.of(t)) for t in traces)
            row = {}
            for k in ks:
                enough = n >= k
                row[f"any@{k}"] = pass_at_k(n, right, k) if enough else 0.0
                row[f"enough@{k}"] = float(enough)
            counts[task] = row

        figures = {}
        for k in ks:
            tasks_with_enough = sum(row[f"enough@{k}"] for row in counts.values())
            share = Share(f"any@{k}", f"enough@{k}")
            figures[f"{role}/pass@{k}"] = make_figure(counts, share, tasks_with_enough)
        return defined_figures(figures)

    return with_names(measure, roles=[role], figures=[f"{role}/pass@{k}" for k in ks])


def answer_counts(traces: Sequence[Trace], k: int) -> dict[str, float]:
    """The counts of one task's solutions; ``any`` and ``vote`` where there are ``enough`` for k."""
    right = [bool(CORRECT.of(t)) for t in traces]
    steps = [ok for t in traces for ok in STEP_OK.of(t) or ()]
    enough = len(traces) >= k
    return {
        "right": float(sum(right)),
        "samples": float(len(traces)),
        "right_steps": float(sum(steps)),
        "steps": float(len(steps)),
        "read": float(sum(ANSWER.is_in(t) for t in traces)),
        "any": pass_at_k(len(traces), sum(right), k) if enough else 0.0,
        "vote": float(enough and vote_is_right([ANSWER.of(t) for t in traces[:k]], right[:k])),
        "enough": float(enough),
    }


def measure_selection(role: str, verifier: str, k: int) -> Measure:
    """``best@k`` (the solution the verifier scores highest) and ``weighted@k`` (answers weighed by the verifier's
    scores)."""

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        reviews = reviews_of(episodes, verifier)
        counts = {}
        for task, traces in traces_by_task(episodes, role).items():
            if len(traces) >= k:
                chosen = traces[:k]
                right = [bool(CORRECT.of(t)) for t in chosen]
                scores = [_mean_score(reviews.get(str(t.address), ())) for t in chosen]
                weighted = vote_is_right([ANSWER.of(t) for t in chosen], right, scores)
                counts[task] = {"best": float(best_is_right(scores, right)), "vote": float(weighted), "asked": 1.0}
        return defined_figures(
            {
                f"{role}/best@{k}": make_figure(counts, Share("best", "asked"), len(counts)),
                f"{role}/weighted@{k}": make_figure(counts, Share("vote", "asked"), len(counts)),
            }
        )

    names = [f"{role}/best@{k}", f"{role}/weighted@{k}"]
    return with_names(measure, roles=[role, verifier], figures=names)


def measure_verifier(verifier: str, gap: str = "gap") -> Measure:
    """Quality of a verifier against ground truth, on whatever solutions it was shown, at answer and at step level; and
    how much more often it says CORRECT than is true, over readable reviews, under the name ``gap``: of two verifiers
    the second one needs another."""

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        counts = {task: review_counts(traces) for task, traces in traces_by_task(episodes, verifier).items()}
        if not counts:
            return {}
        total = sum_counts(counts.values())
        figures = {
            f"{verifier}/{name}": make_figure(counts, statistic, _observation_count(statistic, name, total))
            for name, statistic in VERDICTS_SHOWN.items()
        }
        return defined_figures({**figures, gap: make_figure(counts, GAP, total["all"])})

    names = [f"{verifier}/{name}" for name in VERDICTS_SHOWN]
    return with_names(measure, roles=[verifier], figures=[*names, gap])


def measure_metadata(role: str, key: Metadata[Any], *, low: float = 0.0, high: float = 1.0) -> Measure:
    """``truth/{note}``: the mean of a note over what the role said, each trajectory once; values lie in [``low``,
    ``high``]."""
    statistic = mean_of_values(low, high)

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        counts = {}
        for task, traces in traces_by_task(episodes, role).items():
            entries = [key.of(trace) for trace in traces]
            values = [float(value) for value in entries if value is not None]
            counts[task] = {"sum": sum(values), "count": float(len(values))}
        total = sum(row["count"] for row in counts.values())
        return defined_figures({f"{role}/metadata/{key.name}": make_figure(counts, statistic, total)})

    return with_names(measure, roles=[role], figures=[f"{role}/metadata/{key.name}"])


def measure_solver_and_verifier(verifier: str, k: int = 8) -> tuple[Measure, ...]:
    """The three of them, for a solver whose solutions this role judges."""
    return measure_solver("solver", k), measure_verifier(verifier), measure_selection("solver", verifier, k)


def _observation_count(statistic: Statistic, name: str, total: Mapping[str, float]) -> float:
    """The number of judgements that a figure rests on."""
    if name == "calibration_error":
        return total["parsed"]
    if name == "processbench_f1":
        return total["errors"] + total["clean"]
    if isinstance(statistic, Share) and "f1" not in name:
        return sum(total[cell] for cell in statistic.bottom.split())
    prefix = "step_" if name.startswith("step_") else ""
    return sum(total[f"{prefix}{cell}"] for cell in ("tp", "fn", "tn", "fp"))


def review_counts(traces: Sequence[Trace]) -> dict[str, float]:
    """Return the sums of the counts of reviews; a review of which it is unknown whether it is right counts nothing."""
    return sum_counts([_review_row(trace) for trace in traces])


def _review_row(trace: Trace) -> dict[str, float]:
    truth = CORRECT.of(trace)
    verdict = FINAL.of(trace)
    has_truth = truth is not None
    row = {"all": float(has_truth), "correct": float(bool(truth)), "parsed": 0.0, "said": 0.0, "believable": 0.0}
    row |= confusion_counts([(truth, verdict)] if truth is not None else [])
    scores: list[tuple[float, bool]] = []
    if truth is not None and verdict is not None:
        score = SCORE.of(trace)
        scores.append((float(verdict) if score is None else float(score), truth))
        row |= {"parsed": 1.0, "said": float(verdict), "believable": float(truth)}
    return row | calibration_counts(scores) | _step_counts(trace, truth, verdict)


def _step_counts(trace: Trace, truth: bool | None, verdict: bool | None) -> dict[str, float]:
    """The counts of a review's step verdicts. They are 0 in a format without steps and where the steps are other ones
    (``aligned`` counts the reviews that have the same); a review that cannot be read is wrong about each step."""
    ok = STEP_OK.of(trace)
    verdicts = VERDICTS.of(trace)
    row = confusion_counts([], "step_") | dict.fromkeys(("error_hit", "errors", "clean_hit", "clean"), 0.0)
    row |= {"right_verdict": 0.0, "wrong_reason": 0.0}
    missing = not verdicts and verdict is not None
    if truth is None or not ok or missing or len(verdicts or ok) != len(ok):
        return row
    called: Sequence[bool | None] = verdicts or [None] * len(ok)
    true = first_wrong(ok)
    found_step = first_wrong(verdicts) if verdicts else None
    row |= confusion_counts(list(zip(ok, called, strict=True)), "step_")
    row |= first_error_counts(true, true == found_step and verdict is not None)
    if not truth and verdict is False and true is not None:
        row |= {"right_verdict": 1.0, "wrong_reason": float(true != found_step)}
    return row


def sum_counts(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Counts added up by name."""
    total: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            total[name] = total.get(name, 0.0) + value
    return total


def trajectories_in(episode: Episode) -> tuple[Trace, ...]:
    """One trace for each trajectory of an episode, in address order; who judges one names it by its first trace.

    A trajectory of several training sequences is joined to what no model has read, for figures alone. A reward of the
    whole counts once. Of one conversation what was shown and noted last is; of several conversations the mean of a
    number, and the last of all else.
    """
    if not any(trace.trajectory for trace in episode.traces):
        return episode.traces
    parts: dict[str, list[Trace]] = {}
    for trace in episode.traces:
        parts.setdefault(trace.trajectory_id, []).append(trace)
    names = {str(trace.address): trace.trajectory_id for trace in episode.traces}

    trajectories = []
    for traces in parts.values():
        trace = traces[0] if len(traces) == 1 else _join_sequences(traces)
        if trace.parent is not None:
            trace = replace(trace, parent=names.get(trace.parent, trace.parent))
        trajectories.append(trace)
    return tuple(trajectories)


def _join_sequences(parts: Sequence[Trace]) -> Trace:
    """The training sequences of one trajectory as one trace."""
    token_ids: list[int] = []
    logprobs: list[float] = []
    turns: list[TurnRange] = []
    rewards: list[Reward] = []
    findings: dict[str, Any] = {}
    whole: set[str] = set()  # names of rewards of the whole, each of which is kept once
    for part in parts:
        start = len(token_ids)
        for turn in part.turns or (TurnRange(start=0, end=len(part.token_ids), finish=part.finish),):
            turns.append(replace(turn, start=start + turn.start, end=start + turn.end))
        token_ids += part.token_ids
        logprobs += part.logprobs
        findings |= part.findings
        for reward in part.rewards:
            if reward.tokens is not None:
                rewards.append(reward)
            elif reward.name not in whole:
                rewards.append(reward)
                whole.add(reward.name)

    has_entropies = all(part.entropies for part in parts)
    failures = [part.failure for part in parts if part.failure]
    return replace(
        parts[0],
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        entropies=b"".join(part.entropies for part in parts) if has_entropies else b"",
        text="\n".join(part.text for part in parts),
        finish=parts[-1].finish,
        rewards=tuple(rewards),
        failure=failures[0] if failures else None,
        findings=findings,
        metadata=_join_notes(parts),
        turns=tuple(turns),
    )


def _join_notes(parts: Sequence[Trace]) -> dict[str, Any]:
    conversations: dict[int, dict[str, Any]] = {}
    for part in parts:
        conversations.setdefault(part.address.call, {}).update(part.metadata)
    values: dict[str, list[Any]] = {}
    for notes in conversations.values():
        for name, value in notes.items():
            values.setdefault(name, []).append(value)
    return {name: _mean_or_last(name, numbers) for name, numbers in values.items()}


def _mean_or_last(name: str, values: Sequence[Any]) -> Any:
    are_numbers = all(isinstance(value, bool | int | float) for value in values)
    if name in MEASURED or not are_numbers or len(set(values)) == 1:
        return values[-1]
    return sum(values) / len(values)


def traces_by_task(episodes: Sequence[Episode], role: str) -> dict[int, list[Trace]]:
    """The trajectories of a role by task, in address order; tasks without any are left out."""
    tasks: dict[int, list[Trace]] = {}
    for episode in episodes:
        tasks.setdefault(episode.task, []).extend(t for t in trajectories_in(episode) if t.role == role)
    return {task: traces for task, traces in sorted(tasks.items()) if traces}


def reviews_of(episodes: Sequence[Episode], verifier: str) -> dict[str, list[Trace]]:
    """Reviews by the address of the trajectory that they judge."""
    reviews: dict[str, list[Trace]] = {}
    for episode in episodes:
        for trace in trajectories_in(episode):
            if trace.role == verifier and trace.parent is not None:
                reviews.setdefault(trace.parent, []).append(trace)
    return reviews


def _mean_score(reviews: Sequence[Trace]) -> float:
    """Mean probability of CORRECT over the reviews of one solution; an unreadable review is ½. 0 without reviews."""
    if not reviews:
        return 0.0
    scores = []
    for review in reviews:
        score = SCORE.of(review)
        scores.append(0.5 if score is None else float(score))
    return sum(scores) / len(scores)
