import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.pretraining.packing import (
    PADDING,
    Document,
    best_fit,
    block_mask,
    cut_document,
    longest_prefix,
    pack_documents,
    segment_lengths,
)


def document(*ids, learn=None):
    return Document(ids=ids, learn=learn or (True,) * len(ids))


def test_a_batch_by_hand():
    taken, batch = pack_documents([document(1, 2), document(3, 4, 5), document(6), document(7, 8, 9)], 2, 4, pad_id=0)
    assert taken == 3, "the fourth would need a third row"
    assert batch.ids.tolist() == [[3, 4, 5, 6], [1, 2, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert batch.segments.tolist() == [[0, 0, 0, 1], [0, 0, PADDING, PADDING]]
    assert batch.learn.tolist() == [[False, True, True, False], [False, True, False, False]]


def test_best_fit_by_hand():
    assert best_fit([2, 5, 3, 4], rows=2, length=7) == [[1, 0], [3, 2]]
    assert best_fit([4, 4, 4], rows=2, length=7) is None
    assert longest_prefix([4, 4, 4], rows=2, length=7) == (2, [[0], [1]])
    assert best_fit([], rows=1, length=3) == [[]]


def test_long_documents_are_cut_into_rows():
    pieces = cut_document(document(*range(1, 8), learn=(False,) * 4 + (True,) * 3), 3)
    assert [piece.ids for piece in pieces] == [(1, 2, 3), (4, 5, 6), (7,)]
    assert [piece.learn for piece in pieces] == [(False,) * 3, (False, True, True), (True,)]
    taken, batch = pack_documents([document(*range(1, 8)), document(9)], 3, 3, pad_id=0)
    assert taken == 2 and batch.ids.tolist() == [[1, 2, 3], [4, 5, 6], [7, 9, 0]]
    taken, batch = pack_documents([document(*range(1, 8))], 2, 3, pad_id=0)
    assert taken == 1 and batch.ids.tolist() == [[1, 2, 3], [4, 5, 6]], "longer than the batch: the end is lost"
    taken, _ = pack_documents([document(9), document(*range(1, 8))], 2, 3, pad_id=0)
    assert taken == 1, "a document is taken whole or waits for the next batch"


documents = st.lists(
    st.lists(st.tuples(st.integers(1, 99), st.booleans()), max_size=12).map(
        lambda pairs: Document(ids=tuple(i for i, _ in pairs), learn=tuple(b for _, b in pairs))
    ),
    max_size=20,
)


@pytest.mark.whole
@settings(max_examples=200, deadline=None)
@given(documents, st.integers(1, 5), st.integers(2, 9))
def test_a_batch_holds_its_documents_and_nothing_else(items, rows, length):
    taken, batch = pack_documents(items, rows, length, pad_id=0)
    assert 0 <= taken <= len(items) and (taken or not items)
    found = []
    for row in range(rows):
        segments = batch.segments[row]
        for number in range(int(segments.max()) + 1):
            place = (segments == number).nonzero().squeeze(1)
            assert place.tolist() == list(range(int(place[0]), int(place[-1]) + 1)), "a document lies in one stretch"
            assert batch.positions[row, place].tolist() == list(range(len(place)))
            learn = batch.learn[row, place].tolist()
            assert not learn[0]
            found.append((tuple(batch.ids[row, place].tolist()), tuple(learn)))
        padding = segments == PADDING
        assert not batch.ids[row, padding].any() and not batch.learn[row, padding].any()
    pieces = [piece for item in items[:taken] for piece in cut_document(item, length) if piece.ids][
        : rows if taken == 1 else None
    ]
    assert sorted(found) == sorted((piece.ids, (False, *piece.learn[1:])) for piece in pieces)


@pytest.mark.whole
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 7), max_size=12), st.integers(1, 4))
def test_the_prefix_is_the_longest_that_best_fit_places(sizes, rows):
    count, placed = longest_prefix(sizes, rows, 7)
    assert sorted(item for row in placed for item in row) == list(range(count))
    assert all(sum(sizes[item] for item in row) <= 7 for row in placed)
    assert all(best_fit(sizes[:longer], rows, 7) is None for longer in range(count + 1, len(sizes) + 1))


def test_mask_by_hand():
    segments = torch.tensor([[0, 0, 1, PADDING]])
    assert block_mask(segments).int().tolist() == [[[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]]


def test_lengths_by_hand():
    assert segment_lengths(torch.tensor([[0, 0, 1, PADDING], [0, 0, 0, 0], [0, 1, 1, 2]])) == [2, 1, 1, 4, 1, 2, 1]
