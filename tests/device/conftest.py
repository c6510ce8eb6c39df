"""The pretended device, known to torch and taken by ``--device``, for the length of a test."""

import pytest
import torch

from cotrain.backend import local
from tests.device.pretended import NAME, install

install()


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    monkeypatch.setattr(local, "KINDS", (*local.KINDS, NAME))
    torch.__future__.set_swap_module_params_on_conversion(True)  # parameters stay the objects they are, as on CUDA
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)
