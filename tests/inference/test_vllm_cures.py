"""vLLM as an engine, as far as it can be tested without vLLM; ``tests/vllm`` runs it."""

import pytest

from cotrain.inference.vllm import VllmEngine, _padded_rank
from tests.vllm.worker import LEFT_OUT


def test_each_cure_is_a_method_that_a_test_of_vllm_can_leave_out():
    """The docstring of the engine names four of them, and a test of each shows what happens without it."""
    assert set(LEFT_OUT) <= vars(VllmEngine).keys()
    assert VllmEngine._slot_count(object.__new__(VllmEngine), [8, 16]) == 3  # two adapters and an empty place


@pytest.mark.parametrize(("ranks", "padded"), [([], 1), ([1], 1), ([2, 8], 8), ([9], 16), ([257], 320), ([600], 600)])
def test_adapters_get_the_least_room_that_holds_them_all(ranks, padded):
    assert _padded_rank(ranks) == padded
