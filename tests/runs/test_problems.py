"""What a problem says of a figure, by hand."""

import pytest

from cotrain.core.statistics import Estimate
from cotrain.metrics.clusters import Share, make_figure
from cotrain.runs.figures import problem_values, problems_json


def of(rows):
    """A share of right answers, from task → (right, asked)."""
    counts = {task: {"right": right, "asked": asked} for task, (right, asked) in rows.items()}
    return make_figure(counts, Share("right", "asked"), sum(asked for _, asked in rows.values()))


def test_of_a_share_each_problem_says_its_own():
    made = of({3: [1, 4], 5: [4, 4], 9: [1, 4]})
    assert problem_values(made) == pytest.approx({3: 0.25, 5: 1.0, 9: 0.25})


def test_of_other_functions_it_says_the_pseudo_value():
    # 1/2, 3/4: whole 4/6; without the first 3/4, without the second 1/2: 2·4/6 − 3/4 and 2·4/6 − 1/2
    made = of({0: [1, 2], 1: [3, 4]})
    assert problem_values(made) == pytest.approx({0: 8 / 6 - 0.75, 1: 8 / 6 - 0.5})


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_problem_that_alone_defines_a_figure_says_the_figure():
    made = of({0: [1, 2], 1: [0, 0]})
    assert problem_values(made) == pytest.approx({0: 0.5})
    plain = Estimate(value=0.5, low=0.4, high=0.6, n=3)
    assert problems_json({"a": made, "b": plain}) == {"a": {"0": 0.5}}
