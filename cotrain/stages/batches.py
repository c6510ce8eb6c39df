"""The stream of training batches: a function of one integer, prepared in a thread while the last batch is trained on.

The integer is the cursor, the index of the next document. A batch takes as many documents from there as its rows hold
(``packing.pack``), and the next cursor is the first document that it did not take: nothing is lost, nothing is seen
twice, and no state but the cursor is kept. Preparing ahead changes when a batch is made, never what is in it.

Left out: worker processes; tokenizing costs a few per cent of a step, and it releases the interpreter lock.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from cotrain.core.errors import DataError
from cotrain.stages.packing import Document, Packed, pack

Documents = Callable[[int, int], Sequence[Document]]  # (start, count) → documents start .. start+count−1
AHEAD = 2  # batches that may wait


def next_batch(
    documents: Documents, rows: int, length: int, pad_id: int, cursor: int, waiting: Sequence[Document] = ()
) -> tuple[int, list[Document], Packed]:
    """The batch that begins with document ``cursor``; ``waiting`` are documents from there on, fetched before.

    Returns the next cursor, what is waiting then, and the batch. Raises DataError for documents without tokens.
    """
    held = list(waiting)
    while (missing := rows * length - (tokens := sum(len(document.ids) for document in held))) > 0:
        mean = max(tokens / len(held), 1.0) if held else length
        fetched = documents(cursor + len(held), max(1, math.ceil(missing / mean)))
        if not any(document.ids for document in fetched):
            raise DataError(f"training documents {cursor + len(held)} and following are empty; bring text")
        held += fetched
    taken, batch = pack(held, rows, length, pad_id)
    return cursor + taken, held[taken:], batch


@contextmanager
def batches_ahead(
    documents: Documents, rows: int, length: int, pad_id: int, cursor: int, steps: int, device: torch.device
) -> Iterator[Iterator[tuple[int, Packed]]]:
    """``steps`` times (cursor after the batch, batch), in order; an error in the thread is raised where it is read."""
    ready: queue.Queue[tuple[int, Packed] | Exception] = queue.Queue(maxsize=AHEAD)
    stopped = threading.Event()

    def put(item: tuple[int, Packed] | Exception) -> None:
        while not stopped.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            at, waiting = cursor, list[Document]()
            for _ in range(steps):
                at, waiting, batch = next_batch(documents, rows, length, pad_id, at, waiting)
                put((at, batch.to(device)))
                if stopped.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the reader, who raises it
            put(error)

    def read() -> Iterator[tuple[int, Packed]]:
        for _ in range(steps):
            item = ready.get()
            if isinstance(item, Exception):
                raise item
            yield item

    thread = threading.Thread(target=work, name="batches", daemon=True)
    thread.start()
    try:
        yield read()
    finally:
        stopped.set()
        thread.join()


def pack_all(documents: Sequence[Document], rows: int, length: int, pad_id: int, device: torch.device) -> list[Packed]:
    """All of these documents, in as many batches as they need."""
    batches, rest = [], list(documents)
    while rest:
        taken, packed = pack(rest, rows, length, pad_id)
        batches.append(packed.to(device))
        rest = rest[taken:]
    return batches
