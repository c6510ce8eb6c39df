"""Ten kills of the engine and ten of the learners. Runs end as undisturbed.

Half of the points are killed before a question reaches the process, half while it answers. Processes are begun by a
server that has torch loaded (``processes.Apart``); ``test_on_ray.py`` kills those of Ray.
"""

import pytest

from tests.distributed.processes import killed
from tests.distributed.test_several import RECIPES, digest, undisturbed  # noqa: F401  a fixture

pytestmark = [pytest.mark.whole, pytest.mark.cluster]

ENGINES = (  # before, amid
    ([(-1, "counts", 1), (-1, "advance", 3), (-1, "advance", 19)], [(-1, "advance", 11), (-1, "publish", 2)]),
    ([(-1, "advance", 7), (-1, "publish", 1)], [(-1, "advance", 1), (-1, "advance", 15), (-1, "advance", 23)]),
)
LEARNERS = (
    ([(-1, "describe_policies", 1), (-1, "update", 2), (-1, "state", 6)], [(-1, "logprobs", 1), (-1, "tensors", 4)]),
    ([(-1, "weights_to_publish", 2), (-1, "logprobs", 3)], [(-1, "update", 1), (-1, "tensors", 1), (-1, "update", 5)]),
)


@pytest.mark.parametrize("part", [0, 1])
def test_ten_kills_of_the_engine_and_ten_of_the_learners(part, undisturbed, tmp_path):  # noqa: F811
    """Five of each in a run."""
    (before, amid), (others, others_amid) = ENGINES[part], LEARNERS[part]
    killed(RECIPES["adapters"](), tmp_path / "run", before + others, amid + others_amid)
    assert digest(tmp_path / "run") == undisturbed("adapters")
