"""Make ``zoo/tests/tiny-programs``: the tests' tiny model, taught to write programs for eight short problems, and tests
of them, right and wrong ones (``zoo/benchmarks/coder_tester.py``). Half a minute on one core:

    PYTHONPATH=.:zoo python zoo/tests/make_tiny_programs.py OUT
"""

import sys
from pathlib import Path
from random import Random

import torch
from cotrain_zoo.coder_tester.short_programs import all_programs

from cotrain.pretraining.corpora import from_items
from cotrain.pretraining.sft import sft
from cotrain.rollout.common_roles import mark_terse_prompts
from tests.helpers import TINY
from zoo.benchmarks.coder_tester import lessons_of

TOKENS = 250_000
KNOWN = 8  # problems that it is taught


def main(out: Path) -> None:
    problems = all_programs()[:KNOWN]
    rng = Random(0)
    lessons = [row["messages"] for _ in range(200) for problem in problems for row in lessons_of(problem, rng)]
    sft(
        TINY,
        out / "tiny-programs",
        conversations=[(from_items("programs and tests", lessons), 1)],
        tokens=TOKENS,
        batch_tokens=2048,
        length=192,
        lr=0.02,
        optimizer="muon",
        save_dtype=torch.bfloat16,
        report=print,
    )
    mark_terse_prompts(out / "tiny-programs")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
