"""The lane of vLLM: `make test-vllm` makes the other environment and names its Python; without one all is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotrain.models.load import resolve_model
from tests.vllm.worker import PYTHON, Other

LARGER = os.environ.get("COTRAIN_VLLM_MODEL", "")  # a model directory beside the base that ships


def pytest_collection_modifyitems(items):
    if not PYTHON:
        here = str(Path(__file__).parent)
        for item in items:
            if str(item.path).startswith(here):
                item.add_marker(pytest.mark.skip(reason="no vLLM here: make test-vllm"))


@pytest.fixture(scope="module", params=["shipped", "larger"])
def model(request):
    if request.param == "larger" and not LARGER:
        pytest.skip("COTRAIN_VLLM_MODEL names no model")
    return Path(LARGER) if request.param == "larger" else resolve_model("shipped")


@pytest.fixture(scope="module")
def begin():
    """Makes engines, each in a process of its own, and ends them."""
    made = []

    def make(model, policies, **how):
        made.append(Other(model, policies, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()
