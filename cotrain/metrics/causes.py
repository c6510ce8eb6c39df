"""Which alarms are only consequences of another one that fires in the same row, and are left out for it.

Answers that are cut off cannot be read, answers that cannot be read all earn the same, and where all earn the same
nothing is learned: four alarms with four pieces of advice, of which the first helps. A consequence is not raised while
its cause fires; when the cause is gone and the consequence is not, it is told then.

::

    mostly cut off       explains  cut off, and unreadable answers or reviews where most of them are cut off, of a role
    unreadable answers, mostly unreadable reviews   explain  the same of the role once more, and unreadable reviews
    all of these, of nearly all   explain  constant reward, groups without spread, no spread, no samples
    constant reward      explains  groups without spread, no spread, no samples, of an objective

Pure. Left out: which objective learns from which role, as rows do not say it; nearly all answers of any role must be
lost to explain that an objective has nothing to learn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotrain.metrics.alarm import Alarm

NEARLY_ALL = 0.9  # share of a role's answers
MOST = 0.75  # share of the unreadable ones
CUT, CONSTANT = "mostly cut off", "constant reward"
UNREAD = ("unreadable answers", "mostly unreadable reviews")
EMPTY = ("groups without spread", "no spread", "no samples")  # of an objective


def explained_alarms(new: Sequence[Alarm], alarms: Iterable[Alarm], row: Mapping[str, Any]) -> list[Alarm]:
    """Those of the ``new`` alarms of a row that another one explains, or that were told under the same
    name. ``alarms``: all so far, the new among them."""
    fresh, before = set(map(id, new)), set[tuple[str, str]]()
    causes_by_role: dict[str, list[Alarm]] = {}  # what can be a cause, by role
    wide_causes: list[Alarm] = []  # one that explains what is empty or constant anywhere
    for alarm in (alarm for alarm in alarms if alarm.last == row.get("step")):
        if id(alarm) not in fresh:
            before.add((alarm.band, alarm.key))
        if alarm.band in (CONSTANT, CUT, *UNREAD):
            causes_by_role.setdefault(_owner_of(alarm), []).append(alarm)
            if not wide_causes and alarm.band != CONSTANT and _share_in(alarm, row) > NEARLY_ALL:
                wide_causes.append(alarm)
    return [
        one
        for one in new
        if (one.band, one.key) in before
        or any(
            _is_cause_of(cause, one, row)
            for cause in (*causes_by_role.get(_owner_of(one), ()), *wide_causes)
            if cause is not one
        )
    ]


def _owner_of(alarm: Alarm) -> str:
    return alarm.key.partition("/")[0]


def _share_in(alarm: Alarm, row: Mapping[str, Any]) -> float:
    share = row.get(alarm.key)
    return share if isinstance(share, int | float) else -1.0


def _is_cause_of(cause: Alarm, other: Alarm, row: Mapping[str, Any]) -> bool:
    role, share = _owner_of(cause), _share_in(cause, row)
    same_owner = _owner_of(other) == role
    if cause.band == CONSTANT:
        return other.band in EMPTY and same_owner
    if cause.band not in (CUT, *UNREAD) or share < 0.0:
        return False
    if other.band in (CONSTANT, *EMPTY):
        return share > NEARLY_ALL
    if cause.band == CUT:
        lost = row.get(f"{role}/parse_failures")
        most = isinstance(lost, int | float) and share >= MOST * lost
        return same_owner and (other.band == "cut off" or (other.band in (*UNREAD, "unreadable reviews") and most))
    return same_owner and (other.band == "unreadable reviews" or (other.band in UNREAD and other.step > cause.step))
