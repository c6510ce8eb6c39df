"""Ten kills of ranks, half of them before a question arrives, half while it is answered. Runs end as undisturbed."""

import pytest

from tests.distributed.processes import killed
from tests.distributed.test_group import recipe as in_parts
from tests.distributed.test_several import digest

pytestmark = [pytest.mark.whole, pytest.mark.cluster]

RANKS = (
    ([(1, "join", 1), (0, "update", 1), (1, "write", 3)], [(1, "gather", 2), (0, "measure", 3)]),
    ([(0, "address", 1), (1, "update", 4), (0, "write", 2)], [(0, "join", 4), (1, "logprobs", 2)]),
)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """The digest of the run on two ranks, none of them lost."""
    out = tmp_path_factory.mktemp("ranks") / "run"
    killed(in_parts("adapters"), out, [], [], world=2)
    return digest(out)


@pytest.mark.parametrize("part", [0, 1])
def test_ten_kills_of_ranks(part, on_two, tmp_path):
    killed(in_parts("adapters"), tmp_path / "run", *RANKS[part], world=2)
    assert digest(tmp_path / "run") == on_two
