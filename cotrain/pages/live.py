"""What a run says while it runs: a table that renews itself on a terminal, one plain line a step anywhere else.

Log files and pipes never see a control code, and no text from a model or a file reaches a terminal before its control
characters have been made visible (an escape sequence in a rollout could otherwise rewrite the screen or the clipboard).
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich import live as rich_live
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from cotrain.core.verbosity import shows_notes, shows_progress
from cotrain.metrics.metric import FIRST
from cotrain.metrics.spent import flops_of, share_spent
from cotrain.metrics.table import is_headline, meaning, rank
from cotrain.pages.escape import terminal
from cotrain.pages.guide import number
from cotrain.pages.processes import TITLES, cells, processes_of
from cotrain.pages.read import in_order

SPARKS = "▁▂▃▄▅▆▇█"
REMEMBERED = 24  # steps over which the time left is estimated
TREND = 12  # bars of a spark line: the table fits 80 columns
COLUMNS = ("accuracy", "balanced_accuracy")
LEARNED = {  # of what objectives report: how well what pays others, or teaches by pairs, does its part
    "process/pair_accuracy": ("answers in order by process rewards", True),
    "pair_accuracy": ("pairs in order", True),
    "margin": ("margin", False),
    "explained_variance": ("explained variance", False),
}


def ends_of(recipe: Any) -> dict[str, Any]:
    """What ends a run of this recipe."""
    return {"steps": recipe.length} | {name: getattr(recipe, name) for name in ("tokens", "flops", "seconds")}


class Live:
    """Shows rows of metrics as they come. Use as a context: leaving it restores the terminal whatever happened."""

    def __init__(
        self,
        ends: Mapping[str, Any],  # what ends the run: "steps", and "tokens", "flops" and "seconds" where given
        *,
        spent: Mapping[str, float] | None = None,  # before, by a run that goes on
        console: Console | None = None,
    ) -> None:
        self._ends, self._spent = ends, dict(spent or {})
        budget = any(ends.get(name) for name in ("tokens", "flops", "seconds"))
        self._total = None if budget else int(ends["steps"])  # of steps, where they end the run
        self._console = console or Console(highlight=False, force_terminal=sys.stdout.isatty())
        self._display: rich_live.Live | None = None
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self._last = time.monotonic()
        self._row: dict[str, Any] = {}
        self._history: dict[str, deque[float]] = {}
        self._held_out = ""  # what the last evaluation found

    def __enter__(self) -> Live:
        self._last = time.monotonic()
        if shows_progress() and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._display = rich_live.Live(
                Text("starting …", style="dim"), console=self._console, refresh_per_second=4, vertical_overflow="crop"
            )
            self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.stop()

    def update(self, row: Mapping[str, Any]) -> None:
        """Show one row of metrics.jsonl (or the row with "seconds" and rates that the run hands out)."""
        if row.get("kind") == "evaluation":
            self._held_out = _evaluation_line(row)
            self._say(self._held_out, quiet=True)
            return
        now = time.monotonic()
        self._seconds.append(_number(row.get("seconds")) or now - self._last)
        self._last = now
        self._row = dict(row)
        self._spend(row)
        for role in roles_of(row):
            for key in (*_rewards(row, role), *(f"{role}/{c}" for c in COLUMNS)):
                value = _number(row.get(key))
                if value is not None:
                    self._history.setdefault(key, deque(maxlen=REMEMBERED)).append(value)
        if self._display is None:
            self._say(step_line(row, self._total, self._seconds[-1], self._left()), quiet=False)
        else:
            self._display.update(self._screen())

    def message(self, text: str) -> None:
        """Say one thing above the table, or as a line of its own."""
        self._say(terminal(text), quiet=False, note=True)

    def _say(self, line: str, *, quiet: bool, note: bool = False) -> None:
        if not (shows_notes() if note else shows_progress()):
            return
        self._console.print(Text(line, style="dim" if quiet and self._console.is_terminal else ""), soft_wrap=True)

    def _spend(self, row: Mapping[str, Any]) -> None:
        spent = self._spent
        spent["batches"] = (_number(row.get("step")) or 0.0) + 1.0
        spent["tokens"] = _number(row.get("tokens")) or 0.0
        spent["flops"] = spent.get("flops", 0.0) + flops_of(row)
        spent["seconds"] = spent.get("seconds", 0.0) + self._seconds[-1]

    def _left(self) -> float | None:
        share = share_spent(self._ends, self._spent)
        if not share:
            return None
        steps = self._spent["batches"] * (1.0 - share) / share
        return steps * sum(self._seconds) / len(self._seconds)

    def _screen(self) -> Group:
        row = self._row
        done = int(_number(row.get("step")) or 0) + 1
        share = share_spent(self._ends, self._spent)
        head = Text.assemble(
            (f" {_place(done, self._total)} ", "bold reverse"),
            f"  {terminal(row.get('phase', ''), 24)}  ",
            (f"{_bar(share)}  {self._seconds[-1]:.1f} s a step, {clock(self._left())} left", "dim"),
        )
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("role", "reward", "right", "bal. acc.", "tokens/s", "trend"):
            table.add_column(title, justify="left" if title in ("role", "reward", "trend") else "right", no_wrap=True)
        for role in roles_of(row):
            rewards = ", ".join(f"{k.rsplit('/', 1)[1]} {_reward_with_share(row, k)}" for k in _rewards(row, role)[:2])
            followed = (*(f"{role}/{c}" for c in reversed(COLUMNS)), *_rewards(row, role))
            trend = next((self._history[key] for key in followed if key in self._history), ())
            shares = [_share(row.get(f"{role}/{c}")) for c in COLUMNS]
            cells = [role, rewards, *shares, rate(row, role, self._seconds[-1]), spark(tuple(trend)[-TREND:])]
            table.add_row(*(Text(terminal(cell, 60)) for cell in cells))
        learned = [Text("; ".join(learned_of(row)), style="dim")] if learned_of(row) else []
        return Group(head, table, *learned, *_processes(row), Text(self._held_out, style="dim"))


def _processes(row: Mapping[str, Any]) -> list[Table]:
    """A line for each process, where a run has processes of its own."""
    found = processes_of(row)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in TITLES:
        table.add_column(title, justify="left" if title in ("process", "holds") else "right", no_wrap=True)
    for name, figures in found.items():
        table.add_row(*(Text(terminal(cell, 60), style="dim") for cell in cells(name, figures)))
    return [table] if found else []


def roles_of(row: Mapping[str, Any]) -> list[str]:
    """Who spoke at this step: the prefixes that have a length, tokens or an accuracy."""
    spoken = ("/length", "/accuracy", "/balanced_accuracy")
    return in_order(key.split("/")[0] for key in row if key.count("/") == 1 and key.endswith(spoken))


def learned_of(row: Mapping[str, Any]) -> list[str]:
    """``critic: explained variance 0.31``: a text for each objective, or policy, that reports one of ``LEARNED``."""
    found: dict[str, list[str]] = {}
    for key in row:
        name, _, rest = key.partition("/")
        label, is_share = LEARNED.get(rest, ("", False))
        if rest.count("/") == 1 and rest.endswith("/accuracy") and _number(row.get(f"{name}/updates")) is not None:
            label, is_share = "right by its own scores", True  # of an implicit reward model
        if label and _number(row[key]) is not None:
            found.setdefault(name, []).append(f"{label} {(_share if is_share else _plain)(row[key])}")
    return [terminal(f"{name}: {', '.join(figures)}", 120) for name, figures in found.items()]


def _place(done: int, total: int | None) -> str:
    return f"step {done}" + ("" if total is None else f"/{total}")


def step_line(row: Mapping[str, Any], total: int | None, seconds: float, left: float | None) -> str:
    """One line of plain text for one step, safe for any terminal."""
    parts = [_place(int(_number(row.get("step")) or 0) + 1, total), terminal(row.get("phase", ""), 24)]
    for role in roles_of(row):
        own = [f"{key.rsplit('/', 1)[1]} {_reward_with_share(row, key)}" for key in _rewards(row, role)]
        shares = {column: _share(row.get(f"{role}/{column}")) for column in COLUMNS}
        own += [f"{column.replace('_', ' ')} {share}" for column, share in shares.items() if share]
        own += [f"{r} tokens/s" for r in [rate(row, role, seconds)] if r]
        parts.append(terminal(f"{role}: {', '.join(own)}", 200))
    parts += learned_of(row)
    if _number(row.get("gap")) is not None:
        parts.append(f"gap {_plain(row['gap'])}")
    parts.append(f"{seconds:.1f} s")
    if left is not None:
        parts.append(f"{clock(left)} left")
    return " | ".join(part for part in parts if part)


def rate(row: Mapping[str, Any], role: str, seconds: float) -> str:
    """Tokens a second of a role, "" when it is not known, and of one that gives a score and no text."""
    if _number(row.get(f"{role}/score")) is not None:
        return ""
    value = _number(row.get(f"{role}/tokens_per_second"))
    tokens = _number(row.get(f"{role}/tokens"))
    if value is None and tokens is not None and seconds > 0:
        value = tokens / seconds
    return "" if value is None else f"{value:.0f}"


def spark(values: tuple[float, ...]) -> str:
    """The last values as bars between their least and greatest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((v - low) * scale)] for v in values)


def clock(seconds: float | None) -> str:
    """``75`` as ``1:15``, hours as ``2:03:10``, an unknown time as ``?``."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _evaluation_line(row: Mapping[str, Any]) -> str:
    """The headlines of every role side by side: ``solver pass@1 50.0 %, greedy accuracy 48.0 %, …; verifier …``."""
    roles: dict[str, list[str]] = {}
    for key in row:
        prefix, role, name = (*key.split("/"), "", "")[:3]
        if prefix == "eval" and key.count("/") == 2 and is_headline(name, FIRST):
            roles.setdefault(role, []).append(name)
    said = [
        f"{role} "
        + ", ".join(f"{meaning(name).label} {_share(row[f'eval/{role}/{name}'])}" for name in sorted(names, key=rank))
        for role, names in sorted(roles.items(), key=lambda entry: in_order(roles).index(entry[0]))
    ]
    done = int(_number(row.get("step")) or 0) + 1
    return terminal(f"held-out problems after step {done}: {'; '.join(said) or 'measured'}", 400)


def _rewards(row: Mapping[str, Any], role: str) -> list[str]:
    keys = (k for k in row if k.startswith(f"{role}/reward/") and k.count("/") == 2 and not k.endswith("/truth"))
    return [key for key in keys if _number(row[key]) is not None]


def _reward_with_share(row: Mapping[str, Any], key: str) -> str:
    """A mean reward, and of how many where others were given none."""
    given = _share(row.get(f"{key}/given"))
    return _plain(row[key]) + (f" for {given} of them" if given else "")


def _bar(share: float, width: int = 20) -> str:
    full = int(width * share + 1e-9)
    return "█" * full + "░" * (width - full)


def _share(value: object) -> str:
    found = _number(value)
    return "" if found is None else number(found, share=True)


def _plain(value: object) -> str:
    found = _number(value)
    return "" if found is None else f"{found:.2f}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
