"""What tests of cotrain have, those of the zoo have too; and it has to be installed, which `make setup-dev` does."""

from importlib.metadata import entry_points

import pytest

from tests.conftest import (  # noqa: F401
    other,
    pytest_collection,
    pytest_itemcollected,
    pytest_make_parametrize_id,
    pytest_runtest_setup,
)

if not entry_points(group="cotrain.recipes", name="gar"):
    pytest.exit("the zoo is not installed: run `pip install -e zoo`, or `make setup-dev`", returncode=2)
