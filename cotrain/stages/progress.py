"""Progress lines of ``pretrain``, ``sft`` and ``tokenizer``, and their last line."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from cotrain.core.verbosity import tell_result


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


def report_outcome(outcome: Any, out: str) -> int:
    loss = None if math.isnan(outcome.loss) else outcome.loss  # done before: JSON has no NaN
    names = ("step", "finished", "seconds")
    found = {name: getattr(outcome, name) for name in names} | {"loss": loss, "validation": dict(outcome.validation)}
    tell_result({"model": out, **found})
    if outcome.finished:
        held_out = ", ".join(f"{name} {value:.3f}" for name, value in outcome.validation.items())
        losses = "finished before" if math.isnan(outcome.loss) else f"loss {outcome.loss:.3f}; held out: {held_out}"
        print(f"model: {out}  ({losses})")
        return 0
    print(f"stopped at step {outcome.step}; nothing is lost. Go on with the same command and --resume")
    return 130
