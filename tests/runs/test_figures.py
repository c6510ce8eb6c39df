"""Measuring a run: what is said while it goes on."""

from __future__ import annotations

import pytest

from cotrain.recipes.grpo import grpo
from cotrain.rollout.runner import BatchProgress
from cotrain.runs.figures import progress_shown
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY


def test_a_measurement_that_fails_leaves_the_progress_that_was_shown_before():
    trainer = CoTrainer(grpo(model=TINY, tasks=EASY, kl=0.0, steps=1))
    show_usual = BatchProgress("{} episodes", lambda line: None)
    trainer.eval_progress = show_usual
    with pytest.raises(ValueError, match="lost"), progress_shown(trainer, "the start", lambda line: None):
        assert trainer.eval_progress is not show_usual
        raise ValueError("lost")
    assert trainer.eval_progress is show_usual
