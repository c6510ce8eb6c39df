"""The result of an audit, as JSON and as the lines that a terminal shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotrain.analysis.audit.judge_error import FEW_PROBLEMS, StepWindow
from cotrain.analysis.audit.labelling import LabelEstimate, LabelPlan, rates_json
from cotrain.analysis.audit.novelty import NewHabit
from cotrain.core.statistics import Estimate
from cotrain.core.verbosity import count_of, escape_terminal
from cotrain.metrics.alarms import Alarm
from cotrain.runs.foreign_files import ForeignRun

SHOWN_EXAMPLES = 3
WIDE = 110  # characters of an example


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """All figures of an audit."""

    run: ForeignRun
    truth_source: str  # in words; "" where nobody knows any truth
    reasons: Mapping[str, int]  # why answers have no truth, or count as wrong unread
    rates: Mapping[str, Estimate]  # ``judge_error.RATES``
    windows: Sequence[StepWindow]
    trends: Mapping[str, Estimate]
    alarms: Sequence[Alarm]
    habits: Sequence[NewHabit]
    disagreements: Sequence[str]  # addresses of answers where judge and truth differ, the last steps first
    differing: int  # how many there are in all
    estimate: LabelEstimate | None = None  # from labels of a sample
    plan: LabelPlan | None = None  # what to label
    notes: Sequence[str] = field(default=())

    @property
    def is_fooled_more(self) -> bool | None:
        """Whether the policy is moving to where the judge errs. None where nothing is known."""
        trend = self.trends.get("fooled")
        return None if trend is None else trend.low > 0.0

    def to_json(self) -> dict[str, Any]:
        run = self.run
        by_step = []
        for window in self.windows:
            by_step.append(
                {
                    "first": window.first,
                    "last": window.last,
                    "answers": window.answers,
                    "rates": rates_json(window.rates),
                }
            )
        return {
            "kind": run.kind,
            "files": [str(path) for path in run.paths],
            "answers": len(run.rollouts),
            "problems": len({rollout.problem for rollout in run.rollouts}),
            "steps": list(run.steps),
            "columns": run.columns.named() | {"other scores": list(run.columns.others)},
            "right_at": run.right_at,
            "not_read": dict(run.unread),
            "notes": [*run.notes, *self.notes],
            "truth": {"source": self.truth_source, "reasons": dict(self.reasons)},
            "rates": rates_json(self.rates),
            "by_step": by_step,
            "trends": {name: trend.to_json() for name, trend in self.trends.items()},
            "moving_to_where_the_judge_errs": self.is_fooled_more,
            "alarms": [alarm.to_json() for alarm in self.alarms],
            "new_and_liked": [habit.to_json() for habit in self.habits],
            "differing": self.differing,
            "disagreements": list(self.disagreements),
            "estimate": None if self.estimate is None else self.estimate.to_json(),
            "to_label": None if self.plan is None else self.plan.to_json(),
        }


def result_lines(result: AuditResult) -> list[str]:
    """The report for a terminal."""
    lines = [*_what_was_read(result), ""]
    if result.truth_source:
        lines += [*_truth_lines(result), ""]
    if result.rates:
        lines += [*_rate_lines(result.rates), "", *_window_lines(result.windows)]
        lines += ["", *_trend_lines(result)]
    elif result.estimate is None:
        lines += _nothing_known(result)
    if result.estimate is not None:
        lines += ["", *result.estimate.lines()]
    if result.plan is not None:
        lines += ["", *result.plan.lines()]
    lines += ["", *_habit_lines(result.habits), "", *_alarm_lines(result.alarms)]
    if result.disagreements:
        lines += ["", *_disagreement_lines(result)]
    return [escape_terminal(line, 2000) for line in lines]


def _what_was_read(result: AuditResult) -> list[str]:
    run = result.run
    problems = len({rollout.problem for rollout in run.rollouts})
    steps = run.steps
    reach = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]} alone"
    head = f"{run.kind}: {count_of(len(run.rollouts), 'answer')} to {count_of(problems, 'problem')}, {reach}"
    named = ", ".join(f"{meaning} from {column!r}" for meaning, column in run.columns.named().items())
    lines = [f"{head}, from {count_of(len(run.paths), 'file')}", f"read: {named}"]
    if run.right_at is not None:
        lines.append(f"the judge {run.columns.judge!r} accepts from a score of {run.right_at:g} on")
    if run.columns.others:
        lines.append(f"other scores, as cheap judges: {', '.join(map(repr, run.columns.others))}")
    if run.unread:
        columns = ", ".join(f"{name} ({rows} rows)" for name, rows in sorted(run.unread.items()))
        lines.append(f"columns not read: {columns}")
    lines += [f"note: {note}" for note in (*run.notes, *result.notes)]
    if problems < FEW_PROBLEMS:
        lines.append(f"note: with {count_of(problems, 'problem')} the intervals say little of other problems")
    return lines


def _truth_lines(result: AuditResult) -> list[str]:
    truths = [rollout.truth for rollout in result.run.rollouts if rollout.truth is not None]
    right = sum(truths)
    lines = [f"truth: {result.truth_source}: {right} right, {len(truths) - right} wrong"]
    unknown = len(result.run.rollouts) - len(truths)
    if unknown:
        lines[0] += f", {unknown} not known"
    if result.reasons:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(result.reasons.items()))
        lines.append(f"    of these: {reasons}; an answer that is not found counts as wrong")
    return lines


def _rate_lines(rates: Mapping[str, Estimate]) -> list[str]:
    sentences = (
        ("false positive rate", "false positives: it accepts {} of {} wrong answers"),
        ("false negative rate", "false negatives: it rejects {} of {} right answers"),
        ("wrong among accepted", "of {1} answers that it accepts, {0} are wrong"),
        ("right among rejected", "of {1} answers that it rejects, {0} are right"),
    )
    lines = ["how the judge fares, with 95 % intervals over problems"]
    for name, sentence in sentences:
        if name in rates:
            lines.append("    " + sentence.format(percent_text(rates[name]), rates[name].n))
    return lines


def percent_text(estimate: Estimate) -> str:
    """``24.1 % [18.0, 31.2]``."""
    return f"{100 * estimate.value:.1f} % [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def points_text(change: Estimate) -> str:
    """``+42 points [+21, +63]``."""
    return f"{100 * change.value:+.0f} points [{100 * change.low:+.0f}, {100 * change.high:+.0f}]"


def _window_lines(windows: Sequence[StepWindow]) -> list[str]:
    lines = [f"{'steps':>12s} {'answers':>8s} {'right':>7s} {'accepted':>9s}   {'false positives':22s} false negatives"]
    for window in windows:
        steps = f"{window.first}-{window.last}" if window.first != window.last else str(window.first)
        right = _short_percent(window.rates.get("right"))
        accepted = _short_percent(window.rates.get("accepted"))
        false_positives = _percent_or_dash(window.rates.get("false positive rate"))
        false_negatives = _percent_or_dash(window.rates.get("false negative rate"))
        counts = f"{steps:>12s} {window.answers:8d} {right:>7s} {accepted:>9s}"
        lines.append(f"{counts}   {false_positives:22s} {false_negatives}")
    return lines


def _percent_or_dash(rate: Estimate | None) -> str:
    return "–" if rate is None else percent_text(rate)


def _short_percent(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{100 * estimate.value:.0f} %"


def _trend_lines(result: AuditResult) -> list[str]:
    question = "is the policy moving to where the judge errs?"
    trend = result.trends.get("fooled")
    if trend is None:
        return [f"{question} Not to be told from one step, or one problem"]
    if result.is_fooled_more:
        answer = "YES"
    elif trend.high < 0.0:
        answer = "No, away from it"
    else:
        answer = "Not shown"

    lines = [
        f"{question} {answer}: answers that are accepted and wrong changed by {points_text(trend)}, from "
        "the first third of the steps to the last"
    ]
    for name in ("false positive rate", "false negative rate", "accepted", "right"):
        if name in result.trends:
            lines.append(f"    {name}: {points_text(result.trends[name])}")
    return lines


def _nothing_known(result: AuditResult) -> list[str]:
    if not result.run.columns.judge:
        return ["there is no column of a judge's scores; name it with --judge"]
    return [
        "nobody knows which of these answers are right: give their truth (--truth-column), reference answers "
        "(--gold-column, or --references FILE of questions and answers), a program (--truth-by FILE.py:FUNCTION), or "
        "label a few, which --width 0.1 --to-label FILE chooses"
    ]


def _habit_lines(habits: Sequence[NewHabit]) -> list[str]:
    if not habits:
        return ["new in what it writes, and liked by the judge: nothing that stands out"]
    lines = ["new in what it writes, and liked by the judge (share of answers at first → at the end)"]
    for habit in habits:
        lines += [f"    {line}" for line in habit.lines()]
    return lines


def _alarm_lines(alarms: Sequence[Alarm]) -> list[str]:
    if not alarms:
        return ["alarms of a run: none"]
    lines = ["alarms of a run"]
    for alarm in alarms:
        read = f"{alarm.band} ({alarm.key}: {alarm.reading}; healthy: {alarm.healthy})"
        lines.append(f"    at step {alarm.step}: {read}")
    return lines


def _disagreement_lines(result: AuditResult) -> list[str]:
    by_address = {rollout.address: rollout for rollout in result.run.rollouts}
    lines = [f"judge and truth differ on {count_of(result.differing, 'answer')}; of the last steps"]
    for address in result.disagreements[:SHOWN_EXAMPLES]:
        rollout = by_address[address]
        said = "accepted, wrong" if rollout.verdict else "rejected, right"
        lines.append(f"    {address} {said}: {_end_of(rollout.response)}")
    return lines


def _end_of(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= WIDE else f"… {plain[-WIDE:]}"
