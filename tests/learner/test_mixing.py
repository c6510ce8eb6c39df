import math

import pytest

from cotrain.algorithms.samples import Anneal, constant, cosine, decay, linear, weight_at
from cotrain.core.errors import ConfigError
from cotrain.recipes.tango import tango
from tests.sentences import refuses


def test_tangos_alpha_at_the_ends_and_in_the_middle():
    alpha = decay(0.1, 1e-3)
    assert alpha(0, 300) == 0.1
    assert alpha(300, 300) == pytest.approx(1e-3, rel=1e-12)
    assert alpha(150, 300) == pytest.approx(0.01, rel=1e-12)  # geometric mean half-way
    assert alpha(75, 300) == pytest.approx(0.1 * math.exp(-0.25 * math.log(100)), rel=1e-12)
    assert alpha(10_000, 300) == 1e-3


def test_the_other_shapes_by_hand():
    assert [constant(0.5)(s, 10) for s in (0, 7, 99)] == [0.5, 0.5, 0.5]
    assert [linear(1.0, 0.0)(s, 4) for s in (0, 1, 4, 9)] == [1.0, 0.75, 0.0, 0.0]
    assert [cosine(1.0, 0.0)(s, 4) for s in (0, 2, 4)] == pytest.approx([1.0, 0.5, 0.0], abs=1e-15)
    assert cosine(1.0, 0.0)(1, 4) == pytest.approx(0.5 + math.sqrt(2) / 4)


def test_numbers_and_schedules_are_both_weights():
    assert weight_at(2, 3, 10) == 2.0
    assert weight_at(linear(0.0, 1.0), 3, 10) == pytest.approx(0.3)


def test_schedules_are_values():
    assert decay(0.1, 1e-3) == decay(0.1, 1e-3) != decay(0.1, 1e-2)
    assert "decay" in repr(decay(0.1, 1e-3))


def test_a_weight_that_would_rise_is_refused_by_the_names_of_its_flags():
    """`cotrain run tango --alpha 0.0001` was told of `decay` alone."""
    with refuses("E_MIXING_WEIGHT", names=("0.0001", "0.001", "alpha_end")):
        tango(alpha=0.0001)


def test_refusals():
    for start, end in ((0.1, 0.0), (0.1, 0.2), (float("nan"), 0.1)):
        with pytest.raises(ConfigError):
            decay(start, end)
    with refuses("E_UNKNOWN_SHAPE", names="'cosine'"):
        Anneal(shape="cosin", start=1.0, end=0.0)
    with refuses("E_MIXING_WEIGHT", names="0 updates"):
        linear(1.0, 0.0)(0, 0)
