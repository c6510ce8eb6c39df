"""The memory of a device: the machine's, within the limit of its container, or a GPU's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

CGROUPS = (  # limit and use of a container, version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
PARALLEL_RUNS = "COTRAIN_PARALLEL_RUNS"  # in the environment of runs that are started together: how many share a device


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of a device, in bytes."""

    total: float
    available: float


def memory_of(device: str, limits: Sequence[tuple[str, str]] = CGROUPS) -> Memory | None:
    """Return the memory of a device, swap included; None where it cannot be told. Where several runs share the device,
    at most this run's share is available. ``limits``: as ``CGROUPS``."""
    runs = os.environ.get(PARALLEL_RUNS, "")
    whole = _whole_memory(device, limits)
    if whole is None or not runs.isdecimal() or int(runs) < 2:
        return whole
    return replace(whole, available=min(whole.available, whole.total / int(runs)))


def _whole_memory(device: str, limits: Sequence[tuple[str, str]]) -> Memory | None:
    if device.startswith("cuda"):
        import torch

        free, total = torch.cuda.mem_get_info(torch.device(device))
        return Memory(total=float(total), available=float(free))
    try:
        meminfo = {}
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            meminfo[name] = 1024.0 * float(value.split()[0])  # given in kB
        memory = Memory(total=meminfo["MemTotal"] + meminfo.get("SwapTotal", 0.0), available=meminfo["MemAvailable"])
    except (OSError, ValueError, KeyError, IndexError):
        try:
            bytes_in_all = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        except (OSError, ValueError, AttributeError):
            return None
        memory = Memory(total=bytes_in_all, available=bytes_in_all)

    for limit, used in limits:
        try:
            most = float(Path(limit).read_text(encoding="ascii"))
            used_bytes = float(Path(used).read_text(encoding="ascii"))
        except (OSError, ValueError):  # not there, or "max"
            continue
        memory = Memory(total=min(memory.total, most), available=min(memory.available, max(0.0, most - used_bytes)))
    return memory
