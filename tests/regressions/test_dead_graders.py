"""Graders that died were not replaced in time: 9 to 29 of 32 answers of a step had no grade, and nobody was told."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from cotrain.core.types import Grade
from cotrain.data.program_tests import paper_of
from cotrain.grading.grade_worker import Judging
from cotrain.grading.isolation import JUDGING, MEMORY_BYTES, working_sandbox
from cotrain.grading.pool import GradingPool

GOOD = "def twice(x):\n    return 2 * x\n"
PAPER = paper_of(before="", tests="assert twice(2) == 4", solution=GOOD)


def load_dying(folder: str) -> Judging:
    """A grader that notes each try and dies, of some answers always and of some the first time."""

    def judge(gold: str, answer: str) -> tuple[bool | None, str | None]:
        number = len(os.listdir(folder))
        os.mkdir(os.path.join(folder, str(number)))
        if answer == "always" or number == 0:
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(1)
        return True, None

    return Judging(judge=judge)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("answer", "grade"), [("once", Grade(value=True)), ("always", Grade(value=None, reason="grader died"))]
)
def test_an_answer_whose_grader_died_is_graded_by_another(tmp_path, answer, grade):
    judging = ("tests.regressions.test_dead_graders:load_dying", str(tmp_path))
    with GradingPool(workers=1, judging=judging) as pool:
        assert pool.grade_in_process("", answer) == grade
        assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.whole
def test_no_answer_is_lost_where_graders_are_killed():
    with GradingPool(workers=4, judging=(JUDGING,), memory=MEMORY_BYTES, sandbox=working_sandbox()) as pool:
        assert pool.grade_in_process(PAPER, GOOD) == Grade(value=True)

        def graded(number: int) -> Grade:
            for worker in list(pool._idle.queue)[-1:] if number % 8 == 0 else []:
                if worker is not None:
                    worker._process.kill()
            return pool.grade_in_process(PAPER, GOOD)

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(graded, range(64))) == [Grade(value=True)] * 64
