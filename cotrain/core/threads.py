"""How many CPU threads a command uses where the user gives no number."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cotrain.core.verbosity import print_note, shows_notes


def usable_cores() -> int:
    """The processor cores that this process may use; all of the machine's where the system has no such limit, as
    macOS."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def usual_threads() -> int:
    """``OMP_NUM_THREADS`` where it is set to a number, as in every program of PyTorch, else ``usable_cores``."""
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) else usable_cores()


def wait_briefly() -> None:
    """Let a thread of GNU OpenMP that waits for another one look 1,000 times, and then sleep. By default it looks
    300,000 times, which takes milliseconds, in which the thread that it waits for may get no processor. To be called
    before torch is imported. What the user has set, by this variable or OMP_WAIT_POLICY, stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def busy_elsewhere(seconds: float = 0.1) -> float:
    """The number of cores that other programs keep busy, measured while this one sleeps for so many seconds; the load
    of the last minute where the kernel does not tell."""
    try:
        idle_before, total_before = cpu_ticks()
        time.sleep(seconds)
        idle_after, total_after = cpu_ticks()
    except (OSError, ValueError):
        return os.getloadavg()[0]
    total = total_after - total_before
    if not total:
        return 0.0
    idle_share = (idle_after - idle_before) / total
    return (os.cpu_count() or 1) * (1 - idle_share)


def cpu_ticks() -> tuple[int, int]:
    """Ticks that all processors together were idle, and all ticks, since the machine started (proc_stat(5))."""
    first_line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    ticks = [int(word) for word in first_line.split()[1:9]]  # user nice system idle iowait irq softirq steal
    return ticks[3] + ticks[4], sum(ticks)


def choose_threads(requested: int | None) -> int:
    """``--threads``, else the usual number. Prints a note where there are several threads and other programs leave too
    few cores for them: a thread then waits for another one that has no core."""
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
