"""How many CPU threads a command takes unless it is told."""

from __future__ import annotations

import os


def usual_threads() -> int:
    """``OMP_NUM_THREADS`` where it is set to a number, as every program of PyTorch does, else the cores that are
    ours."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) else len(os.sched_getaffinity(0))
