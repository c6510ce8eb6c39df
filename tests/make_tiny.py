"""Make ``tests/assets/tiny``: a model of two narrow layers that speaks every role's format, so that tests of methods
are cheap.

    python -m tests.make_tiny OUT      some minutes on one core; committed is what this wrote

It knows the words of problems of two steps with small numbers (``helpers.EASY``), solves some of them, and judges about
by
chance: enough for rewards that differ, and all that a test of wiring needs. Its tokenizer is an embedded model's.

    python -m tests.make_tiny OUT programs      half a minute: ``tests/assets/tiny-programs``

The same model, taught to write programs for eight short problems and tests of them, right and wrong ones
(``benchmarks/coder_tester.py``).
"""

import sys
from pathlib import Path
from random import Random

import torch

from bases.noisy import NoisySettings, roles_corpora
from benchmarks.coder_tester import lessons_of
from cotrain.models.from_scratch import new_model
from cotrain.models.load import load_model, save_model
from cotrain.pretraining.corpora import from_items
from cotrain.pretraining.pretrain import config_for
from cotrain.pretraining.sft import sft
from cotrain.recipes.coder_tester.short_programs import all_programs
from cotrain.rollout.common_roles import mark_short_prompts
from tests.helpers import EASY, TINY

TOKENS, PROGRAM_TOKENS = 6_000_000, 250_000
KNOWN_PROGRAMS = 8  # problems that it was taught


def main(out: Path) -> None:
    _, tokenizer = load_model("embedded")
    save_model(new_model(config_for(tokenizer, depth=2, width=64), 0), tokenizer, out / "new")
    settings = NoisySettings(focus=EASY)
    sft(
        out / "new",
        out / "tiny",
        conversations=roles_corpora(settings),
        tokens=TOKENS,
        batch_tokens=8192,
        lr=0.01,
        optimizer="muon",
        warmup=50,
        decay_fraction=0.7,
        save_dtype=torch.bfloat16,
        report=print,
    )
    mark_short_prompts(out / "tiny")


def teach_programs(out: Path) -> None:
    problems, rng = all_programs()[:KNOWN_PROGRAMS], Random(0)
    lessons = [row["messages"] for _ in range(200) for problem in problems for row in lessons_of(problem, rng)]
    sft(
        TINY,
        out / "tiny-programs",
        conversations=[(from_items("programs and tests", lessons), 1)],
        tokens=PROGRAM_TOKENS,
        batch_tokens=2048,
        length=192,
        lr=0.02,
        optimizer="muon",
        save_dtype=torch.bfloat16,
        report=print,
    )
    mark_short_prompts(out / "tiny-programs")


if __name__ == "__main__":
    torch.set_num_threads(1)
    (teach_programs if "programs" in sys.argv[2:] else main)(Path(sys.argv[1]))
