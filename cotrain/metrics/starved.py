"""Alarms for objectives that learn nothing and for answers that cannot be read, raised within three steps.

Health bands wait for ten rows and more; a protocol that pays nothing or a prompt that no model understands shows at
once. Counted are steps in a row (``KINDS``), of those at which the objective is due or the role spoke; a run with fewer
is reported at its end. Equal rewards are not reported for fewer than ``ENOUGH_PROBLEMS`` problems. What becomes of a
run whose updates are not finite is decided in ``trainer/failures.py``.

Pure: alarms depend on the rows alone. Left out: channels of algorithms that do not report them (PPO, Prime), whose
objectives are watched as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cotrain.core.verbosity import count_of
from cotrain.metrics.rules import Alarm

SKIPPED = "skipped.jsonl"  # the batches of updates that were not finite
NON_FINITE_SUFFIX = "/skipped/non-finite"  # behind a policy's name: the key of an update that was skipped for it
KINDS = (  # name of the alarm, key of the table, when, steps in a row
    (
        "no samples", "{objective}/credit/samples",
        "`credit/samples` is 0: no trace of an objective could be learned from; says why they were left out", 3,
    ),
    (
        "no such signal", "{objective}/coverage/{signal}",
        "`coverage` of a signal is 0: an objective reads a reward for steps that nobody gives", 3,
    ),
    ("no spread", "{objective}/advantage/{signal}", "`advantage` of a channel is 0, from the first step on", 5),
    ("unreadable answers", "{role}/parse_failures", "`parse_failures` of a role is 1", 3),
    (
        "no gradient", "{policy}/grad_norm",
        "`grad_norm` of a policy is 0: it had samples, and its loss does not move it", 3,
    ),
    (
        "update skipped", "{policy}/skipped/{reason}",
        "a loss or gradient that is not finite; every one is told", 1,
    ),
)  # fmt: skip
ENOUGH_PROBLEMS = 8  # with fewer, equal rewards in every group are chance: a trial of two problems
NEEDED = {name: steps for name, _, _, steps in KINDS}
SAMPLES = "/credit/samples"
DROPPED = "/dropped/"
COVERAGE = "/coverage/"
ADVANTAGE = "/advantage/"
UNREAD = "/parse_failures"
GRADIENT = "/grad_norm"
ZERO_SPREAD = "zero_spread"  # why a sample was left out: its group has one reward
FAILURES = "failures/"  # episodes and turns that failed, by reason


@dataclass(slots=True)
class _Streak:
    """A streak: how often in a row something was so, and since when."""

    count: int = 0
    since: int = 0
    seen: int = 0  # rows that could have been otherwise


@dataclass(slots=True)
class StarvationMonitor:
    """Reads rows one by one; ``add`` and ``end`` return the alarms that they are the first to raise."""

    problems: int = ENOUGH_PROBLEMS  # problems of a step
    alarms: dict[tuple[str, str], Alarm] = field(default_factory=dict)  # (band, key)
    _times: dict[tuple[str, str], _Streak] = field(default_factory=dict)
    _dropped: dict[str, Counter[str]] = field(default_factory=dict)
    _failures: dict[str, Counter[str]] = field(default_factory=dict)  # while an objective has nothing to learn from
    _last: int = 0

    def add_row(self, row: Mapping[str, Any]) -> list[Alarm]:
        """The next row of a training step."""
        self._last = int(row["step"])
        skips = []
        rows_by_owner: dict[str, dict[str, Any]] = {}  # the keys of each objective, and those of "failures"
        for key, value in row.items():
            rows_by_owner.setdefault(key.partition("/")[0], {})[key] = value
        for key in sorted(row):
            if key.endswith(SAMPLES):
                name = key.removesuffix(SAMPLES)
                self._count_objective(name, rows_by_owner.get(name, {}), rows_by_owner.get(FAILURES.rstrip("/"), {}))
            elif key.endswith(UNREAD) and key.count("/") == 1:
                self._count_row("unreadable answers", key, row[key] == 1.0)
            elif key.endswith(GRADIENT) and key.count("/") == 1:
                self._count_row("no gradient", key, row[key] == 0.0)
            elif key.endswith(NON_FINITE_SUFFIX):
                skips.append(self._skip_alarm(key))
        return skips + self._raise_alarms(ended=False)

    def end_run(self) -> list[Alarm]:
        """At the end of a run: also report what held at all steps, if these were too few before."""
        return self._raise_alarms(ended=True)

    def _skip_alarm(self, key: str) -> Alarm:
        """One for every update that was not made."""
        alarm = Alarm(
            band="update skipped", key=key, step=self._last, last=self._last, value=1.0, reading="gradient not finite",
            healthy="finite", advice=f"The batch is in {SKIPPED}: look for extreme rewards, or lower the learning "
                "rate.",
        )  # fmt: skip
        self.alarms["update skipped", f"{key} {self._last}"] = alarm
        return alarm

    def _count_objective(self, name: str, row: Mapping[str, Any], failed: Mapping[str, Any]) -> None:
        empty = row[name + SAMPLES] == 0
        self._count_row("no samples", name + SAMPLES, empty)
        dropped = self._dropped.setdefault(name, Counter())
        failures = self._failures.setdefault(name, Counter())
        if empty:
            for key, value in failed.items():
                failures[key.removeprefix(FAILURES)] += int(value)
        else:
            dropped.clear()
            failures.clear()

        for key, value in row.items():
            rest = key.removeprefix(name)
            if rest.startswith(DROPPED) and empty:
                dropped[rest.removeprefix(DROPPED)] += int(value)
            elif rest.startswith(COVERAGE):
                self._count_row("no such signal", key, value == 0)
            elif (
                rest.startswith(ADVANTAGE)
                and not empty
                and row.get(name + COVERAGE + rest.removeprefix(ADVANTAGE)) != 0
            ):
                self._count_row("no spread", key, value == 0)

    def _count_row(self, band: str, key: str, so: bool) -> None:
        times = self._times.setdefault((band, key), _Streak())
        times.seen += 1
        if so and not times.count:
            times.since = self._last
        times.count = times.count + 1 if so else 0

    def _raise_alarms(self, *, ended: bool) -> list[Alarm]:
        new = []
        for (band, key), times in self._times.items():
            always = times.count == times.seen
            if times.count < NEEDED[band] and not (ended and always and times.count):
                continue
            if band == "no spread" and not always:
                continue
            if times.seen * self.problems < ENOUGH_PROBLEMS and self._blames_equal_rewards(band, key):
                continue
            alarm_before = self.alarms.get((band, key))
            alarm = self._make_alarm(band, key, times, alarm_before)
            self.alarms[band, key] = alarm
            if alarm_before is None:
                new.append(alarm)
        return new

    def _blames_equal_rewards(self, band: str, key: str) -> bool:
        """Whether the alarm says that rewards do not differ within groups."""
        if band != "no samples":
            return band == "no spread"
        dropped = self._dropped.get(key.partition("/")[0], Counter())
        return max(dropped, key=lambda reason: dropped[reason], default="") == ZERO_SPREAD

    def _make_alarm(self, band: str, key: str, times: _Streak, held: Alarm | None) -> Alarm:
        reading, healthy, advice = self._alarm_text(band, key, times.count)
        first = held.step if held else self._last
        return Alarm(
            band=band, key=key, step=first, last=self._last, value=float(times.count), reading=reading, healthy=healthy,
            advice=advice,
        )  # fmt: skip

    def _alarm_text(self, band: str, key: str, count: int) -> tuple[str, str, str]:
        """Reading, what is healthy, and what to do."""
        name, _, signal = key.partition("/")
        signal = signal.rpartition("/")[2]
        times = f"{count} {'time' if count == 1 else 'times'} in a row"
        if band == "unreadable answers":
            advice = (
                f"No answer of {name!r} can be read: see {name}/parse_failure by reason; raise `--set "
                f"roles.{name}.sampling.max_tokens=N`, or mend its prompt."
            )
            return f"all of them, {times}", "some can be read", advice

        if band == "no gradient":
            advice = (
                f"The loss of policy {name!r} does not move its weights: check that its algorithm gives samples "
                "advantages other than 0, and that its loss depends on them and on the log-probabilities."
            )
            return f"0, {times}", "above 0", advice

        if band == "no such signal":
            advice = (
                f"Objective {name!r} reads {signal!r} and no trace has it: reward it in the protocol, or "
                "leave it out of rewards."
            )
            return f"given to no trace, {times}", "given to some traces", advice

        if band == "no spread":
            advice = (
                f"Signal {signal!r} has never varied within a group and teaches nothing: check what the "
                "protocol pays for it."
            )
            return f"the same in every group, {times}", "varies", advice

        reasons = self._dropped.get(name, Counter()).most_common()
        left_out = f"; left out: {', '.join(f'{reason} {n}' for reason, n in reasons)}" if reasons else ""
        advice = " ".join(_starved_advice(name, reasons, self._failures.get(name, Counter())))
        return f"nothing to learn from, {times}{left_out}", "some samples", advice


def _starved_advice(name: str, reasons: list[tuple[str, int]], failures: Counter[str]) -> Iterator[str]:
    """Advice, by the most frequent reason for which traces were left out."""
    reason = reasons[0][0] if reasons else ""
    if reason.startswith("no ") and reason not in ("no tokens", "no label"):
        signal = reason.removeprefix("no ")
        yield f"Objective {name!r} reads the signal {signal!r} and no trace has it: reward it in the protocol."
    elif reason == ZERO_SPREAD:
        yield (
            "All rewards within a group are equal: change the difficulty of the problems, use larger "
            "groups, or check the reward."
        )
    elif reason:
        yield f"Objective {name!r} does not train its policy: see {name}/dropped."
    elif failures:
        failures_text = ", ".join(f"{failure!r} {count_of(n, 'time')}" for failure, n in failures.most_common(2))
        yield f"Objective {name!r} was given no trace that had not failed: {failures_text}."
    else:
        yield f"Objective {name!r} was given no trace: check that the protocol asks its role."
