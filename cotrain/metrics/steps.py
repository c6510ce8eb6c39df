"""One flat row a training step: what each role said and earned, against the truth.

Keys are ``{role}/…`` for what was sampled, ``{objective}/…`` for credit and ``{policy}/…`` for what was learned;
``table`` has a line for each. Every function takes the traces of one role in one step; what is undefined is left out.
Tokens and lengths are those of training sequences. Answers, verdicts, rewards and notes are those of trajectories: one
value for all that was paid as one (``heldout.trajectories_in``).
Nothing depends on the clock, so that a resumed run writes the same row; seconds stand in ``timings.jsonl``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cotrain.core.entropy import nats_of
from cotrain.core.late import np
from cotrain.core.notes import (
    ANSWER,
    CALLS,
    CORRECT,
    FAILURE,
    FINAL,
    MEASURED,
    PAYER_SAID,
    PROBLEM,
    STEP_OK,
    STEPS,
    VERDICTS,
)
from cotrain.core.types import BROKEN_OFF, TOO_LONG, Episode, Trace, kind_of_failure
from cotrain.metrics.clusters import sums_of
from cotrain.metrics.heldout import BASE_RATE, CALLED_RIGHT, GAP, WRONG_STEP, review_counts, trajectories_in
from cotrain.metrics.verdicts import (
    MCC,
    MCC_UNDEFINED,
    answer_agreement,
    elected_index,
    rate_statistics,
    unanimous_share,
)

MetricsRow = dict[str, float | int | str]
Figures = dict[str, float]
# Reasons of ``formats/solutions.py``.
STEP_REASONS = frozenset({"step count", "step order", "no steps", "bad step verdict", "unclosed step"})
QUANTILES = (10, 50, 90)  # per cent
AT_MAX = 1e-3  # a reward this near to the largest of its step is at the maximum
RATES = {  # rates of a verifier, at every step
    **{
        f"{prefix}{name}": rate_statistics(prefix)[f"{prefix}{name}"]
        for prefix in ("", "step_")
        for name in ("balanced_accuracy", "true_positive_rate", "true_negative_rate")
    },
    "mcc": MCC,
    "mcc_undefined": MCC_UNDEFINED,
    "predicted_positive": CALLED_RIGHT,
    "base_rate": BASE_RATE,
    "right_verdict_wrong_step": WRONG_STEP,
}


def role_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> MetricsRow:
    """Figures of every role that spoke in these episodes."""
    row: MetricsRow = {}
    failures: Counter[str] = Counter(e.failure for e in episodes if e.failure)
    trajectories = [trajectory for episode in episodes for trajectory in trajectories_in(episode)]
    for role in roles:
        sequences = [t for e in episodes for t in e.traces if t.role == role]
        if sequences:
            own_trajectories = [t for t in trajectories if t.role == role]
            figures = role_figures(sequences, own_trajectories)
            row |= {f"{role}/{name}": value for name, value in figures.items()}
            failures.update(f"{role}: {kind_of_failure(t.failure)}" for t in own_trajectories if t.failure)

    for reason, count in sorted(failures.items()):
        row[f"failures/{reason}"] = count
    if broken := sum(e.failure not in (None, TOO_LONG) for e in episodes):
        row["broken_off"] = broken / len(episodes)
    return row


def role_figures(sequences: Sequence[Trace], trajectories: Sequence[Trace]) -> Figures:
    """All figures of a role, by name, from its training sequences and its trajectories."""
    row = text_figures(sequences) | failure_figures(trajectories)
    if gives_verdicts(trajectories):
        row |= verdict_rates(trajectories) | review_figures(trajectories) | audit_figures(trajectories)
    elif not comments_on_traces(trajectories):
        row |= accuracy_figures(trajectories) | answer_figures(trajectories)
    row |= reward_figures(trajectories) | reward_coverage(trajectories) | score_figures(trajectories)
    return row | length_figures(sequences) | metadata_figures(trajectories)


def failure_figures(trajectories: Sequence[Trace]) -> Figures:
    """``failed``: the share of trajectories that are not learned from, as an agent that raised or a review that was not
    to be had; those of an episode that broke off are counted there. {} where there is none."""
    failed = sum(trajectory.failure not in (None, BROKEN_OFF) for trajectory in trajectories)
    return {"failed": failed / len(trajectories)} if failed else {}


def comments_on_traces(traces: Sequence[Trace]) -> bool:
    """Whether this role comments on other traces. A refinement has a parent too, but it answers a problem, whether or
    not its answer can be read."""
    about = any(t.parent is not None or t.score is not None for t in traces)
    return about and not any(PROBLEM.is_in(t) or ANSWER.is_in(t) for t in traces)


def gives_verdicts(traces: Sequence[Trace]) -> bool:
    """Whether it gives verdicts on them."""
    return comments_on_traces(traces) and any(FINAL.is_in(t) or FAILURE.is_in(t) for t in traces)


def text_figures(traces: Sequence[Trace]) -> Figures:
    """Turns, tokens, what was cut off and what could not be read, and how calls of tools ended."""
    n = len(traces)
    tokens = sum(t.sampled_count for t in traces)
    reasons = [FAILURE.of(trace) for trace in traces]
    unread = Counter(reason for reason in reasons if reason)
    called = Counter[str]()
    for trace in traces:
        called.update(CALLS.of(trace) or ())
    return {
        "traces": n,
        "tokens": tokens,
        "length": tokens / n,
        "truncated": sum(t.finish == "length" for t in traces) / n,
        "parse_failures": sum(unread.values()) / n,
        **{f"parse_failure/{reason}": count for reason, count in sorted(unread.items())},
        **{f"call/{outcome}": count for outcome, count in sorted(called.items())},
        **entropy_figures(traces),
    }


def entropy_figures(traces: Sequence[Trace]) -> Figures:
    """``entropy``: mean over sampled tokens of the entropy of the distribution that each was drawn from, in nats, read
    from the levels of the ledger; {} where no engine told it (programs, other servers)."""
    with_entropies = [t for t in traces if t.entropies]
    # given tokens have level 0, which adds nothing
    levels = Counter(level for t in with_entropies for level in t.entropies)
    tokens = sum(t.sampled_count for t in with_entropies)
    total = sum(nats_of(level) * count for level, count in sorted(levels.items()))
    return {"entropy": total / tokens} if tokens else {}


def accuracy_figures(traces: Sequence[Trace]) -> Figures:
    """Right answers and right steps, how many steps a solution has, and how faithful right answers are. Steps are
    counted where an answer was read, whether or not anybody knows which of them are right."""
    row: Figures = {}
    grades = [CORRECT.of(trace) for trace in traces]
    graded = [ok for ok in grades if ok is not None]
    judged = []
    for trace in traces:
        steps = STEP_OK.of(trace)
        if steps:
            judged.append((trace, steps))
    step_counts = []
    for trace in traces:
        steps_read = STEPS.of(trace)
        if steps_read and ANSWER.is_in(trace):
            step_counts.append(len(steps_read))

    # An answer may fail after it was graded, as by a reward that is no number.
    ungraded = sum(t.failure not in (None, BROKEN_OFF) and CORRECT.of(t) is None for t in traces)
    nobody_grades = not graded and any(t.failure is None for t in traces)
    if (graded or ungraded) and not nobody_grades:
        row["ungraded"] = ungraded / (len(graded) + ungraded)
    if graded:
        row["accuracy"] = _mean(graded)
    if judged:
        row["step_accuracy"] = _mean([ok for _, steps in judged for ok in steps])
    if step_counts:
        row["steps"] = _mean(step_counts)
    if right := [all(steps) for t, steps in judged if CORRECT.of(t)]:
        row["sound_when_correct"] = _mean(right)
    return row


def answer_figures(traces: Sequence[Trace]) -> Figures:
    """Over the problems with two or more readable answers, compared as text: how many differ, the majority's share,
    that share where the majority is right and where it is wrong, and how often it is right."""
    tasks: dict[int, list[Trace]] = {}
    for trace in traces:
        if ANSWER.of(trace) is not None:
            tasks.setdefault(trace.address.task, []).append(trace)
    majorities = [_majority_of(spoken) for spoken in tasks.values() if len(spoken) > 1]
    if not majorities:
        return {}
    row = {
        "distinct_answers": _mean([distinct for distinct, _, _ in majorities]),
        "majority_share": _mean([share for _, share, _ in majorities]),
    }
    for name, expected in (("right", True), ("wrong", False)):
        if shares := [share for _, share, right in majorities if right is expected]:
            row[f"majority_share/{name}"] = _mean(shares)
    if majority_truths := [right for _, _, right in majorities if right is not None]:
        row["majority_accuracy"] = _mean(majority_truths)
    return row


def _majority_of(traces: Sequence[Trace]) -> tuple[int, float, bool | None]:
    """Distinct answers, share of the most frequent one, and whether that is right, None where nobody knows."""
    given_answers = [str(ANSWER.of(t)) for t in traces]
    winner = elected_index(given_answers)
    return *answer_agreement(given_answers), None if winner is None else CORRECT.of(traces[winner])


def verdict_rates(traces: Sequence[Trace]) -> Figures:
    """A verifier's figures against the truth, without intervals."""
    total = sums_of(review_counts(traces))
    figures = {name: float(rate(total)) for name, rate in RATES.items()}
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def review_figures(traces: Sequence[Trace]) -> Figures:
    """``aligned``: share of reviews with one verdict for each step, as far as their steps go (what else makes a review
    unreadable does not count). ``unanimous``: share of solutions whose readable reviews, two or more, say the same; at
    1 the reviews of a solution teach nothing."""
    row: Figures = {}
    reasons = [FAILURE.of(t) for t in traces]
    if any(VERDICTS.of(t) for t in traces) or STEP_REASONS.intersection(filter(None, reasons)):
        row["aligned"] = _mean([reason not in STEP_REASONS for reason in reasons])
    verdicts: dict[str, list[bool]] = {}
    for trace in traces:
        final = FINAL.of(trace)
        if trace.parent is not None and final is not None:
            verdicts.setdefault(trace.parent, []).append(final)
    if (agreed := unanimous_share(list(verdicts.values()))) is not None:
        row["unanimous"] = agreed
    return row


def audit_figures(traces: Sequence[Trace]) -> Figures:
    """Figures of a hidden audit: how often the paying judge calls the audited answers right, and how often the auditor
    does, over the verdicts that can be read. It needs no truth. {} for any other judge."""
    payer = []
    auditor = []
    for trace in traces:
        payer_said = PAYER_SAID.of(trace)
        auditor_said = FINAL.of(trace)
        if payer_said is not None and auditor_said is not None:
            payer.append(payer_said)
            auditor.append(float(auditor_said))
    if not payer:
        return {}
    return {"audit/payer": _mean(payer), "audit/auditor": _mean(auditor), "audit/answers": float(len(payer))}


def reward_figures(traces: Sequence[Trace]) -> Figures:
    """The mean of each signal; of signals for whole traces also ``right`` and ``wrong``, the mean where the answer (of
    a judge: the answer it judges) is truly right or wrong, and ``at_max``, the share of values at the step's
    largest."""
    row: Figures = {}
    every: dict[str, list[float]] = {}
    whole: dict[str, list[tuple[float, Trace]]] = {}
    for trace in traces:
        for signal in trace.rewards:
            every.setdefault(signal.name, []).append(signal.value)
            if signal.tokens is None:
                whole.setdefault(signal.name, []).append((signal.value, trace))

    for name, values in sorted(every.items()):
        row[f"reward/{name}"] = _mean(values)
    for name, pairs in sorted(whole.items()):
        top = max(value for value, _ in pairs) - AT_MAX
        row[f"reward/{name}/at_max"] = _mean([value >= top for value, _ in pairs])
        row |= _by_truth(f"reward/{name}", pairs)
    return row


def reward_coverage(traces: Sequence[Trace]) -> Figures:
    """``given`` of each signal for whole traces: the share of the traces that have it, where others have none."""
    counts = Counter(signal.name for trace in traces for signal in trace.rewards if signal.tokens is None)
    shares = {name: count / len(traces) for name, count in sorted(counts.items())}
    return {f"reward/{name}/given": share for name, share in shares.items() if share < 1.0}


def score_figures(traces: Sequence[Trace]) -> Figures:
    """``score``: mean of what a scoring policy says (a logit), all in all and where the answer is right or wrong."""
    scored = [(trace.score, trace) for trace in traces if trace.score is not None]
    return {"score": _mean([score for score, _ in scored]), **_by_truth("score", scored)} if scored else {}


def length_figures(traces: Sequence[Trace]) -> Figures:
    """Sampled tokens: ``length/p10``, ``p50``, ``p90`` (interpolated), ``length/right`` and ``length/wrong``."""
    counts = [(float(trace.sampled_count), trace) for trace in traces]
    cuts = np.percentile([count for count, _ in counts], QUANTILES)
    row = {f"length/p{q}": float(cut) for q, cut in zip(QUANTILES, cuts, strict=True)}
    return row | _by_truth("length", counts)


def metadata_figures(traces: Sequence[Trace]) -> Figures:
    """``metadata/{name}``: mean of every number or boolean in the metadata of a trace that has no metric of its own,
    over the traces that have it; ``label_right`` is the accuracy of a pseudo-label."""
    values_by_name: dict[str, list[float]] = {}
    for trace in traces:
        for name, value in trace.metadata.items():
            if name not in MEASURED and isinstance(value, bool | int | float):
                values_by_name.setdefault(name, []).append(float(value))
    return {f"metadata/{name}": _mean(values) for name, values in sorted(values_by_name.items())}


def reward_gap(episodes: Sequence[Episode]) -> float | None:
    """Return the rate of CORRECT verdicts minus the rate of right solutions, over readable reviews. Positive when the
    solver is believed more than it deserves. None when nothing was judged. Verdicts on other reviews or on questions do
    not count, and neither do those of a hidden audit, which pay nobody."""
    total = review_counts([t for e in episodes for t in _reviews_of_solutions(trajectories_in(e))])
    gap = float(GAP(sums_of(total))) if total else math.nan
    return None if math.isnan(gap) else gap


def _reviews_of_solutions(traces: Sequence[Trace]) -> list[Trace]:
    """Turns of one episode about a graded answer, and those about a turn that is not among these. Left out are turns
    about a verdict, and about what has no answer, as a question, and verdicts of a hidden audit."""
    by_id = {str(trace.address): trace for trace in traces}

    def is_solution(about: Trace) -> bool:
        return CORRECT.of(about) is not None and not FINAL.is_in(about)

    reviews = [t for t in traces if t.parent is not None and not PAYER_SAID.is_in(t)]
    return [t for t in reviews if t.parent not in by_id or is_solution(by_id[t.parent])]


def credit_row(objective: str, figures: Mapping[str, float], dropped: Mapping[str, int], samples: int) -> MetricsRow:
    """Return the figures of credit, and the number of samples it made, as a row of metrics. Traces and rewards are put
    under ``credit/``: a role and an objective may have one name."""
    row: MetricsRow = {}
    for key, value in figures.items():
        if key == "traces" or key.startswith("reward/"):
            row[f"{objective}/credit/{key}"] = value
        else:
            row[f"{objective}/{key}"] = value
    row[f"{objective}/credit/samples"] = samples
    for reason, count in dropped.items():
        row[f"{objective}/dropped/{reason}"] = count
    return row


def learner_row(policy: str, figures: Mapping[str, float]) -> MetricsRow:
    """The report of a learner as metrics; seconds go to ``timings.jsonl``."""
    row: MetricsRow = {}
    for key, value in figures.items():
        if key == "tokens":
            row[f"{policy}/learned_tokens"] = value
        elif not key.endswith("seconds"):
            row[f"{policy}/{key}"] = value
    return row


def _by_truth(key: str, values: Sequence[tuple[float, Trace]]) -> Figures:
    """Means apart by whether the answer is truly right."""
    sides: dict[str, list[float]] = {"right": [], "wrong": []}
    for value, trace in values:
        if (correct := CORRECT.of(trace)) is not None:
            sides["right" if correct else "wrong"].append(value)
    return {f"{key}/{side}": _mean(mine) for side, mine in sides.items() if mine}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# -- What a run has spent, and how far it has come by that.


def flops_of(row: Mapping[str, Any]) -> int:
    """All operations of one row of metrics.jsonl."""
    return sum(count for key, count in row.items() if "/flops/" in key)


def budget_share(ends: Mapping[str, Any], spent: Mapping[str, float]) -> float:
    """How much of a run is over, in [0, 1]. ``ends`` are its settings, of which "steps", "tokens", "flops" and
    "seconds" count (None: no such end); the first that is reached ends it. ``spent`` is in "batches", "tokens",
    "flops" and "seconds"."""
    shares = []
    for end_name, spent_name in (
        ("steps", "batches"),
        ("tokens", "tokens"),
        ("flops", "flops"),
        ("seconds", "seconds"),
    ):
        end = ends.get(end_name)
        if end:
            shares.append(spent.get(spent_name, 0.0) / end)
    return min(1.0, max(shares, default=0.0))
