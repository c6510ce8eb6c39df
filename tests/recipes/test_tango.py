"""What RL Tango refuses because it would not do what it is asked for."""

import pytest

from cotrain.core.errors import ConfigError
from cotrain.recipes.tango import tango


@pytest.mark.parametrize("asked", [{"verifier": "frozen"}, {"votes": 3}])
def test_both_at_once_refuses_what_it_would_pass_over(asked):
    with pytest.raises(ConfigError, match="simultaneous with verifier="):
        tango(simultaneous=True, **asked)
    assert tango(simultaneous=True).schedule.phases[0].name == "both"


def test_the_verifier_may_be_pulled_to_its_own_start():
    made = tango(verifier_kl=0.001, verifier_model="embedded-checker")
    assert made.objectives["verifier"].by.kl.reference == "verifier_start"
    assert made.policies["verifier_start"].model == "embedded-checker" and made.policies["start"].model == "embedded"
    plain = tango()
    assert plain.objectives["verifier"].by.kl is None and "verifier_start" not in plain.policies
    assert "verifier_start" not in tango(verifier_kl=0.001, verifier="frozen").policies


def test_the_outcome_may_keep_its_weight_beside_the_steps():
    assert tango(blend="add").objectives["generator"].by.blend == "add"
    assert tango(blend="reward").objectives["generator"].by.blend == "reward"
    assert tango().objectives["generator"].by.blend == "convex"


@pytest.mark.parametrize("simultaneous", [True, False])
def test_reviews_become_one_as_asked_for(simultaneous):
    made = tango(simultaneous=simultaneous, combine="majority")
    paying = next(phase for phase in made.schedule.phases if "generator" in phase.objectives)
    assert paying.options["combine"] == "majority"
