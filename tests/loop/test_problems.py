"""What a problem says of a figure, by hand."""

import pytest
from cotrain.loop.measures import clustered

from cotrain.core.statistics import Estimate
from cotrain.loop.problems import problem_values, problems_json


def share(c):
    return c[..., 0] / c[..., 1]


def test_of_a_share_each_problem_says_its_own():
    figure = clustered({3: [1, 4], 5: [4, 4], 9: [1, 4]}, share, "x", 12)
    assert problem_values(figure) == pytest.approx({3: 0.25, 5: 1.0, 9: 0.25})


def test_of_other_functions_it_says_the_pseudo_value():
    # 1/2, 3/4: whole 4/6; without the first 3/4, without the second 1/2: 2·4/6 − 3/4 and 2·4/6 − 1/2
    figure = clustered({0: [1, 2], 1: [3, 4]}, share, "x", 6)
    assert problem_values(figure) == pytest.approx({0: 8 / 6 - 0.75, 1: 8 / 6 - 0.5})


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_problem_that_alone_defines_a_figure_says_the_figure():
    figure = clustered({0: [1, 2], 1: [0, 0]}, share, "x", 2)
    assert problem_values(figure) == pytest.approx({0: 0.5, 1: 0.5})
    plain = Estimate(value=0.5, low=0.4, high=0.6, n=3)
    assert problems_json({"a": figure, "b": plain}) == {"a": {"0": 0.5, "1": 0.5}}
