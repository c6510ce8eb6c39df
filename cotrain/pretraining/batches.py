"""The stream of training batches for pretraining and fine-tuning: addressed by one integer, and prepared in a thread
ahead of use.

The integer is the cursor, the index of the next document. A batch takes as many documents from there as its rows hold
(``packing.pack_documents``), and the next cursor is the first document that it did not take: nothing is lost, nothing
is seen twice, and no state but the cursor is kept. Preparing ahead changes when a batch is made, never what is in it.

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
from cotrain.pretraining.packing import Document, PackedBatch, pack_documents

Documents = Callable[[int, int], Sequence[Document]]  # (start, count) → documents start .. start+count−1
AHEAD = 2  # batches that may wait
MOST_EMPTY = 1000  # documents without tokens, in a row, until there is no text


def next_batch(
    documents: Documents, rows: int, length: int, pad_id: int, cursor: int, waiting: Sequence[Document] = ()
) -> tuple[int, list[Document], PackedBatch]:
    """The batch that begins with document ``cursor``; ``waiting`` are documents from there on, fetched before.

    Returns the next cursor, what is waiting then, and the batch. Raises DataError for documents without tokens.
    """
    available = list(waiting)
    empty = 0  # documents without tokens, in a row: of conversations that are left out
    while True:
        tokens = sum(len(document.ids) for document in available)
        missing = rows * length - tokens
        if missing <= 0:
            break
        mean = max(tokens / len(available), 1.0) if available else length
        fetched = documents(cursor + len(available), max(1, math.ceil(missing / mean)))
        empty = 0 if any(document.ids for document in fetched) else empty + len(fetched)
        if empty >= MOST_EMPTY:
            first = cursor + len(available) + len(fetched) - empty
            raise DataError(f"training documents {first} and following are empty; bring text", code="E_DOCUMENTS_EMPTY")
        available += fetched
    n_documents, batch = pack_documents(available, rows, length, pad_id)
    return cursor + n_documents, available[n_documents:], batch


@contextmanager
def batches_ahead(
    documents: Documents, rows: int, length: int, pad_id: int, cursor: int, steps: int, device: torch.device
) -> Iterator[Iterator[tuple[int, PackedBatch]]]:
    """``steps`` times (cursor after the batch, batch), in order; an error in the thread is raised where it is read."""
    ready: queue.Queue[tuple[int, PackedBatch] | Exception] = queue.Queue(maxsize=AHEAD)
    reader_left = threading.Event()

    def put_item(item: tuple[int, PackedBatch] | Exception) -> None:
        while not reader_left.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def fill_queue() -> None:
        try:
            at = cursor
            waiting: list[Document] = []
            for _ in range(steps):
                at, waiting, batch = next_batch(documents, rows, length, pad_id, at, waiting)
                put_item((at, batch.to(device)))
                if reader_left.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to the reader, who raises it
            put_item(error)

    def read_queue() -> Iterator[tuple[int, PackedBatch]]:
        for _ in range(steps):
            item = ready.get()
            if isinstance(item, Exception):
                raise item
            yield item

    thread = threading.Thread(target=fill_queue, name="batches", daemon=True)
    thread.start()
    try:
        yield read_queue()
    finally:
        reader_left.set()
        thread.join()


def pack_all(
    documents: Sequence[Document], rows: int, length: int, pad_id: int, device: torch.device
) -> list[PackedBatch]:
    """All of these documents, in as many batches as they need."""
    batches = []
    rest = list(documents)
    while rest:
        n_documents, packed = pack_documents(rest, rows, length, pad_id)
        batches.append(packed.to(device))
        rest = rest[n_documents:]
    return batches
