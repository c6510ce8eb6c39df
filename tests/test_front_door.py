"""What a newcomer types first: wrong kinds of recipe are answered with the right one."""

import pytest

import cotrain
from cotrain.core.errors import ConfigError
from cotrain.methods import tango


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("tango", "from cotrain.recipes import tango, and pass tango"),
        (tango, "from cotrain.recipes import tango, and pass tango"),
        (tango.tango, "from cotrain.recipes import tango, and pass tango"),
        (cotrain.grpo, "the recipe is cotrain.recipes.grpo"),
        (cotrain.rloo(rewards={cotrain.OUTCOME: 1.0}), "the recipe is cotrain.recipes.grpo"),
        (3, "such as cotrain.recipes.grpo"),
    ],
)
def test_what_is_no_recipe_is_answered_with_one(given, advice, tmp_path):
    with pytest.raises(ConfigError, match=advice):
        cotrain.run(given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
