import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from cotrain.algorithms.contract import PolicyClient
from cotrain.config.followers import AverageHandle, SnapshotHandle, rate_at
from cotrain.config.policies import Average, adapter, ema, frozen, snapshot, trainable
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.learner.logprobs import Scorer
from cotrain.models.load import load_model
from cotrain.recipes.grpo import grpo
from tests.helpers import TINY
from tests.sentences import refuses


def module(value: float) -> nn.Linear:
    made = nn.Linear(2, 1)
    for p in made.parameters():
        nn.init.constant_(p, value)
    return made


class Source(PolicyClient):
    """Has these weights after so many updates."""

    version = 0

    def __init__(self, value: float, updates: int) -> None:
        self.value, self.version = value, updates

    def weights(self):
        return module(self.value).named_parameters()


def made_by(rule, module: nn.Module, seed: int) -> AverageHandle | SnapshotHandle:
    if isinstance(rule, Average):
        return AverageHandle("f", rule, None, module)
    return SnapshotHandle("f", rule, None, module, seed)


def value(follower: AverageHandle | SnapshotHandle) -> float:
    return follower.tensors()["model.weight"][0, 0].item()


def test_an_average_moves_by_its_rate():
    mine = module(0.0)
    follower = made_by(ema("m", of="p", rate=0.25), mine, seed=0)
    assert follower.follow(Source(8.0, 1), 10) and value(follower) == 2.0
    follower.follow(Source(0.0, 2), 10)
    assert value(follower) == 1.5 == mine.weight[0, 0].item() and follower.version == 2


def test_a_rate_falls_as_half_a_cosine():
    rule = ema("m", of="p", rate=0.01, rate_end=1e-5)
    assert rate_at(rule, 1, 11) == 0.01 and rate_at(rule, 11, 11) == pytest.approx(1e-5) == rate_at(rule, 30, 11)
    assert rate_at(rule, 6, 11) == pytest.approx((0.01 + 1e-5) / 2)
    assert rate_at(rule, 3, 11) == pytest.approx(1e-5 + (0.01 - 1e-5) * (1 + math.cos(math.pi * 0.2)) / 2)
    assert rate_at(ema("m", of="p", rate=0.3), 7, 11) == 0.3


@pytest.mark.parametrize(
    ("pick", "expected"), [("newest", [0, 2, 2, 4, 4, 6]), ("oldest", [0, 0, 0, 2, 2, 4]), ("random", None)]
)
def test_a_pool_of_two_every_second_update(pick, expected):
    follower = made_by(snapshot("m", of="p", every=2, keep=2, pick=pick), module(0.0), seed=3)
    played = []
    for updates in range(1, 7):
        changed = follower.follow(Source(float(updates), updates), 6)
        assert changed is (updates % 2 == 0)
        played.append(value(follower))
    assert follower.state()["pool"] == [4, 6]
    if expected:
        assert played == expected
    else:
        assert all(p in allowed for p, allowed in zip(played[1::2], ([0, 2], [2, 4], [4, 6]), strict=True))


def test_a_warm_up_of_three_ends_with_a_snapshot_and_every_second_update_follows():
    follower, played = made_by(snapshot("m", of="p", every=2, first=3), module(0.0), seed=3), []
    for updates in range(1, 8):
        follower.follow(Source(float(updates), updates), 7)
        played.append(value(follower))
    assert played == [0, 0, 3, 3, 5, 5, 7]


@pytest.mark.parametrize("rule", [ema("m", of="p", rate=0.5), snapshot("m", of="p", every=1, keep=3, pick="random")])
def test_what_was_saved_goes_on_the_same(rule):
    one, other = (made_by(rule, module(0.0), seed=1) for _ in range(2))
    for updates in (1, 2, 3, 4):
        one.follow(Source(updates**2, updates), 9)
    other.load(one.state(), one.tensors())
    for follower in (one, other):
        follower.follow(Source(50.0, 5), 9)
    assert one.state() == other.state()
    mine, theirs = one.tensors(), other.tensors()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)
    with refuses("E_FOLLOWER_TENSORS_MISFIT"):
        other.load(one.state(), {"model.weight": torch.zeros(1, 2)})


def test_nonsense_is_refused():
    for wrong in (
        lambda: ema("m", of="p", rate=1.5),
        lambda: snapshot("m", of="p", every=0),
        lambda: snapshot("m", of="p", every=1, keep=0),
        lambda: snapshot("m", of="p", every=1, first=-1),
    ):
        with pytest.raises(ConfigError):
            wrong()
    with pytest.raises(UnknownName):
        snapshot("m", of="p", every=1, pick="best")
    made = grpo(steps=2)

    def with_start(spec):
        return replace(made, policies={**made.policies, "reference": spec})

    with_start(ema("shipped", of="generator"))
    for spec, code in (
        (ema("shipped", of="nobody"), "E_NO_SUCH_PART: nobody"),
        (snapshot("shipped-format", of="generator", every=2), "E_FOLLOWS_OTHER_MODEL"),
        (ema("shipped", of="reference"), "E_FOLLOWS_UNTRAINABLE"),
    ):
        with refuses(code):
            with_start(spec)
    made = grpo(steps=2, lora=4)
    with refuses("E_FOLLOWS_ADAPTER", names="'generator'"):
        with_start(ema("shipped", of="generator"))
    assert (trainable("m").source_policy, frozen("m").source_policy, adapter("m").source_policy) == (None, None, None)


def test_a_scorer_is_made_once_for_each_state_of_the_weights():
    """To make one takes two small passes, which a second question does without; the bits are those of a new one."""
    model, _ = load_model(TINY)
    follower = AverageHandle("f", ema(TINY, of="p", rate=0.5), None, model)
    source, _ = load_model(TINY)
    with torch.no_grad():
        for weight in source.parameters():
            weight.mul_(1.5)
    passes = []
    model.get_decoder().register_forward_hook(lambda *given: passes.append(1))

    def passes_of_question():
        passes.clear()
        scores = follower.logprobs([((5, 6), (7, 8, 9)), ((5, 6), (9,))])
        count = len(passes)
        expected = Scorer(model).logprobs([((5, 6), (7, 8, 9)), ((5, 6), (9,))])
        assert all(torch.equal(one, other) for one, other in zip(scores, expected, strict=True))
        return count

    assert [passes_of_question() for _ in range(3)] == [3, 1, 1]
    state, tensors = follower.state(), follower.tensors()
    follower.follow(LoadedSource(source), 9)
    assert [passes_of_question() for _ in range(2)] == [3, 1]
    follower.load(state, tensors)
    assert [passes_of_question() for _ in range(2)] == [3, 1]


class LoadedSource(PolicyClient):
    """A policy with the weights of a module, after one update."""

    version = 1

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def weights(self):
        return self.module.named_parameters()
