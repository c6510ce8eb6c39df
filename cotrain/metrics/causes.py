"""One cause, one alarm: which alarms are the mere consequence of another one that fires in the same row.

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


def consequences(new: Sequence[Alarm], alarms: Iterable[Alarm], row: Mapping[str, Any]) -> list[Alarm]:
    """Those of the ``new`` alarms of a row that another one explains, or that were told under the same
    name. ``alarms``: all so far, the new among them."""
    fresh, before = set(map(id, new)), set[tuple[str, str]]()
    own: dict[str, list[Alarm]] = {}  # what can be a cause, by role
    wide: list[Alarm] = []  # one that explains what is empty or constant anywhere
    for alarm in (alarm for alarm in alarms if alarm.last == row.get("step")):
        if id(alarm) not in fresh:
            before.add((alarm.band, alarm.key))
        if alarm.band in (CONSTANT, CUT, *UNREAD):
            own.setdefault(_role(alarm), []).append(alarm)
            if not wide and alarm.band != CONSTANT and _share(alarm, row) > NEARLY_ALL:
                wide.append(alarm)
    return [
        one
        for one in new
        if (one.band, one.key) in before
        or any(_explains(cause, one, row) for cause in (*own.get(_role(one), ()), *wide) if cause is not one)
    ]


def _role(alarm: Alarm) -> str:
    return alarm.key.partition("/")[0]


def _share(alarm: Alarm, row: Mapping[str, Any]) -> float:
    share = row.get(alarm.key)
    return share if isinstance(share, int | float) else -1.0


def _explains(cause: Alarm, other: Alarm, row: Mapping[str, Any]) -> bool:
    role, share = _role(cause), _share(cause, row)
    mine = _role(other) == role
    if cause.band == CONSTANT:
        return other.band in EMPTY and mine
    if cause.band not in (CUT, *UNREAD) or share < 0.0:
        return False
    if other.band in (CONSTANT, *EMPTY):
        return share > NEARLY_ALL
    if cause.band == CUT:
        lost = row.get(f"{role}/parse_failures")
        most = isinstance(lost, int | float) and share >= MOST * lost
        return mine and (other.band == "cut off" or (other.band in (*UNREAD, "unreadable reviews") and most))
    return mine and (other.band == "unreadable reviews" or (other.band in UNREAD and other.step > cause.step))
