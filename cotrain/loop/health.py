"""Health bands: series of metrics that tell of a known way to go wrong, where they should lie, and what to do.

A band looks at one or more metrics of one role or policy over windows of rows (a row counts where it has all of them;
in an alternating schedule those are the steps at which the policy was trained) and fires when they leave the band. An
alarm is raised once per band and series, at the step where it first fires. Bands whose metrics a run does not have,
or has too few rows of, say nothing. The limits are rules of thumb from the papers that the recipes follow; they were
set so that the sound runs of ``docs/results`` stay silent on all but the gap.

What learns nothing at all is told sooner, by ``starved.py``.

Pure: an alarm depends on the rows alone, so a resumed run raises the same ones. Left out: alarms on evaluations.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotrain.core.errors import CotrainError
from cotrain.core.types import Episode, Trace
from cotrain.loop.alarm import Alarm
from cotrain.loop.starved import Starved

EXAMPLES = 3  # addresses with an alarm
LARGEST = 1e300  # a larger number is none
LABELS = ("truth", "label")  # signals that name a class and pay nobody
Column = Sequence[float]


@dataclass(slots=True)
class Series:
    """The metrics of one band and one role or policy so far."""

    window: int
    steps: list[int] = field(default_factory=list)
    columns: list[list[float]] = field(default_factory=list)  # one for each of the band's keys
    closed: list[list[float]] = field(default_factory=list)  # of each column: means of its full windows from the start

    def add(self, step: int, values: Sequence[float]) -> None:
        self.steps.append(step)
        if not self.columns:
            self.columns, self.closed = [[] for _ in values], [[] for _ in values]
        for column, means, value in zip(self.columns, self.closed, values, strict=True):
            column.append(value)
            if len(column) % self.window == 0:
                means.append(_mean(column[-self.window :]))

    def windows(self, column: int, count: int) -> list[float] | None:
        """Means of the last ``count`` windows, which end at the last row; None while there are fewer."""
        values, n = self.columns[column], self.window
        starts = range(len(values) - count * n, len(values), n)
        return [_mean(values[start : start + n]) for start in starts] if starts[0] >= 0 else None


Reading = Callable[[Series], float | None]  # the value that is out of the band, or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One way to go wrong."""

    name: str  # unique
    keys: tuple[str, ...]  # metrics, with ``{who}`` for a role or policy and ``{name}`` for a signal
    healthy: str  # the range in words
    window: int  # rows
    reading: Reading
    advice: str  # one sentence
    shown: str = "{:.2f}"  # how a reading is written
    wrong: Callable[[Trace, str], bool] | None = None  # whether a rollout, given the signal's name, is an example


# ---- readings


def always_above(limit: float) -> Reading:
    """Every row of the window above the limit."""

    def read(series: Series) -> float | None:
        recent = series.columns[0][-series.window :]
        return _mean(recent) if len(recent) == series.window and min(recent) > limit else None

    return read


def mean_above(limit: float) -> Reading:
    """The window's mean above the limit."""

    def read(series: Series) -> float | None:
        recent = series.windows(0, 1)
        return recent[0] if recent and recent[0] > limit else None

    return read


def far_from_base(distance: float, low: float, high: float, least: float = 0.05) -> Reading:
    """Share called right (first key) too far from the share that is right (second), or at an end where that is not, and
    then off by ``least``."""

    def read(series: Series) -> float | None:
        said, true = series.windows(0, 1), series.windows(1, 1)
        if not said or not true:
            return None
        off = abs(said[0] - true[0])
        one_sided = (said[0] < low <= true[0] or said[0] > high >= true[0]) and off > least
        return said[0] if off > distance or one_sided else None

    return read


def rising(rise: float, level: float) -> Reading:
    """Three windows, each above the one before, by ``rise`` in all and to ``level`` or more."""

    def read(series: Series) -> float | None:
        means = series.windows(0, 3)
        if not means or not means[0] < means[1] < means[2]:
            return None
        return means[2] if means[2] - means[0] >= rise and means[2] >= level else None

    return read


def drifted(low: float, high: float) -> Reading:
    """The window's mean, as a multiple of the first window's, outside of the limits. Reads that multiple."""

    def read(series: Series) -> float | None:
        recent = series.windows(0, 1)
        if not recent or len(series.steps) < 2 * series.window or not series.closed[0][0] > 0.0:
            return None
        ratio = recent[0] / series.closed[0][0]
        return None if low <= ratio <= high else ratio

    return read


def parted(rise: float, fall: float) -> Reading:
    """The first metric has risen while the second fell, since the window in which the second was best. Reads the second's
    change. A rise must also be a tenth of the first metric's own range, whose scale may be anything."""

    def read(series: Series) -> float | None:
        now = series.windows(0, 1), series.windows(1, 1)
        earlier = (len(series.steps) - series.window) // series.window  # full windows that do not overlap the last
        if not now[0] or not now[1] or earlier < 1:
            return None
        paid, true = series.closed[0][:earlier], series.closed[1][:earlier]
        best = max(range(earlier), key=lambda i: true[i])
        spread = max(*paid, now[0][0]) - min(*paid, now[0][0])
        up, down = now[0][0] - paid[best], true[best] - now[1][0]
        return -down if down >= fall and up >= max(rise, 0.1 * spread) else None

    return read


# ---- rollouts that show it


def _fooled(trace: Trace, name: str) -> bool:
    """A verdict CORRECT on a wrong answer."""
    return trace.parsed.get("final") is True and trace.truth.get("correct") is False


def _overpaid(trace: Trace, name: str) -> bool:
    """Paid, and wrong: a wrong answer, or a verdict that is not the truth."""
    truth, said = trace.truth.get("correct"), trace.parsed.get("final")
    unread = trace.parent is not None and "failure" in trace.parsed
    mistaken = truth is False if said is None else said is not truth
    return mistaken and not unread and truth is not None and any(s.name == name for s in trace.signals)


BANDS = (
    Band(
        name="groups without spread", keys=("{who}/zero_spread_groups",), window=20, reading=always_above(0.6),
        healthy="at most 0.6 at one step of 20",
        advice="Most groups have equal rewards and teach nothing: change the difficulty of the problems, or use larger groups.",
    ),
    Band(
        name="one-sided verdicts", keys=("{who}/predicted_positive", "{who}/base_rate"), window=10,
        reading=far_from_base(0.3, 0.1, 0.9), healthy="within 0.3 of the base rate, and 0.1 to 0.9 where that is",
        advice="The judge follows no evidence: balance its classes, or give it problems with more of the rare class.",
    ),
    Band(
        name="rising gap", keys=("gap",), window=10, reading=rising(0.1, 0.1), wrong=_fooled,
        healthy="below 0.1, or not rising over 3 windows of 10 steps",
        advice="The generator is believed more and more than it deserves: train the judge more often, or pay its verdicts less.",
    ),
    Band(
        name="drifting number of steps", keys=("{who}/steps",), window=10, reading=drifted(0.7, 1.3),
        shown="{:.2f} times the first 10 steps'",
        healthy="0.7 to 1.3 times the first 10 steps'",
        advice="Solutions are cut up differently than at the start: check that step rewards are divided by the number of steps.",
    ),
    Band(
        name="unreadable reviews", keys=("{who}/parse_failures", "{who}/base_rate"), window=10, reading=mean_above(0.1),
        healthy="at most 0.1",
        advice="Reviews do not fit the solutions' steps: see parse_failure by reason, and raise the format reward or max_tokens.",
    ),
    Band(
        name="cut off", keys=("{who}/truncated",), window=10, reading=mean_above(0.2), healthy="at most 0.2",
        advice="Texts run into the token limit: raise max_tokens, or look for answers that never end.",
    ),
    Band(
        name="collapsing entropy", keys=("{who}/surprisal",), window=10, reading=drifted(0.1, math.inf),
        shown="{:.2f} times the first 10 updates'",
        healthy="at least 0.1 times the first 10 updates'",
        advice="The policy has stopped exploring: lower the learning rate, or add an entropy or KL term.",
    ),
    Band(
        name="consensus collapse", keys=("{who}/majority_share", "{who}/majority_accuracy"), window=10,
        reading=parted(0.05, 0.1), shown="accuracy of the majority {:+.2f} since its best",
        healthy="accuracy of the majority within 0.1 of its best while answers agree more",
        advice="Answers agree more and are right less: stop at the best checkpoint, and use a slower or outside labeller.",
    ),
    Band(
        name="reward hacking", keys=("{who}/reward/{name}", "{who}/accuracy"), window=10, reading=parted(0.05, 0.1),
        shown="accuracy {:+.2f} since its best", wrong=_overpaid,
        healthy="accuracy within 0.1 of its best while the reward rises",
        advice="The reward rises and the truth falls: read the rollouts, and mend or co-train what gives this reward.",
    ),
    Band(
        name="reward hacking by a judge", keys=("{who}/reward/{name}", "{who}/balanced_accuracy"), window=10,
        reading=parted(0.05, 0.1), shown="balanced accuracy {:+.2f} since its best", wrong=_overpaid,
        healthy="balanced accuracy within 0.1 of its best while the reward rises",
        advice="The judge earns more and judges worse, so it follows the base rate: balance its classes.",
    ),
)  # fmt: skip


class Monitor:
    """Reads rows one by one and keeps the alarms they raised."""

    def __init__(self, bands: Sequence[Band] = BANDS) -> None:
        self.bands = bands
        self._patterns = [_pattern(band.keys[0]) for band in bands]
        self._places: dict[str, list[tuple[int, tuple[str, ...], str]]] = {}  # key → (band, all its keys, shown key)
        self._series: dict[tuple[int, str], Series] = {}
        self._alarms: dict[tuple[int, str], Alarm] = {}
        self._starved = Starved()

    @property
    def alarms(self) -> list[Alarm]:
        """All so far, in the order in which they first fired."""
        return sorted([*self._starved.alarms.values(), *self._alarms.values()], key=lambda alarm: alarm.step)

    def end(self) -> list[Alarm]:
        """The run is over: the alarms that only its end raises."""
        return self._starved.end()

    def add(self, row: Mapping[str, Any]) -> list[Alarm]:
        """Read the next row of metrics.jsonl; returns the alarms that it is the first to raise."""
        if "kind" in row or _number(row.get("step")) is None:
            return []
        new = self._starved.add(row)
        for key in sorted(row):
            for index, keys, shown in self._bound(key):
                values = [_number(row.get(k)) for k in keys]
                if any(value is None for value in values):
                    continue
                band, place = self.bands[index], (index, shown)
                series = self._series.setdefault(place, Series(band.window))
                series.add(int(row["step"]), [value for value in values if value is not None])
                alarm = self._read(band, place, series)
                new += [alarm] if alarm else []
        return new

    def _read(self, band: Band, place: tuple[int, str], series: Series) -> Alarm | None:
        value, step = band.reading(series), series.steps[-1]
        if value is None:
            return None
        if place in self._alarms:
            self._alarms[place] = dataclasses.replace(self._alarms[place], last=step)
            return None
        alarm = Alarm(
            band=band.name, key=place[1], step=step, last=step, value=value, reading=band.shown.format(value),
            healthy=band.healthy, advice=band.advice,
        )  # fmt: skip
        self._alarms[place] = alarm
        return alarm

    def _bound(self, key: str) -> list[tuple[int, tuple[str, ...], str]]:
        """The bands that begin with this key, with all of their keys for this role or policy."""
        if key not in self._places:
            found = []
            for index, (band, pattern) in enumerate(zip(self.bands, self._patterns, strict=True)):
                match = pattern.fullmatch(key)
                if match and match.groupdict().get("name") not in LABELS:
                    keys = tuple(_filled(k, match.groupdict()) for k in band.keys)
                    found.append((index, keys, _plain(key)))
            self._places[key] = found
        return self._places[key]


def check(rows: Iterable[Mapping[str, Any]], bands: Sequence[Band] = BANDS, *, finished: bool = False) -> list[Alarm]:
    """The alarms of the rows of a metrics.jsonl, in the order in which they first fired."""
    monitor = Monitor(bands)
    for row in rows:
        monitor.add(row)
    if finished:
        monitor.end()
    return monitor.alarms


def watched(keys: Iterable[str], bands: Sequence[Band] = BANDS) -> list[Band]:
    """The bands that apply to a run with these metrics."""
    found = set(keys)
    patterns = [[_pattern(key) for key in band.keys] for band in bands]
    return [b for b, mine in zip(bands, patterns, strict=True) if all(any(p.fullmatch(k) for k in found) for p in mine)]


def with_examples(alarm: Alarm, read: Callable[[int], Sequence[Episode]], bands: Sequence[Band] = BANDS) -> Alarm:
    """The alarm with up to three rollouts that show it, the latest steps of its window first and in a step those that
    were paid most. ``read``: the episodes of a step, as ``Ledger.read``; steps that cannot be read are passed over."""
    band = next((b for b in bands if b.name == alarm.band), None)
    if band is None or band.wrong is None:
        return alarm
    who, _, name = alarm.key.partition("/reward/")
    found: list[str] = []
    for step in range(alarm.step, max(-1, alarm.step - band.window), -1):
        try:
            episodes = read(step)
        except CotrainError:
            continue
        traces = [t for e in episodes for t in e.traces if (not name or t.role == who) and band.wrong(t, name)]
        traces.sort(key=lambda t: (-sum(s.value for s in t.signals if s.name == name), t.address))
        found += [str(t.address) for t in traces]
        if len(found) >= EXAMPLES:
            break
    return dataclasses.replace(alarm, examples=tuple(found[:EXAMPLES]))


def _pattern(key: str) -> re.Pattern[str]:
    """``{who}`` is one name, or two for a policy's metric of one objective; ``{name}`` is one."""
    escaped = re.escape(key).replace(r"\{who\}", r"(?P<who>[^/]+(?:/[^/]+)?)").replace(r"\{name\}", r"(?P<name>[^/]+)")
    return re.compile(escaped)


def _filled(key: str, names: Mapping[str, str]) -> str:
    for mark, name in names.items():
        key = key.replace(f"{{{mark}}}", name)
    return key


def _plain(key: str) -> str:
    """``verifier/verifier/surprisal`` as ``verifier/surprisal``."""
    first, _, rest = key.partition("/")
    return rest if rest.startswith(f"{first}/") else key


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
