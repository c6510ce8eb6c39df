"""Output of a running run: on a terminal a table that is redrawn, anywhere else one plain line a step.

Log files and pipes never get a control code. Control characters in texts of models and files are made visible before
they reach a terminal: an escape sequence in a rollout could rewrite the screen or the clipboard.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import live as rich_live
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from cotrain.core.verbosity import QUIET_SECONDS, clock_text, escape_terminal, remind_of, shows_notes, shows_progress
from cotrain.metrics.metric import FIRST
from cotrain.metrics.steps import budget_share, flops_of
from cotrain.metrics.table import is_headline, labelled_metric, table_rank
from cotrain.reports.curves import TITLES, process_cells, processes_of
from cotrain.reports.glimpse import read_glimpse
from cotrain.reports.guide import display_order, number_text

SPARKS = "▁▂▃▄▅▆▇█"
REMEMBERED_STEPS = 24  # steps over which the time left is estimated
PATIENCE_SECONDS = QUIET_SECONDS + 10.0  # the count of episodes, which says more, is printed after QUIET_SECONDS
GLIMPSE_SECONDS = 12.0  # how long a rollout stays on the terminal
TREND = 12  # bars of a spark line: the table fits 80 columns
COLUMNS = ("accuracy", "balanced_accuracy")
WELL_FORMED = 0.95  # a higher mean reward for the format is not shown
SHORT_NAMES = {"accuracy": "right", "balanced_accuracy": "bal. acc."}
HALF = 0.5
PAIR_REWARDS = ("chosen", "label")  # 1 for the wanted reply of a pair that is given, 0 for the other one
LEARNING_FIGURES = {  # metric of an objective, or of the ramp → (its label, whether it is a share)
    "process/pair_accuracy": ("answers in order by process rewards", True),
    "pair_accuracy": ("pairs in order", True),
    "margin": ("margin", False),
    "explained_variance": ("explained variance", False),
    "share": ("share of the problems", True),
}


def budgets_of(recipe: Any) -> dict[str, Any]:
    """The budgets that end a run of this recipe."""
    return {"steps": recipe.max_steps} | {name: getattr(recipe, name) for name in ("tokens", "flops", "seconds")}


class LiveTable:
    """Shows rows of metrics as they come. Use as a context: leaving it restores the terminal whatever happened."""

    def __init__(
        self,
        ends: Mapping[str, Any],  # what ends the run: "steps", and "tokens", "flops" and "seconds" where given
        *,
        spent: Mapping[str, float] | None = None,  # what a resumed run had spent before
        console: Console | None = None,
        directory: Path | None = None,  # directory of the run, whose rollouts are shown now and then
    ) -> None:
        self._ends = ends
        self._spent = dict(spent or {})
        has_other_budget = any(ends.get(name) for name in ("tokens", "flops", "seconds"))
        self._total = None if has_other_budget else int(ends["steps"])  # None: the number of steps is not known
        self._console = console or Console(highlight=False, force_terminal=sys.stdout.isatty())
        self._display: rich_live.Live | None = None
        self._seconds: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._last = time.monotonic()  # when the last step was over
        self._said = self._last  # when the last line was printed
        self._row: dict[str, Any] = {}  # of the last step
        self._history: dict[str, deque[float]] = {}  # metric → its last values
        self._held_out = ""  # what the last evaluation found
        self._directory = directory
        self._glimpse: list[str] = []  # a rollout with its verdicts
        self._glimpsed: float | None = None  # when it was chosen
        self._is_over = False

    def __enter__(self) -> LiveTable:
        self._last = time.monotonic()
        self._said = self._last
        remind_of(self)  # calls ``remind`` every few seconds
        if shows_progress() and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._display = rich_live.Live(
                Text("starting …", style="dim"), console=self._console, refresh_per_second=4, vertical_overflow="crop"
            )
            self._display.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        display = self._display
        self._display = None
        if display is not None:
            display.stop()

    def update(self, row: Mapping[str, Any]) -> None:
        """Show one row of metrics.jsonl (or the row with "seconds" and rates that the run hands out)."""
        if row.get("kind") == "evaluation":
            self._held_out = _evaluation_line(row)
            self._print_line(self._held_out, quiet=True)
            return
        now = time.monotonic()
        self._seconds.append(_number_or_none(row.get("seconds")) or now - self._last)
        self._last = now
        self._row = dict(row)
        self._add_spent(row)
        for role in speaking_roles(row):
            for key in (*_reward_keys(row, role), *(f"{role}/{column}" for column in COLUMNS)):
                value = _number_or_none(row.get(key))
                if value is not None:
                    self._history.setdefault(key, deque(maxlen=REMEMBERED_STEPS)).append(value)

        if self._display is None:
            self._print_line(step_line(row, self._total, self._seconds[-1], self._seconds_left()), quiet=False)
        else:
            self._renew_glimpse(now)
            self._display.update(self._draw_table())

    def _renew_glimpse(self, now: float) -> None:
        """Choose another rollout to look at, now and then."""
        step = _number_or_none(self._row.get("step"))
        is_due = self._glimpsed is None or now - self._glimpsed >= GLIMPSE_SECONDS
        if self._directory is None or step is None or not is_due:
            return
        lines = read_glimpse(self._directory, int(step), self._console.width)
        if lines:
            self._glimpse = lines
            self._glimpsed = now

    def remind(self) -> None:
        """Print that a step goes on, if there is no table and nothing was printed for a minute."""
        now = time.monotonic()
        if self._is_over or self._display is not None or now - self._said < PATIENCE_SECONDS:
            return
        begun = int(self._spent.get("batches", 0)) + 1
        is_last = self._total is not None and begun > self._total
        # "is not over yet": it may not have begun, as models are opened or the start is measured.
        state = "the end goes on" if is_last else f"step {begun} is not over yet"
        self._print_line(f"{state}, after {clock_text(now - self._last)}", quiet=True)

    def message(self, text: str) -> None:
        """Say one thing above the table, or as a line of its own."""
        self._print_line(escape_terminal(text), quiet=False, note=True)

    def _print_line(self, line: str, *, quiet: bool, note: bool = False) -> None:
        is_shown = shows_notes() if note else shows_progress()
        if not is_shown:
            return
        self._said = time.monotonic()
        style = "dim" if quiet and self._console.is_terminal else ""
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _add_spent(self, row: Mapping[str, Any]) -> None:
        spent = self._spent
        spent["batches"] = (_number_or_none(row.get("step")) or 0.0) + 1.0
        spent["tokens"] = _number_or_none(row.get("tokens")) or 0.0
        spent["flops"] = spent.get("flops", 0.0) + flops_of(row)
        spent["seconds"] = spent.get("seconds", 0.0) + self._seconds[-1]

    def _seconds_left(self) -> float | None:
        share = budget_share(self._ends, self._spent)
        if not share:
            return None
        steps = self._spent["batches"] * (1.0 - share) / share
        return steps * sum(self._seconds) / len(self._seconds)

    def _draw_table(self) -> Group:
        row = self._row
        done = int(_number_or_none(row.get("step")) or 0) + 1
        share = budget_share(self._ends, self._spent)
        pace = f"{_progress_bar(share)}  {self._seconds[-1]:.1f} s a step, {time_text(self._seconds_left())} left"
        head = Text.assemble(
            (f" {_step_text(done, self._total)} ", "bold reverse"),
            f"  {escape_terminal(row.get('phase', ''), 24)}  ",
            (pace, "dim"),
        )
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("role", "reward", "right", "bal. acc.", "tokens/s", "trend"):
            table.add_column(title, justify="left" if title in ("role", "reward", "trend") else "right", no_wrap=True)
        for role in speaking_roles(row):
            cells = self._role_cells(row, role)
            table.add_row(*(Text(escape_terminal(cell, 60)) for cell in cells))

        parts: list[Text | Table] = [head, table]
        learning = learning_texts(row)
        if learning:
            parts.append(Text("; ".join(learning), style="dim"))
        parts += _process_tables(row)
        if self._held_out:
            parts.append(Text(self._held_out, style="dim"))
        if self._glimpse:
            parts.append(Text())
            parts += [Text(line, no_wrap=True) for line in self._glimpse]
        return Group(*parts)

    def _role_cells(self, row: Mapping[str, Any], role: str) -> list[str]:
        """A line of the table."""
        reward_keys = _reward_keys(row, role)
        rewards = [f"{key.rsplit('/', 1)[1]} {_reward_with_share(row, key)}" for key in reward_keys[:2]]
        share_keys = [f"{role}/{column}" for column in COLUMNS]
        shares = [_share_text(row.get(key)) for key in share_keys]
        rate = token_rate(row, role, self._seconds[-1])

        trend: Sequence[float] = ()
        for key in (*reversed(share_keys), *reward_keys):
            if key in self._history:
                trend = tuple(self._history[key])
                break
        return [role, ", ".join(rewards), *shares, rate, spark_line(tuple(trend[-TREND:]))]


def _process_tables(row: Mapping[str, Any]) -> list[Table]:
    """A table with a line for each process; [] for a run in one process."""
    figures_by_process = processes_of(row)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in TITLES:
        table.add_column(title, justify="left" if title in ("process", "holds") else "right", no_wrap=True)
    for name, figures in figures_by_process.items():
        table.add_row(*(Text(escape_terminal(cell, 60), style="dim") for cell in process_cells(name, figures)))
    return [table] if figures_by_process else []


def speaking_roles(row: Mapping[str, Any]) -> list[str]:
    """The roles that wrote something in this step: those with a length or an accuracy."""
    endings = ("/length", "/accuracy", "/balanced_accuracy")
    roles = [key.split("/")[0] for key in row if key.count("/") == 1 and key.endswith(endings)]
    return display_order(role for role in roles if not _has_given_pairs(row, role))


def _has_given_pairs(row: Mapping[str, Any], role: str) -> bool:
    """Whether a role's texts are pairs that were given, the wanted one rewarded as such: half of them are right,
    whatever is learned. A role that answers problems has figures of its groups or steps, too."""
    rewards = [_number_or_none(row.get(f"{role}/reward/{name}")) for name in PAIR_REWARDS]
    has_answers = any(f"{role}/{name}" in row for name in ("majority_accuracy", "step_accuracy"))
    return not has_answers and _number_or_none(row.get(f"{role}/accuracy")) == HALF and HALF in rewards


def learning_texts(row: Mapping[str, Any]) -> list[str]:
    """``critic: explained variance 0.31``: a text for each objective or policy with one of ``LEARNING_FIGURES``, and
    for each implicit reward model."""
    texts: dict[str, list[str]] = {}
    for key in row:
        name, _, metric = key.partition("/")
        label, is_share = LEARNING_FIGURES.get(metric, ("", False))
        is_nested_accuracy = metric.count("/") == 1 and metric.endswith("/accuracy")
        is_trained = _number_or_none(row.get(f"{name}/updates")) is not None
        if is_nested_accuracy and is_trained:  # prm/solver/accuracy, of an implicit reward model
            label = "right by its own scores"
            is_share = True
        if label and _number_or_none(row[key]) is not None:
            value = _share_text(row[key]) if is_share else _plain_text(row[key])
            texts.setdefault(name, []).append(f"{label} {value}")
    return [escape_terminal(f"{name}: {', '.join(figures)}", 120) for name, figures in texts.items()]


def _step_text(done: int, total: int | None) -> str:
    return f"step {done}" if total is None else f"step {done}/{total}"


def step_line(row: Mapping[str, Any], total: int | None, seconds: float, left: float | None) -> str:
    """One line of plain text for one step, safe for any terminal."""
    parts = [
        _step_text(int(_number_or_none(row.get("step")) or 0) + 1, total),
        escape_terminal(row.get("phase", ""), 24),
    ]
    for role in speaking_roles(row):
        figures = _short_figures(row, role)
        if figures:
            parts.append(escape_terminal(f"{role}: {', '.join(figures)}", 120))

    parts += learning_texts(row)
    if _number_or_none(row.get("gap")) is not None:
        parts.append(f"gap {_plain_text(row['gap'])}")
    parts.append(f"{seconds:.1f} s")
    if left is not None and left > 0.0:  # behind the last step only the end is measured
        parts.append(f"{time_text(left)} left")
    return " | ".join(part for part in parts if part)


def _short_figures(row: Mapping[str, Any], role: str) -> list[str]:
    """How often a role is right, or if that is unknown, its rewards. The share with a readable format is added if it is
    below ``WELL_FORMED``."""
    shares = {column: _share_text(row.get(f"{role}/{column}")) for column in COLUMNS}
    right = [f"{SHORT_NAMES[column]} {share}" for column, share in shares.items() if share]
    if not right:
        return [f"{key.rsplit('/', 1)[1]} {_reward_with_share(row, key)}" for key in _reward_keys(row, role)]
    readable = _number_or_none(row.get(f"{role}/reward/format"))
    is_often_unreadable = readable is not None and readable < WELL_FORMED
    return [*right, f"format {_share_text(readable)}"] if is_often_unreadable else right


def token_rate(row: Mapping[str, Any], role: str, seconds: float) -> str:
    """Tokens a second of a role; "" if unknown, and for a role that writes no text but gives a score."""
    if _number_or_none(row.get(f"{role}/score")) is not None:
        return ""
    value = _number_or_none(row.get(f"{role}/tokens_per_second"))
    tokens = _number_or_none(row.get(f"{role}/tokens"))
    if value is None and tokens is not None and seconds > 0:
        value = tokens / seconds
    return "" if value is None else f"{value:.0f}"


def spark_line(values: tuple[float, ...]) -> str:
    """The last values as bars between their least and greatest."""
    if not values:
        return ""
    low = min(values)
    high = max(values)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((v - low) * scale)] for v in values)


def time_text(seconds: float | None) -> str:
    """``75`` as ``1:15``, hours as ``2:03:10``, an unknown time as ``?``."""
    return "?" if seconds is None else clock_text(seconds)


def _evaluation_line(row: Mapping[str, Any]) -> str:
    """The headlines of every role side by side: ``solver pass@1 50.0 %, greedy accuracy 48.0 %, …; verifier …``."""
    roles: dict[str, list[str]] = {}
    for key in row:
        parts = key.split("/")
        if len(parts) == 3:
            prefix, role, name = parts
            if prefix == "eval" and is_headline(name, FIRST):
                roles.setdefault(role, []).append(name)
    role_texts = []
    for role in display_order(roles):
        figures = []
        for name in sorted(roles[role], key=table_rank):
            figures.append(f"{labelled_metric(name).label} {_share_text(row[f'eval/{role}/{name}'])}")
        role_texts.append(f"{role} {', '.join(figures)}")
    done = int(_number_or_none(row.get("step")) or 0) + 1
    return escape_terminal(f"held-out problems after step {done}: {'; '.join(role_texts) or 'measured'}", 400)


def _reward_keys(row: Mapping[str, Any], role: str) -> list[str]:
    keys = (k for k in row if k.startswith(f"{role}/reward/") and k.count("/") == 2 and not k.endswith("/class_label"))
    return [key for key in keys if _number_or_none(row[key]) is not None]


def _reward_with_share(row: Mapping[str, Any], key: str) -> str:
    """``0.31 for 40 % of them``: a mean reward, and the share of answers that were given one, unless all were."""
    text = _plain_text(row[key])
    share = _share_text(row.get(f"{key}/given"))
    if share:
        text += f" for {share} of them"
    return text


def _progress_bar(share: float, width: int = 20) -> str:
    full = int(width * share + 1e-9)
    return "█" * full + "░" * (width - full)


def _share_text(value: object) -> str:
    number = _number_or_none(value)
    return "" if number is None else number_text(number, share=True)


def _plain_text(value: object) -> str:
    number = _number_or_none(value)
    return "" if number is None else f"{number:.2f}"


def _number_or_none(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
