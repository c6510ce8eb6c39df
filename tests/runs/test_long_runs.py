"""A run keeps next to nothing of a step that is over: by objects and blocks of Python, which no allocator blurs."""

import gc
import sys

import pytest

from tests.torture import soak

FROM, TO = 260, 340  # before, caches and series of sixty rows fill


class Count:
    """An observer that counts what the process holds at two steps."""

    def __init__(self):
        self.objects, self.blocks = {}, {}

    def message(self, text):
        pass

    def update(self, row):
        if row["step"] in (FROM, TO):
            gc.collect()
            self.objects[row["step"]] = len(gc.get_objects())
            self.blocks[row["step"]] = sys.getallocatedblocks()


@pytest.mark.whole
def test_a_run_holds_no_more_after_more_steps(tmp_path):
    """It kept an object and eight blocks of each step: in the ledger's index, and in the series of the alarms."""
    count = Count()
    soak.loop.start_run(soak.recipe(TO + 1), tmp_path / "run", checkpoint_every=1000, observer=count)
    steps = TO - FROM
    assert (count.objects[TO] - count.objects[FROM]) / steps < 0.5
    assert (count.blocks[TO] - count.blocks[FROM]) / steps < 3
