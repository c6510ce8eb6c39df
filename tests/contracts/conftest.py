import pytest

from tests.contracts.models import save_byte_model


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    return save_byte_model(tmp_path_factory.mktemp("models") / "bytes")
