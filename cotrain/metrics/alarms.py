"""Alarms: which series of metrics tell of a known way to go wrong, and what to do.

A band looks at one or more metrics of one role or policy over windows of rows (a row counts where it has all of them;
in an alternating schedule those are the steps at which the policy was trained) and fires when they leave it. Where it
watches a range of ``table``, it takes the limit from there: a window whose mean is not tolerable, or one of which no
row is healthy. An alarm is raised once per band and series, at the step where it first fires. Bands whose metrics a run
does not have, or has too few rows of, say nothing. The limits were set so that the sound runs of ``docs/results`` stay
silent on all but the gap.

A policy that learns nothing at all is reported sooner, by ``starved.py``.

Pure: an alarm depends on the rows alone, so a resumed run raises the same ones. Left out: alarms on evaluations.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotrain.core.errors import CotrainError
from cotrain.core.notes import CORRECT, FAILURE, FINAL, PAYER_SAID
from cotrain.core.types import Episode, Trace
from cotrain.metrics.rules import (
    AboveFromTheStart,
    Alarm,
    AlwaysAbove,
    DriftFromStart,
    FarFromBase,
    GrowingDistance,
    MeanAbove,
    MetricSeries,
    RiseAndFall,
    RisesAlone,
    Rising,
    Rule,
)
from cotrain.metrics.starved import ENOUGH_PROBLEMS, StarvationMonitor
from cotrain.metrics.table import metric_with_key

EXAMPLES = 3  # addresses with an alarm
LARGEST = 1e300  # a larger number is none
LABELS = ("class_label", "label")  # signals that name a class and pay nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One way to go wrong."""

    name: str  # unique
    keys: tuple[str, ...]  # keys of the table, all for the role or policy that the first one names
    window: int  # rows
    rule: Rule
    advice: str = ""  # one sentence; by default that of the first metric
    early: str = ""  # the same where fewer rows than the window have spoken
    reading_format: str = "{:.2f}"  # how a reading is written
    problems: int = 0  # that must have been trained on before it says anything
    wrong: Callable[[Trace, str], bool] | None = None  # whether a rollout, given the signal's name, is an example

    @property
    def healthy_text(self) -> str:
        """The range in words."""
        return self.rule.healthy_text(self.window)

    @property
    def what_to_do(self) -> str:
        return self.advice or metric_with_key(self.keys[0]).advice


# ---- rollouts that show it


def _believes_wrong(trace: Trace, name: str) -> bool:
    """A verdict CORRECT on a wrong answer."""
    return FINAL.of(trace) is True and CORRECT.of(trace) is False


def _pays_wrong(trace: Trace, name: str) -> bool:
    """Paid, and wrong: a wrong answer, or a verdict that is not the truth."""
    truth = CORRECT.of(trace)
    said = FINAL.of(trace)
    unread = trace.parent is not None and FAILURE.is_in(trace)
    mistaken = truth is False if said is None else said is not truth
    return mistaken and not unread and truth is not None and any(s.name == name for s in trace.rewards)


def _payer_alone_believes(trace: Trace, name: str) -> bool:
    """An audit that calls wrong what most reviews of the paying judge call right."""
    payer_said = PAYER_SAID.of(trace)
    return FINAL.of(trace) is False and payer_said is not None and payer_said > 0.5


BASE_RATE = metric_with_key("{role}/base_rate")
GAP = metric_with_key("gap")
BANDS = (
    Band(
        name="groups without spread", keys=("{objective}/zero_spread_groups",), window=20,
        rule=AlwaysAbove(metric_with_key("{objective}/zero_spread_groups").healthy[1]),
    ),
    Band(
        name="one-sided verdicts", keys=("{role}/predicted_positive", "{role}/base_rate"), window=10,
        rule=FarFromBase(0.3, *BASE_RATE.healthy),
        advice="The verifier follows no evidence: balance its classes, or give it problems with more of the rare "
            "class.",
    ),
    Band(name="rising gap", keys=("gap",), window=10, rule=Rising(0.1, GAP.healthy[1]), wrong=_believes_wrong),
    Band(
        name="drifting number of steps", keys=("{role}/steps",), window=10, rule=DriftFromStart(0.7, 1.3),
        reading_format="{:.2f} times the first 10 steps'",
        advice="Solutions are cut up differently than at the start: check that step rewards are divided by the "
            "number of steps.",
    ),
    Band(
        name="unreadable reviews", keys=("{role}/parse_failures", "{role}/base_rate"), window=10,
        rule=MeanAbove(metric_with_key("{role}/parse_failures").tolerable[1]),
        advice="Reviews do not fit the solutions' steps: see parse_failure by reason; raise `--set "
            "roles.verifier.sampling.max_tokens=N`, raise `--verifier-format` where the recipe has it (tango, judged), "
            "or teach the format first with `cotrain teach verifier`.",
    ),
    Band(
        name="ungraded answers", keys=("{role}/ungraded",), window=5,
        rule=MeanAbove(metric_with_key("{role}/ungraded").tolerable[1]),
        advice="Answers have no grade and are left out of training: see failures by reason, the grader's or the "
            "answers'.",
    ),
    Band(
        name="unreadable answers", keys=("{role}/parse_failures", "{role}/accuracy"), window=1, rule=MeanAbove(0.5),
        advice="Most answers cannot be read and earn nothing: stop, and choose another --answer-format or --prompt, "
            "or teach the format first with `cotrain teach solver`.",
    ),
    Band(
        name="mostly unreadable reviews", keys=("{role}/parse_failures", "{role}/base_rate"), window=1,
        rule=MeanAbove(0.75),
        advice="Most reviews cannot be read, so the verifier says nothing: stop, and choose another --verdict or "
            "--verifier-prompt (a judge of pairs: another form), or teach the format first with "
            "`cotrain teach verifier`.",
    ),
    Band(
        name="episodes broken off", keys=("broken_off",), window=1, rule=MeanAbove(0.1),
        advice="Episodes in which the protocol failed are left out of training: see failures by reason and run.log, "
            "and mend the protocol.",
    ),
    Band(
        name="failed rollouts", keys=("{role}/failed",), window=1, rule=MeanAbove(0.1),
        advice="Rollouts failed and are left out of training: see failures by reason, and mend what fails.",
    ),
    Band(
        name="mostly cut off", keys=("{role}/truncated",), window=1, rule=MeanAbove(0.6),
        advice="Most texts end at the token limit, before their answer: stop, and raise `--max-tokens` (for another "
            "role than the solver `--set roles.ROLE.sampling.max_tokens=N`), or ask for shorter texts.",
    ),
    Band(
        name="constant reward", keys=("{objective}/zero_spread_groups",), window=2, rule=AboveFromTheStart(0.999),
        problems=ENOUGH_PROBLEMS,
        early="No group of the first step has two different rewards, so that step teaches nothing: if the next ones "
            "do not either, look at what is paid.",
        advice="No group has two different rewards, so nothing is learned: bring easier problems where no answer is "
            "right and harder ones where all are, and leave it where a format is paid that all of them keep.",
    ),
    Band(
        name="cut off", keys=("{role}/truncated",), window=10,
        rule=MeanAbove(metric_with_key("{role}/truncated").tolerable[1]),
    ),
    Band(
        name="collapsing entropy", keys=("{policy}/{objective}/surprisal",), window=10,
        rule=DriftFromStart(0.1, math.inf, "updates"),
        reading_format="{:.2f} times the first 10 updates'",
        advice="The policy has stopped exploring: lower the learning rate, or add an entropy or KL term.",
    ),
    Band(
        name="sampler and trainer apart", keys=("{policy}/{objective}/sampler_trainer_diff",), window=3,
        rule=MeanAbove(metric_with_key("{policy}/{objective}/sampler_trainer_diff").tolerable[1]),
        reading_format="{:.2g} nats",
    ),
    Band(
        name="left out for mismatch", keys=("{policy}/{objective}/mismatch_masked",), window=3,
        rule=MeanAbove(metric_with_key("{policy}/{objective}/mismatch_masked").tolerable[1]),
    ),
    Band(
        name="consensus collapse", keys=("{role}/majority_share", "{role}/majority_accuracy"), window=10,
        rule=GrowingDistance(0.3, 0.1, "accuracy of the majority", "the share that agrees"),
        reading_format="accuracy of the majority {:+.2f} since its best",
        advice="Answers agree on what is wrong: stop at the best checkpoint, and use a slower or outside "
            "labeller.",
    ),
    Band(
        name="reward hacking", keys=("{role}/reward/{signal}", "{role}/accuracy"), window=10,
        rule=RiseAndFall(0.05, 0.1, "accuracy", "the reward rises"), reading_format="accuracy {:+.2f} since its best",
        wrong=_pays_wrong,
        advice="The reward rises and the truth falls: read the rollouts, and mend or co-train what gives this reward.",
    ),
    Band(
        name="reward hacking by a judge", keys=("{role}/reward/{signal}", "{role}/balanced_accuracy"), window=10,
        rule=RiseAndFall(0.05, 0.1, "balanced accuracy", "the reward rises"),
        reading_format="balanced accuracy {:+.2f} since its best", wrong=_pays_wrong,
        advice="The verifier earns more and judges worse, so it follows the base rate: balance its classes.",
    ),
    Band(
        name="audit does not follow", keys=("{role}/audit/payer", "{role}/audit/auditor"), window=20,
        rule=RisesAlone(0.1, 0.5, "the paying judge's share of right", "the auditor's"),
        reading_format="{:+.2f} more than the auditor's", wrong=_payer_alone_believes,
        advice="The judge that pays likes the answers more and more, and a judge that never paid does not: read the "
            "rollouts that the two judge differently, and grade some of them.",
    ),
)  # fmt: skip


class Monitor:
    """Reads rows one by one and keeps the alarms they raised."""

    def __init__(self, bands: Sequence[Band] = BANDS, *, problems: int = ENOUGH_PROBLEMS) -> None:
        """``problems``: the number of problems of a step."""
        self.bands = bands
        self._problems = problems
        self._patterns = [_key_pattern(band.keys[0]) for band in bands]
        self._places: dict[str, list[tuple[int, tuple[str, ...], str]]] = {}  # key → (band, all its keys, shown key)
        self._series: dict[tuple[int, str], MetricSeries] = {}
        self._alarms: dict[tuple[int, str], Alarm] = {}
        self._starved = StarvationMonitor(problems=problems)
        self._row: Mapping[str, Any] = {}

    @property
    def alarms(self) -> list[Alarm]:
        """All so far, in the order in which they first fired."""
        return sorted([*self._starved.alarms.values(), *self._alarms.values()], key=lambda alarm: alarm.step)

    def end_run(self) -> list[Alarm]:
        """The run is over: the alarms that only its end raises."""
        return self._without_explained(self._starved.end_run())

    def add_row(self, row: Mapping[str, Any]) -> list[Alarm]:
        """Read the next row of metrics.jsonl; returns the alarms that it is the first to raise."""
        if "kind" in row or _number_or_none(row.get("step")) is None:
            return []
        new = self._starved.add_row(row)
        self._row = row
        for key in sorted(row):
            for index, keys, shown_key in self._bands_of(key):
                values = [_number_or_none(row.get(k)) for k in keys]
                if any(value is None for value in values):
                    continue
                band = self.bands[index]
                place = (index, shown_key)
                series = self._series.setdefault(place, MetricSeries(band.window))
                series.add_row(int(row["step"]), [value for value in values if value is not None])
                alarm = self._update_alarm(band, place, series)
                if alarm is not None:
                    new.append(alarm)
        return self._without_explained(new)

    def _without_explained(self, new: list[Alarm]) -> list[Alarm]:
        """The new alarms without those that others explain, which are forgotten (``alarms.py``)."""
        explained = set(map(id, explained_alarms(new, self.alarms, self._row)))
        stores: tuple[dict[Any, Alarm], ...] = (self._starved.alarms, self._alarms)
        for alarms in stores:
            places = [place for place, alarm in alarms.items() if id(alarm) in explained]
            for place in places:
                del alarms[place]
        return [alarm for alarm in new if id(alarm) not in explained]

    def _update_alarm(self, band: Band, place: tuple[int, str], series: MetricSeries) -> Alarm | None:
        value = band.rule(series)
        step = series.step
        if value is None or series.rows * self._problems < band.problems:
            return None
        if place in self._alarms:
            alarm_before = self._alarms[place]
            words = {}
            if series.rows == band.window:  # it is no longer early
                words = _alarm_words(band, series, alarm_before.value)
            self._alarms[place] = dataclasses.replace(alarm_before, last=step, **words)
            return None

        alarm = Alarm(
            band=band.name, key=place[1], step=step, last=step, value=value, healthy=band.healthy_text,
            **_alarm_words(band, series, value),
        )  # fmt: skip
        self._alarms[place] = alarm
        return alarm

    def _bands_of(self, key: str) -> list[tuple[int, tuple[str, ...], str]]:
        """The bands that begin with this key, with all of their keys for this role or policy."""
        if key not in self._places:
            bands = []
            for index, (band, pattern) in enumerate(zip(self.bands, self._patterns, strict=True)):
                match = pattern.fullmatch(key)
                if match and match.groupdict().get("signal") not in LABELS:
                    keys = tuple(_fill_names(k, match.groupdict()) for k in band.keys)
                    bands.append((index, keys, _short_key(key)))
            self._places[key] = bands
        return self._places[key]


def _alarm_words(band: Band, series: MetricSeries, value: float) -> dict[str, Any]:
    """The reading and the advice of an alarm, also one from fewer rows than the window."""
    reading = band.reading_format.format(value)
    if series.rows >= band.window or not band.early:
        return {"reading": reading, "advice": band.what_to_do}
    return {"reading": f"{reading} at {series.rows} step alone", "advice": band.early}


def check_rows(
    rows: Iterable[Mapping[str, Any]],
    bands: Sequence[Band] = BANDS,
    *,
    finished: bool = False,
    problems: int = ENOUGH_PROBLEMS,
) -> list[Alarm]:
    """The alarms of the rows of a metrics.jsonl, in the order in which they first fired. ``problems``: of a step."""
    monitor = Monitor(bands, problems=problems)
    for row in rows:
        monitor.add_row(row)
    if finished:
        monitor.end_run()
    return monitor.alarms


def applicable_bands(keys: Iterable[str], bands: Sequence[Band] = BANDS) -> list[Band]:
    """The bands that apply to a run with these metrics."""
    present = set(keys)

    def is_found(band_key: str) -> bool:
        pattern = _key_pattern(band_key)
        return any(pattern.fullmatch(key) for key in present)

    return [band for band in bands if all(map(is_found, band.keys))]


def with_examples(
    alarm: Alarm, read_episodes: Callable[[int], Sequence[Episode]], bands: Sequence[Band] = BANDS
) -> Alarm:
    """The alarm with up to three rollouts that show it, the latest steps of its window first and in a step those that
    were paid most. ``read_episodes``: those of a step, as ``Ledger.read``; steps that cannot be read are passed
    over."""
    band = next((b for b in bands if b.name == alarm.band), None)
    if band is None or band.wrong is None:
        return alarm
    who, _, name = alarm.key.partition("/reward/")
    addresses: list[str] = []
    for step in range(alarm.step, max(-1, alarm.step - band.window), -1):
        try:
            episodes = read_episodes(step)
        except CotrainError:
            continue

        traces = []
        for episode in episodes:
            for trace in episode.traces:
                of_this_role = not name or trace.role == who
                if of_this_role and band.wrong(trace, name):
                    traces.append(trace)

        traces.sort(key=lambda trace: (-_sum_of_rewards(trace, name), trace.address))
        addresses += [str(trace.address) for trace in traces]
        if len(addresses) >= EXAMPLES:
            break
    return dataclasses.replace(alarm, examples=tuple(addresses[:EXAMPLES]))


def _sum_of_rewards(trace: Trace, name: str) -> float:
    return sum(reward.value for reward in trace.rewards if reward.name == name)


def _key_pattern(key: str) -> re.Pattern[str]:
    """A pattern for the keys of a band: each mark is one name, found again under that name."""
    pattern = ""
    for part in re.split(r"(\{\w+\})", key):
        if part.startswith("{"):
            pattern += f"(?P<{part[1:-1]}>[^/]+)"
        else:
            pattern += re.escape(part)
    return re.compile(pattern)


def _fill_names(key: str, names: Mapping[str, str]) -> str:
    for mark, name in names.items():
        key = key.replace(f"{{{mark}}}", name)
    return key


def _short_key(key: str) -> str:
    """``verifier/verifier/surprisal`` as ``verifier/surprisal``."""
    first, _, rest = key.partition("/")
    return rest if rest.startswith(f"{first}/") else key


def _number_or_none(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


# -- One cause, one alarm: which alarms are the mere consequence of another one that fires in the same row.


NEARLY_ALL = 0.9  # share of a role's answers
MOST = 0.75  # share of the unreadable ones
CUT = "mostly cut off"
CONSTANT = "constant reward"
FAILED = "failed rollouts"
UNGRADED = "ungraded answers"
UNREAD = ("unreadable answers", "mostly unreadable reviews")
EMPTY = ("groups without spread", "no spread", "no samples")  # alarms of an objective


def explained_alarms(new: Sequence[Alarm], alarms: Iterable[Alarm], row: Mapping[str, Any]) -> list[Alarm]:
    """The ``new`` alarms of a row that another one explains, or that were reported under the same name. ``alarms``: all
    so far, the new among them."""
    is_new = set(map(id, new))
    told_before = set[tuple[str, str]]()
    causes_by_role: dict[str, list[Alarm]] = {}
    wide_causes: list[Alarm] = []  # one alarm that explains what is empty or constant anywhere
    for alarm in alarms:
        if alarm.last != row.get("step"):
            continue
        if id(alarm) not in is_new:
            told_before.add((alarm.band, alarm.key))
        if alarm.band in (CONSTANT, CUT, FAILED, *UNREAD):
            causes_by_role.setdefault(_owner_of(alarm), []).append(alarm)
            is_wide = alarm.band not in (CONSTANT, FAILED) and _share_in(alarm, row) > NEARLY_ALL
            if is_wide and not wide_causes:
                wide_causes.append(alarm)

    def is_explained(alarm: Alarm) -> bool:
        if (alarm.band, alarm.key) in told_before:
            return True
        causes = [*causes_by_role.get(_owner_of(alarm), ()), *wide_causes]
        return any(_is_cause_of(cause, alarm, row) for cause in causes if cause is not alarm)

    return [alarm for alarm in new if is_explained(alarm)]


def _owner_of(alarm: Alarm) -> str:
    return alarm.key.partition("/")[0]


def _share_in(alarm: Alarm, row: Mapping[str, Any]) -> float:
    share = row.get(alarm.key)
    return share if isinstance(share, int | float) else -1.0


def _is_cause_of(cause: Alarm, other: Alarm, row: Mapping[str, Any]) -> bool:
    role = _owner_of(cause)
    share = _share_in(cause, row)
    same_owner = _owner_of(other) == role
    if cause.band == CONSTANT:
        return other.band in EMPTY and same_owner
    if cause.band == FAILED:
        return other.band == UNGRADED and same_owner
    if cause.band not in (CUT, *UNREAD) or share < 0.0:
        return False
    if other.band in (CONSTANT, *EMPTY):
        return share > NEARLY_ALL
    if cause.band == CUT:
        lost = row.get(f"{role}/parse_failures")
        most = isinstance(lost, int | float) and share >= MOST * lost
        return same_owner and (other.band == "cut off" or (other.band in (*UNREAD, "unreadable reviews") and most))
    return same_owner and (other.band == "unreadable reviews" or (other.band in UNREAD and other.step > cause.step))
