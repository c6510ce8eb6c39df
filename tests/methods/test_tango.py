"""What RL Tango refuses because it would not do what it is asked for."""

import pytest

from cotrain.core.errors import ConfigError
from cotrain.methods.tango import tango


@pytest.mark.parametrize("asked", [{"verifier": "frozen"}, {"votes": 3}])
def test_both_at_once_refuses_what_it_would_pass_over(asked):
    with pytest.raises(ConfigError, match="simultaneous with verifier="):
        tango(simultaneous=True, **asked)
    assert tango(simultaneous=True).schedule.phases[0].name == "both"
