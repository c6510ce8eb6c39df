"""The pretended device, known to torch and taken by ``--device``, for the length of a test."""

from pathlib import Path

import pytest
import torch

from cotrain.distributed import local
from cotrain.pretraining import muon, trainer
from tests.device.beside import KIND
from tests.device.pretended import NAME, install

if KIND == NAME:
    install()
SLOW = (  # the ways round what goes wrong there
    "error:.*not decoded in steps of fixed shape:RuntimeWarning",
    "error:.*could not be recorded as a CUDA graph:RuntimeWarning",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings(*SLOW))


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    monkeypatch.setattr(local, "DEVICE_KINDS", (*local.DEVICE_KINDS, NAME))
    for module in (local, muon, trainer):  # a GPU too computes in float32, as the CPU does
        monkeypatch.setattr(module, "has_bfloat16", lambda device: False)
    swap = KIND == NAME  # parameters stay the objects they are, as on CUDA
    torch.__future__.set_swap_module_params_on_conversion(swap)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)
