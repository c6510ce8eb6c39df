"""Batches in which no problem fits its model's context end in one line that says why, whoever collected them."""

from cotrain.core.types import TOO_LONG, Episode
from cotrain.trainer.checks import check_mass_failure
from tests.sentences import refuses

NOTHING_FITS = [
    Episode(step=2, task=task, member=0, task_id=f"train/{task}", traces=(), failure=TOO_LONG) for task in range(2)
]


def test_a_batch_in_which_nothing_fits_is_refused_by_the_reason_of_one_of_its_problems():
    set_aside = {"test/7": "4 of 12 episodes broke off: vote", "train/1": "prompt (90) exceeds the context of 64"}
    with refuses("E_PROMPT_TOO_LONG", names=("step 3", "exceeds the context of 64")):
        check_mass_failure("step 3", NOTHING_FITS, set_aside)


def test_a_resumed_run_refuses_such_a_batch_too_which_an_earlier_process_has_collected():
    with refuses("E_PROMPT_TOO_LONG", names=("step 3", TOO_LONG)):
        check_mass_failure("step 3", NOTHING_FITS, {})
