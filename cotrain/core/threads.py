"""How many CPU threads a command takes unless it is told."""

from __future__ import annotations

import os
import sys

from cotrain.core.verbosity import shows_notes


def usual_threads() -> int:
    """``OMP_NUM_THREADS`` where it is set to a number, as every program of PyTorch does, else the cores that are
    ours."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) else len(os.sched_getaffinity(0))


def settled_threads(given: int | None) -> int:
    """``--threads``, else the usual ones. Says so where there are several and other programs want all processors: a
    thread that waits for another one spins, and where that other one has no processor it spins for long."""
    count, cores, load = given or usual_threads(), os.cpu_count() or 1, os.getloadavg()[0]
    if count > 1 and load >= cores and shows_notes():
        print(
            f"note: other programs want the processors too (load {load:.1f}, {cores} cores), and {count} threads that "
            "wait for each other are then many times slower than one: --threads 1",
            file=sys.stderr,
        )
    return count
