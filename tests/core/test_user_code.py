"""What an error in a user's file is told as: place, words, and the name of cotrain's that was meant."""

import pytest

from cotrain.config.registry import make_recipe
from cotrain.core.errors import ConfigError

METHOD = """
from cotrain import {imported}, RunConfig, recipe
from cotrain.rollout import common_roles
from cotrain.core.types import Sampling

class Mine:
    def __init__(self, *, rate):
        self.rate = rate

@recipe
def method(run: RunConfig):
    return {made}
"""


@pytest.mark.parametrize(
    "imported, made, expected",
    [
        ("sft", "sft()", "cannot import name 'sft' from 'cotrain'"),
        ("sft", "sft()", "; did you mean 'SFT'?"),
        ("SFT", "SFT(wher=None)", "did you mean 'where'? (there are: at_least, normalise, weight, where)"),
        ("SFT", "SFT(rewards={})", "unexpected keyword argument 'rewards' (there are: at_least, "),
        ("Role", "Role(policy='a', prompt='{problem}')", "'sampling' (there are: answer_format, "),
        ("Objective", "Objective(polcy='a')", "did you mean 'policy'?"),
        ("alternate", "alternate(ratios=(1, 1))", "did you mean 'ratio'?"),
        ("SFT", "common_roles.verifer('a', run.model)", "did you mean 'verifier'?"),
        ("SFT", "run.learnr()", "did you mean 'learner'?"),
        ("SFT", "Sampling(max_token=3)", "did you mean 'max_tokens'?"),
    ],
)
def test_a_name_that_cotrain_does_not_have_names_the_nearest(tmp_path, imported, made, expected):
    assert expected in failure(tmp_path, METHOD.format(imported=imported, made=made, problem="{problem}"))


def test_of_a_users_own_names_nothing_is_added(tmp_path):
    for made, words in (("Mine(rat=1)", "keyword argument 'rat'"), ("Mine(rate=1).rat", "no attribute 'rat'")):
        said = failure(tmp_path, METHOD.format(imported="SFT", made=made))
        assert words in said and "did you mean" not in said  # Python itself may add "Did you mean"


def failure(place, text):
    file = place / "method.py"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        make_recipe(f"{file}:method", {})
    assert "\n" not in str(raised.value)
    return str(raised.value)
