"""The order in which a finite source is gone through: every place once an epoch, and another order in the next."""

import pytest

from cotrain.config.schedule import train_task
from cotrain.core.seeding import permuted_index


@pytest.mark.whole
@pytest.mark.parametrize("size", [*range(1, 41), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513])
def test_every_place_comes_once(size):
    for key in (0, 1, 2**40 + 7):
        assert sorted(permuted_index(place, size, key) for place in range(size)) == list(range(size)), key


def test_far_places_of_a_large_source_do_not_meet():
    for size in (10**6, 2**20, 2**20 + 1, 3 * 10**9):
        places = [0, 1, 2, size // 2, size - 3, size - 2, size - 1, *range(5, 60)]
        found = [permuted_index(place, size, 5) for place in places]
        assert len(set(found)) == len(places) and all(0 <= place < size for place in found)


def test_keys_give_other_orders():
    orders = {tuple(permuted_index(place, 12, key) for place in range(12)) for key in range(30)}
    assert len(orders) == 30 and tuple(range(12)) not in orders


def test_the_order_is_part_of_every_result_on_a_finite_source():
    """Another width is another permutation, and changes which problems a published run has seen."""
    assert [permuted_index(place, 8, 0) for place in range(8)] == [1, 2, 3, 5, 6, 4, 0, 7]
    assert [permuted_index(place, 13, 7) for place in range(13)] == [6, 3, 2, 5, 4, 11, 10, 0, 7, 8, 9, 1, 12]


@pytest.mark.parametrize("size", [512, 1000, 1024])
def test_a_place_goes_anywhere(size):
    """Where the first place lands under 200 keys: all over the range, and in the middle on average (its error is
    0.02)."""
    found = [permuted_index(0, size, key) for key in range(200)]
    assert min(found) < 0.05 * size and max(found) > 0.95 * size
    assert 0.44 < sum(found) / 200 / size < 0.56


class Finite:
    """A source of seven problems that are numbers."""

    def size(self, split):
        return 7

    def get(self, split, index):
        return index


def test_an_epoch_is_every_problem_once():
    epochs = [[train_task(Finite(), 3, "generator", 7 * epoch + i) for i in range(7)] for epoch in range(6)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 3
