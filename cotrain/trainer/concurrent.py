"""Work that is done beside each other, in threads: what waits for other processes or devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Result = TypeVar("Result")


def run_beside(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of all, in their order. One alone runs here. All are over when it returns; raises the first error in
    the order of ``works``, not of time."""
    if len(works) < 2:
        return [work() for work in works]
    with ThreadPoolExecutor(len(works), thread_name_prefix="beside") as threads:
        futures = [threads.submit(work) for work in works]
        wait(futures)
    return [future.result() for future in futures]
