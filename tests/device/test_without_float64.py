"""A device that cannot compute in 64 bits, as Apple's GPUs: what needs them is computed on the CPU, and nothing of 64
bits ever lies on the device."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cotrain.inference.decode_batch import draw_tokens, uniform_numbers
from cotrain.models import memory
from tests.device.beside import DEVICE, KIND, assert_near, rows_on, small

pytestmark = pytest.mark.whole


class RefusesFloat64(TorchDispatchMode):
    """Raises where a tensor of 64 bits would lie on the device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64 and tensor.device.type == KIND:
                raise TypeError(f"{function}: float64 on {KIND}")
        return found


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(memory, "WITHOUT_FLOAT64", (KIND,))


def drawn(device):
    torch.manual_seed(0)
    logits = torch.randn(4, 50).to(device)
    seeds, positions = torch.arange(4).to(device), torch.zeros(4, dtype=torch.int64).to(device)
    heat, share = torch.tensor([1.0, 0.0, 0.7, 1.0]).to(device), torch.tensor([1.0, 1.0, 0.9, 0.5]).to(device)
    return draw_tokens(logits, uniform_numbers(seeds, positions), heat, share)


def test_draws_are_the_same_and_come_back_to_the_device(narrow):
    here = drawn("cpu")
    with RefusesFloat64():
        there = drawn(DEVICE)
    for mine, theirs in zip(there, here, strict=True):
        assert mine.device.type == KIND and torch.equal(mine.cpu(), theirs)


def test_a_run_puts_no_float64_there(narrow):
    recipe = small("tango")
    expected = rows_on("cpu", recipe)
    with RefusesFloat64():
        found = rows_on(DEVICE, recipe)
    assert_near(found, expected)
