"""The contract protocols on the pretended device: the rows of the CPU, up to rounding."""

import pytest

from tests.contracts.models import save_byte_model
from tests.contracts.protocols import CONTRACTS
from tests.device.beside import DEVICE, assert_near, rows_on

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_has_the_rows_of_the_cpu(name, tmp_path):
    recipe = CONTRACTS[name](save_byte_model(tmp_path / "bytes"))
    assert_near(rows_on(DEVICE, recipe), rows_on("cpu", recipe))
