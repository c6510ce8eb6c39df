"""Learners in shards against the plain learner: equal bits on one rank, equal but for rounding on several."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from cotrain.config.policies import frozen
from cotrain.distributed.ranks import ShardedPolicyFactory
from cotrain.learner.fsdp import Sharded
from cotrain.storage.tensor_files import join_parts
from tests.distributed.processes import Apart
from tests.distributed.sharded_trials import TRIALS, Trial
from tests.sentences import refuses

NARROW = 1e-12  # relative, of float64
CASES = {
    "full": ("full", {}),
    "untied": ("full", {"tie": False}),
    "two terms": ("full", {"two": True}),
    "recomputed": ("full", {"recompute": True}),
    "fewer micro-batches than ranks": ("fewer", {}),
    "adapters by turns": ("adapters", {}),
    "not finite": ("refused", {}),
    "critic": ("value", {}),
    "nanochat": ("nanochat", {}),
}


@pytest.fixture(scope="module")
def on():
    """A trial on so many ranks, or with the plain learner on none: the first rank's figures."""
    torch.set_num_threads(1)
    launcher, groups, known = Apart(), {}, {}

    def ranks(world):
        if world not in groups:
            made = [
                launcher.begin(f"(rank {rank} of {world})", Trial, (rank, world, True, 60.0)) for rank in range(world)
            ]
            address = made[0].ask("address")
            for reference in [rank.send("join", address, {}, {}, 0, "cpu", 1) for rank in made]:
                reference.process.wait(reference, "join")
            groups[world] = made
        return groups[world]

    def trial(world, name, settings):
        key = (world, name, repr(settings))
        if key not in known or "saved" in settings:
            if world:
                asked = [rank.send("try_out", name, settings) for rank in ranks(world)]
                known[key], *others = [reference.process.wait(reference, name) for reference in asked]
                if "share" in known[key]:
                    known[key]["shares"] = [known[key]["share"], *(other["share"] for other in others)]
                for other in others:  # all ranks decide alike
                    assert_equal(other["metrics"], known[key]["metrics"], but=("forward", "backward"))
                    assert_equal(other["logprobs"], known[key]["logprobs"])
            else:
                known[key] = TRIALS[name](None, **settings)
        return known[key]

    yield trial
    launcher.stop()


def flat(value, path=""):
    """(path, tensor or number) of everything in a trial's answer."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in flat(value[key], f"{path}/{key}")]
    if isinstance(value, list):
        return [leaf for place, one in enumerate(value) for leaf in flat(one, f"{path}/{place}")]
    return [(path, value)]


def assert_equal(found, wanted, but=()):
    for (path, one), (other_path, other) in zip(flat(found), flat(wanted), strict=True):
        assert path == other_path
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, (path, one, other)


def distance(found, wanted):
    """The largest difference, relative to the largest number of its tensor."""
    worst = 0.0
    for (path, one), (other_path, other) in zip(flat(found), flat(wanted), strict=True):
        assert path == other_path
        if isinstance(one, torch.Tensor):
            assert one.shape == other.shape and one.dtype == other.dtype, path
            gap = float((one.double() - other.double()).abs().max()) / max(1e-3, float(other.abs().max()))
        else:
            gap = abs(one - other) / max(1e-3, abs(other))
        assert math.isfinite(gap), path
        worst = max(worst, gap)
    return worst


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES)
def test_one_rank_has_the_bits_of_one_process(case, on):
    assert_equal(on(1, *CASES[case]), on(0, *CASES[case]))


@pytest.mark.cluster
@pytest.mark.whole
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_differ_by_rounding(case, on):
    found, wanted = on(2, *CASES[case]), on(0, *CASES[case])
    print(case, distance(found, wanted))
    assert distance(found, wanted) < (1e-4 if case == "critic" else NARROW)


@pytest.mark.whole
@pytest.mark.cluster
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 0), (0, 2)])
def test_what_some_ranks_save_others_go_on_from(before, after, on):
    saved = on(before, "full", {})["tensors"][0]
    names = sorted(name.removeprefix("optimizer.") for name in saved if name.startswith("optimizer."))
    held = {"saved": ({"updates": 3, "optimizer": names}, saved)}
    found, wanted = on(after, "loaded", held), on(0, "loaded", held)
    assert_equal(on(after, "kept", held)["tensors"], [saved])
    assert distance(found, wanted) < NARROW


@pytest.mark.whole
@pytest.mark.parametrize("critic", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_shares_of_all_ranks_are_the_whole(world, critic, on):
    found = on(world, "shares", {"critic": critic})
    shares = found["shares"]
    assert len(shares) == world
    assert_equal(join_parts(dict(enumerate(shares))), found["whole"])
    held = [sum(tensor.numel() for tensor in share.values()) for share in shares]
    assert sum(held) == sum(tensor.numel() for tensor in found["whole"].values())
    if world > 1:
        assert max(held) < 0.7 * sum(held)
    counts = [name for name in found["whole"] if name.endswith(":step")]  # of updates: numbers, not cut
    assert counts and all([name in share for share in shares] == [True] + [False] * (world - 1) for name in counts)


def test_a_model_without_layers_that_are_known_is_refused():
    with refuses("E_MODEL_NOT_SHARDABLE", names="Linear"):
        Sharded(nn.Linear(2, 2), None)


@pytest.mark.parametrize("field", ["offload", "load_in_4bit"])
def test_what_ranks_cannot_hold_is_refused(field):
    """Of a policy that does not learn too, and before anything is loaded."""
    with refuses("E_ONE_RANK_ALONE", names=f"{field}=true"):
        ShardedPolicyFactory({"reference": replace(frozen("nowhere"), **{field: True})}, 0, "cpu")
