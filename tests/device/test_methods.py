"""Every method on the pretended device: the rows of the CPU, up to rounding."""

import pytest

from tests.device.beside import DEVICE, assert_near, rows_on, small
from tests.recipes.test_recipes import CASES, ELSEWHERE

pytestmark = [pytest.mark.whole, pytest.mark.nightly]


@pytest.mark.parametrize("case", [*sorted(ELSEWHERE), *(case for case in CASES if ":" not in case)])
def test_a_method_has_the_rows_of_the_cpu(case):
    recipe = small(case)
    assert_near(rows_on(DEVICE, recipe), rows_on("cpu", recipe))
