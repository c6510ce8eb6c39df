"""The comparison's own decisions; whole runs are tested in tests/loop."""

import pytest

from cotrain.comparison import parse_arm
from cotrain.core.errors import ConfigError


def test_an_arm_is_a_recipe_with_parameters():
    arm = parse_arm("tango:verifier=frozen,alpha=0.5,balance=false")
    assert arm.target == "tango"
    assert arm.arguments["verifier"] == "frozen" and arm.arguments["alpha"] == 0.5 and arm.arguments["balance"] is False
    assert "--no-balance" in arm.flags()
    assert parse_arm("tango:ratio=[2,1],alpha=0.5").arguments == {"ratio": (2, 1), "alpha": 0.5}
    mine = parse_arm("my/file.py:mine:lr=0.1")
    assert (mine.target, dict(mine.arguments)) == ("my/file.py:mine", {"lr": 0.1})
    with pytest.raises(ConfigError, match="not parameter=value"):
        parse_arm("tango:frozen")
