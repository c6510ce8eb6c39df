"""Which policies share an engine, and a run with several engines of which some are lost."""

import pytest

from cotrain.config.policies import adapter, critic, ema, frozen, reward_model, trainable
from cotrain.distributed.multi_process import LEARNERS, MultiProcessBackend
from cotrain.distributed.placement import VllmPlacement, one_local_engine
from cotrain.runs import run as loop
from tests.distributed.processes import Here
from tests.distributed.test_several import RECIPES, digest
from tests.sentences import refuses

BASE = "shipped"


def places(policies):
    settled = {name: spec.with_device_defaults(autocast=False) for name, spec in policies.items()}
    return [(place.policies, place.host.__name__) for place in VllmPlacement()(settled, 0, "cpu", 1)]


def test_each_set_of_weights_has_an_engine():
    policies = {
        "generator": trainable(BASE),
        "verifier": trainable(BASE),
        "teacher": ema(BASE, of="generator"),
        "reference": frozen(BASE),
        "judge": frozen(BASE),
        "critic": critic(BASE),
        "scorer": reward_model(BASE),
    }
    assert places(policies) == [
        (("generator",), "VllmHost"),
        (("verifier",), "VllmHost"),
        (("teacher",), "VllmHost"),
        (("reference", "judge"), "VllmHost"),
        (("scorer",), "EngineHost"),
    ]


def test_adapters_and_frozen_policies_share_their_base():
    policies = {"generator": adapter(BASE), "verifier": adapter(BASE), "reference": frozen(BASE)}
    assert places(policies) == [(("generator", "verifier", "reference"), "VllmHost")]


def test_whose_arithmetic_differs_have_engines_of_their_own():
    """None: as the engine's own device decides."""
    policies = {f"{n}": frozen(BASE, autocast=how) for n, how in enumerate((None, False, True, None))}
    found = [place.policies for place in VllmPlacement()(policies, 0, "cuda", 1)]
    assert found == [("0", "3"), ("1",), ("2",)]


def apart(policies, seed, device, threads):
    """An local engine for each policy."""
    from dataclasses import replace

    asked = [name for name, spec in policies.items() if spec.generates]
    return [
        replace(
            one_local_engine({name: policies[name]}, seed, device, threads)[0], what=f"engine of {name}", tested=True
        )
        for name in asked
    ]


@pytest.mark.whole
def test_lost_engines_of_several_change_nothing(tmp_path):
    """Also weights that are put back after the self-test are those of before."""
    found = []
    for number, losses in enumerate(
        ((), (("engine of generator", "advance", 3), ("engine of verifier", "advance", 4)))
    ):
        launcher, out = Here(losses), tmp_path / str(number)
        loop.start_run(
            RECIPES["separate policies"](),
            out,
            checkpoint_every=1,
            backend=MultiProcessBackend(launcher, placing=apart),
        )
        assert launcher.lost == len(losses) and launcher.begun[LEARNERS] == 1
        found.append(digest(out))
    assert found[0] == found[1]


def test_an_engine_that_reads_whole_weights_is_not_asked_for_four_bits():
    with refuses("E_VLLM_FOUR_BIT", names="'reference'"):
        places({"reference": frozen(BASE, load_in_4bit=True)})
