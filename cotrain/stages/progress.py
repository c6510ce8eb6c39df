"""Progress lines of ``pretrain`` and ``sft``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def progress_printer(steps: int) -> Callable[[dict[str, Any]], None]:
    """Prints a row with how many steps there are, and from the second row on the time that is left."""
    first: list[tuple[int, float]] = []

    def show_row(row: dict[str, Any]) -> None:
        now, step = time.monotonic(), int(row["step"])
        first[:] = first or [(step, now)]
        begun, since = first[0]
        left = (
            f"  {_duration_text((now - since) / (step - begun) * (steps - step))} left" if begun < step < steps else ""
        )
        shown = {**row, "step": f"{step} of {steps}"}
        print(
            "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()) + left,
            flush=True,
        )

    return show_row


def _duration_text(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes >= 60
        else f"{minutes} min"
        if minutes
        else f"{seconds:.0f} s"
    )
