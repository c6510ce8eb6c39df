"""What RL Tango refuses because it would not do what it is asked for."""

import pytest

from cotrain.recipes.tango import tango
from tests.sentences import refuses


@pytest.mark.parametrize("asked", [{"verifier": "frozen"}, {"votes": 3}])
def test_both_at_once_refuses_what_it_would_pass_over(asked):
    with refuses("E_SIMULTANEOUS_REVIEWS"):
        tango(simultaneous=True, **asked)
    assert tango(simultaneous=True).schedule.phases[0].name == "both"


@pytest.mark.parametrize("review_format", ["genrm", "scored"])
def test_a_verifier_that_judges_no_steps_does_not_reward_them(review_format):
    with refuses("E_STEPS_NOT_JUDGED", names=review_format):
        tango(model="some/chat-model", review_format=review_format)
    made = tango(model="some/chat-model", review_format=review_format, steps_judged_by="none")
    assert all(phase.options["step_rewards"] == "none" for phase in made.schedule.phases)


def test_the_verifier_may_be_pulled_to_its_own_start():
    made = tango(verifier_kl=0.001, verifier_model="shipped-checker")
    assert made.objectives["verifier"].algorithm.kl.to == "verifier_reference"
    assert (
        made.policies["verifier_reference"].model == "shipped-checker" and made.policies["reference"].model == "shipped"
    )
    plain = tango()
    assert plain.objectives["verifier"].algorithm.kl is None and "verifier_reference" not in plain.policies
    assert "verifier_reference" not in tango(verifier_kl=0.001, verifier="frozen").policies


def test_the_outcome_may_keep_its_weight_beside_the_steps():
    assert tango(advantage_mix="add").objectives["generator"].algorithm.advantage_mix == "add"
    assert tango(advantage_mix="reward").objectives["generator"].algorithm.advantage_mix == "reward"
    assert tango().objectives["generator"].algorithm.advantage_mix == "convex"


@pytest.mark.parametrize("simultaneous", [True, False])
def test_reviews_become_one_as_asked_for(simultaneous):
    made = tango(simultaneous=simultaneous, combine="majority")
    paying = next(phase for phase in made.schedule.phases if "generator" in phase.objectives)
    assert paying.options["combine"] == "majority"
