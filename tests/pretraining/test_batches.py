import time
from itertools import pairwise

import pytest
import torch

from cotrain.core.errors import DataError
from cotrain.pretraining.batches import batches_ahead, next_batch, pack_all
from cotrain.pretraining.documents import document_reader
from cotrain.pretraining.packing import Document
from tests.sentences import refuses

CPU = torch.device("cpu")


def same(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("ids", "learn", "positions", "segments"))


def test_a_batch_is_a_function_of_its_cursor(sentences, tokenizer):
    read = document_reader(sentences, tokenizer)
    cursor, waiting, cursors, batches = 0, [], [0], []
    for _ in range(6):
        cursor, waiting, batch = next_batch(read, 3, 120, 0, cursor, waiting)
        cursors.append(cursor)
        batches.append(batch)
    for step, batch in enumerate(batches):
        after, _, again = next_batch(read, 3, 120, 0, cursors[step])
        assert after == cursors[step + 1] and same(batch, again)
    counts = [int(sum(segments.max() + 1 for segments in batch.segments)) for batch in batches]
    assert counts == [b - a for a, b in pairwise(cursors)], "each document in one batch"
    filled = sum(float((batch.segments >= 0).float().mean()) for batch in batches) / 6
    assert filled > 0.8


def test_preparing_ahead_changes_nothing(sentences, tokenizer):
    read = document_reader(sentences, tokenizer)

    def slowly(start, count):
        time.sleep(0.003)
        return read(start, count)

    with batches_ahead(read, 3, 40, 0, 5, 4, CPU) as one, batches_ahead(slowly, 3, 40, 0, 5, 4, CPU) as two:
        pairs = list(zip(one, two, strict=True))
    assert len(pairs) == 4 and all(a[0] == b[0] and same(a[1], b[1]) for a, b in pairs)


def test_errors_and_early_exits(sentences, tokenizer):
    error = DataError("row 21 is broken")

    def broken(start, count):
        if start > 20:
            raise error
        return document_reader(sentences, tokenizer)(start, count)

    with batches_ahead(broken, 2, 40, 0, 0, 50, CPU) as batches:
        next(batches)
        with pytest.raises(DataError) as raised:
            list(batches)
        assert raised.value is error
    with batches_ahead(document_reader(sentences, tokenizer), 2, 40, 0, 0, 50, CPU) as batches:
        next(batches)  # leaving now must not hang on the batches that wait


def test_documents_without_tokens_are_refused():
    with refuses("E_DOCUMENTS_EMPTY", names="documents 7"):
        next_batch(lambda start, count: [Document(ids=(), learn=())] * count, 2, 8, 0, 7)


def test_all_documents_of_a_set_are_packed():
    items = [Document(ids=(i,) * 3, learn=(True,) * 3) for i in range(1, 10)]
    batches = pack_all(items, rows=2, length=4, pad_id=0, device=CPU)
    assert len(batches) == 5
    assert sorted({int(i) for batch in batches for i in batch.ids.unique() if i}) == list(range(1, 10))
