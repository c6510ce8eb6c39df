"""A model that is not one of the package's own."""

import shutil

import pytest

from cotrain.play.common_roles import FORMAT_MARK
from tests.helpers import TINY


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """A directory that nobody knows: the tiny model without its mark."""
    path = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(TINY, path)
    (path / FORMAT_MARK).unlink()
    return str(path)
