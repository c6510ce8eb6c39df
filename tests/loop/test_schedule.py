import pytest

from cotrain.core.errors import ConfigError
from cotrain.loop.schedule import Phase, alternate, single


async def nothing(task, roles):
    """A protocol in which nobody speaks."""


def tango_like():
    generator = Phase(name="generator", protocol=nothing, objectives=("gen",))
    verifier = Phase(name="verifier", protocol=nothing, objectives=("ver",))
    return alternate(generator, verifier, ratio=(3, 1), warmup={"verifier": 4})


def test_warmup_comes_first_and_then_the_cycle():
    names = [tango_like().phase_at(step).name for step in range(13)]
    assert names == ["verifier"] * 4 + ["generator"] * 3 + ["verifier"] + ["generator"] * 3 + ["verifier"] + [
        "generator"
    ]


def test_planned_updates_and_steps_are_inverse():
    schedule = tango_like()
    assert schedule.planned(["gen"], 13) == 7
    assert schedule.planned(["ver"], 13) == 6
    assert schedule.planned(["gen", "ver"], 13) == 13
    assert schedule.steps_until("gen", 7) == 13
    assert schedule.steps_until("ver", 5) == 8


def test_occurrence_counts_the_same_phase_only():
    schedule = tango_like()
    assert [schedule.occurrence(step) for step in (0, 3, 4, 6, 7, 8)] == [0, 3, 0, 2, 4, 3]


def test_the_paper_makes_300_generator_and_140_verifier_updates_of_440():
    phases = tango_like().phases
    schedule = alternate(*phases, ratio=(3, 1), warmup={"verifier": 40})
    assert (schedule.planned(["gen"], 440), schedule.planned(["ver"], 440)) == (300, 140)


def test_a_ratio_without_a_number_for_each_phase_is_refused():
    with pytest.raises(ConfigError, match="ratio"):
        alternate(*tango_like().phases, ratio=(3,))
    with pytest.raises(ConfigError, match="never due"):
        single(nothing, "gen").steps_until("ver", 1)
