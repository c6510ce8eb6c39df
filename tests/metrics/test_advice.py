"""What advice names is there: flags of the recipes that it is given on, and weights that change what is paid."""

import re

import pytest

from cotrain import FORMAT
from cotrain.cli.run import parser_of
from cotrain.config.registry import find_recipe
from cotrain.metrics.alarms import BANDS
from cotrain.metrics.table import TABLE
from cotrain.recipes.generator_verifier_critic import generator_verifier_critic
from cotrain.recipes.judged import judged
from cotrain.recipes.tango import tango
from tests.helpers import EASY, TINY

EVERYWHERE = {"--max-tokens"}  # taken in the place of a setting (``cli/foreign_flags.py``)


def flags_of(recipe):
    parser, _ = parser_of(recipe, find_recipe(recipe))
    return {flag for action in parser._actions for flag in action.option_strings}


@pytest.mark.parametrize("recipe", ["tango", "judged"])
def test_flags_that_advice_names_are_those_of_recipes_with_solver_and_verifier(recipe):
    advice = [band.what_to_do for band in BANDS] + [metric.advice for metric in TABLE]
    named = {flag for text in advice for flag in re.findall(r"--[a-z][a-z-]*", text)}
    assert {"--answer-format", "--verdict", "--format-reward", "--verifier-format"} <= named
    assert named - EVERYWHERE <= flags_of(recipe)
    assert not any("format reward" in text for text in advice)  # which no flag is called


@pytest.mark.parametrize("make", [tango, judged, generator_verifier_critic])
def test_a_format_reward_is_paid_where_it_is_asked_for_and_nowhere_else(make):
    def weights(who, **given):
        recipe = make(model=TINY, tasks=EASY, steps=1, **given)
        return {signal.name: weight for signal, weight in recipe.objectives[who].algorithm.reward_weights.items()}

    assert FORMAT.name not in weights("generator")
    assert weights("generator", format_reward=0.3)[FORMAT.name] == 0.3
    if make is not generator_verifier_critic:
        assert weights("verifier")[FORMAT.name] == 0.8
        assert FORMAT.name not in weights("verifier", verifier_format=0.0)


def test_settings_that_advice_names_are_written_as_one_types_them():
    advice = [band.what_to_do for band in BANDS] + [metric.advice for metric in TABLE]
    for text in advice:
        assert not re.search(r"raise (?!`)\S*[_.]\S", text), text  # an inner name without its flag
