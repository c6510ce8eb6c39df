"""First-fit decreasing: things of given sizes into few bins of one capacity (Johnson 1973; at most 11/9 of the optimum
+ 1)."""

from __future__ import annotations

from collections.abc import Sequence


def first_fit_decreasing(sizes: Sequence[float], capacity: float) -> list[list[int]]:
    """Indices of ``sizes`` [N] by bin: each thing, largest first, goes into the first bin that has room for it, and a
    new one where none has. What is larger than ``capacity`` has a bin of its own. Within a bin indices rise."""
    if not capacity > 0.0:
        raise ValueError(f"first_fit_decreasing: capacity {capacity} must be positive")
    bins: list[list[int]] = []
    room_left: list[float] = []
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        bin_index = next((b for b, left in enumerate(room_left) if sizes[index] <= left), None)
        if bin_index is None:
            bin_index = len(bins)
            bins.append([])
            room_left.append(capacity)
        bins[bin_index].append(index)
        room_left[bin_index] -= sizes[index]
    return [sorted(mine) for mine in bins]
