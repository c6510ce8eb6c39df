"""How many CPU threads a command uses where the user gives no number."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cotrain.core.verbosity import print_note, shows_notes


def usable_cores() -> int:
    """Those that this process may use; all of the machine's where the system does not say, as macOS does not."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def usual_threads() -> int:
    """``OMP_NUM_THREADS`` where it is set to a number, as every program of PyTorch does, else ``usable_cores``."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) else usable_cores()


def wait_briefly() -> None:
    """Before torch is imported: a thread of GNU OpenMP that waits for another one looks 1,000 times, then sleeps. By
    default it looks 300,000 times, for milliseconds, in which that other one may have no processor. What the user set,
    here or as OMP_WAIT_POLICY, stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def busy_elsewhere(seconds: float = 0.1) -> float:
    """Processors that other programs keep busy, looked at for so many seconds in which this one sleeps; the load of
    the last minute where the kernel does not tell."""
    try:
        before = cpu_ticks()
        time.sleep(seconds)
        idle, total = (now - then for now, then in zip(cpu_ticks(), before, strict=True))
    except (OSError, ValueError):
        return os.getloadavg()[0]
    return (os.cpu_count() or 1) * (1 - idle / total) if total else 0.0


def cpu_ticks() -> tuple[int, int]:
    """Ticks that all processors together were idle, and all ticks, since the machine started (proc(5))."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def choose_threads(requested: int | None) -> int:
    """``--threads``, else the usual ones. Says so where there are several and other programs leave too few processors:
    a thread then waits for another one that has no processor."""
    count = requested or usual_threads()
    cores = os.cpu_count() or 1
    if count == 1 or not shows_notes():
        return count
    busy = busy_elsewhere()
    if busy > cores - count + 0.5:
        print_note(
            f"other programs use {busy:.1f} of {cores} processors, and {count} threads that wait for each other are "
            "then slower than one: --threads 1"
        )
    return count
