"""The two rollouts that a run's first page shows: a right answer next to a wrong one to the same problem.

Both are of the latest step that has such a pair with verdicts. Where the verifier is being fooled, the wrong one is one
that it calls right; else it is one that it caught. Among several the shortest are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cotrain.reports.rollouts import FIELDS, UNSOUND

Row = Sequence[Any]  # a row of ``Rollouts.rows``, in the order of ``FIELDS``
COLUMN_OF = {name: index for index, name in enumerate(FIELDS)}


def choose_showcase(rows: Sequence[Row], *, fooled: bool) -> dict[str, Any] | None:
    """``{"kind": "fooled" or "caught", "wrong": "STEP:TASK:MEMBER", "right": …}``; None where no group has both."""
    kinds = ("fooled", "caught") if fooled else ("caught", "fooled")
    for kind in kinds:
        pair = _latest_pair(rows, wrong_is_called_right=kind == "fooled")
        if pair is not None:
            wrong, right = pair
            return {"kind": kind, "wrong": _address(wrong), "right": _address(right)}
    return None


def _latest_pair(rows: Sequence[Row], *, wrong_is_called_right: bool) -> tuple[Row, Row] | None:
    """The latest wrong answer that was called right (or wrong), and a right answer of its group that was called
    right."""
    accepted = [row for row in rows if _cell(row, "right") == 1 and _cell(row, "said") == 1]
    right_of_group: dict[tuple[int, int, int], Row] = {}
    for row in accepted:
        right = right_of_group.get(_group(row))
        if right is None or _order(row) < _order(right):
            right_of_group[_group(row)] = row
    verdict = int(wrong_is_called_right)
    wrong = [row for row in rows if _cell(row, "right") == 0 and _cell(row, "said") == verdict]
    beside_right = [row for row in wrong if _group(row) in right_of_group]
    if not beside_right:
        return None
    chosen = min(beside_right, key=lambda row: (-_cell(row, "step"), *_order(row)))
    return chosen, right_of_group[_group(chosen)]


def _group(row: Row) -> tuple[int, int, int]:
    return _cell(row, "step"), _cell(row, "task"), _cell(row, "role")


def _order(row: Row) -> tuple[bool, int, int, int]:
    """Sort key: short answers first; last, answers that are right in spite of a wrong step."""
    is_unsound = bool(_cell(row, "flags") & UNSOUND)
    return is_unsound, _cell(row, "tokens"), _cell(row, "task"), _cell(row, "member")


def _address(row: Row) -> str:
    return ":".join(str(_cell(row, name)) for name in ("step", "task", "member"))


def _cell(row: Row, name: str) -> Any:
    return row[COLUMN_OF[name]]
