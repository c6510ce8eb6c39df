"""Make ``tests/assets/tiny``: a model of two narrow layers that speaks every role's format, so that tests of methods
are cheap.

    python -m tests.make_tiny OUT      some minutes on one core; committed is what this wrote

It knows the words of problems of two steps with small numbers (``helpers.EASY``), solves some of them, and judges about
by
chance: enough for rewards that differ, and all that a test of wiring needs. Its tokenizer is an shipped model's.
"""

import sys
from pathlib import Path

import torch

from bases.noisy import NoisySettings, roles_corpora
from cotrain.models.from_scratch import new_model
from cotrain.models.load import load_model, save_model
from cotrain.pretraining.pretrain import config_for
from cotrain.pretraining.sft import sft
from cotrain.rollout.common_roles import mark_terse_prompts
from tests.helpers import EASY

TOKENS = 6_000_000


def main(out: Path) -> None:
    _, tokenizer = load_model("shipped")
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
    mark_terse_prompts(out / "tiny")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
