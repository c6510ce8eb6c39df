"""The demo's setting: what its page says of it is what is built."""

from __future__ import annotations

from cotrain.recipes.tango import demo


def test_the_verifier_begins_with_other_weights_and_its_reviews_spread() -> None:
    made = demo()
    assert made.policies["generator"].model == "shipped"
    assert made.policies["verifier"].model == "shipped-habits"
    assert made.roles["verifier"].sampling.temperature == 1.5
    assert made.roles["solver"].sampling.temperature == 1.0


def test_a_temperature_that_is_asked_for_is_that_of_all_roles() -> None:
    made = demo(temperature=0.7)
    assert {role.sampling.temperature for role in made.roles.values()} == {0.7}


def test_it_learns_for_ten_steps_of_the_generator_and_measures_no_further_splits() -> None:
    made = demo()
    phases = [made.schedule.phase_at(step).name for step in range(made.steps)]
    assert (phases[:16], phases.count("generator"), phases.count("verifier")) == (["verifier"] * 16, 10, 26)
    assert made.evaluation.splits == () and made.evaluation.tasks == 48
