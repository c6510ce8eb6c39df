"""Whole runs of the zoo's methods with a tiny model: interrupted and delayed ones end the same."""

import pytest
from cotrain_zoo.adversarial_imitation.recipe import adversarial_imitation
from cotrain_zoo.coder_tester.recipe import coder_tester
from cotrain_zoo.coder_tester.short_programs import ShortPrograms
from cotrain_zoo.debate_solve.recipe import debate_solve
from cotrain_zoo.prover_verifier import prover_verifier
from cotrain_zoo.rubric_judge import rubric_judge
from cotrain_zoo.spiral.recipe import spiral
from zoo_cases import TINY_PROGRAMS

from cotrain.runs import run as loop
from tests.helpers import EASY
from tests.runs.test_run import GAMES, SMALL, briefly, check_resuming, counted

pytestmark = pytest.mark.nightly
CASTS = {
    "adversarial-imitation": lambda tasks: briefly(
        adversarial_imitation(steps=3, variant="raro", warmup=1, critiques=2, replay=1, tasks=tasks, **SMALL)
    ),
    "coder-tester": lambda tasks: briefly(
        coder_tester(steps=3, variant="code_a1", tests=2, tasks=ShortPrograms(8), **(SMALL | {"model": TINY_PROGRAMS}))
    ),
    "rubric-judge": lambda tasks: briefly(rubric_judge(steps=3, ratio=(1, 1), tasks=tasks, **SMALL)),
    "debate-solve": lambda tasks: briefly(debate_solve(steps=3, tasks=tasks, **GAMES)),
    "debate-rlaif": lambda tasks: briefly(debate_solve(critic="none", steps=3, tasks=tasks, **SMALL)),
    "spiral": lambda tasks: briefly(spiral(steps=3, pool=2, pool_every=1, **GAMES)),
    "prover-verifier": lambda tasks: briefly(prover_verifier(steps=3, reviews=2, strings=1, tasks=tasks, **SMALL)),
}


@pytest.mark.parametrize("name", CASTS)
def test_every_cast_resumes_bit_for_bit_and_ignores_latency(name, tmp_path):
    engines = []
    folder = tmp_path / "whole"
    loop.start_run(CASTS[name](EASY), folder, checkpoint_every=1, wrap_engine=lambda engine: counted(engines, engine))
    check_resuming(lambda: CASTS[name](EASY), folder, engines[0].count, tmp_path / "other")
