import pytest

from cotrain.recipes.mars.recipe import first_fit_decreasing


def test_first_fit_decreasing_by_hand():
    # 8 → A, 4 → B, 4 → B, 2 → A, 1 → B, 1 → B
    assert first_fit_decreasing([4, 8, 1, 4, 2, 1], 10) == [[1, 4], [0, 2, 3, 5]]
    assert first_fit_decreasing([3, 12, 3], 10) == [[1], [0, 2]]  # the second is larger than a bin
    assert first_fit_decreasing([], 10) == []
    with pytest.raises(ValueError, match="capacity"):
        first_fit_decreasing([1], 0)
