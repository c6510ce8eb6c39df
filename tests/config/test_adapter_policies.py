"""Adapters in a run: one base in memory, weights apart, the frozen base as reference, only adapters in checkpoints."""

import math

import pytest
import torch

from cotrain.algorithms.contract import LossTerm, Sample
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.config.policies import Lora, adapter, frozen, trainable
from cotrain.config.remote import remote
from cotrain.core.signals import OUTCOME
from cotrain.learner.logprobs import Scorer
from cotrain.models.load import load_model
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from tests.helpers import cast_of
from tests.sentences import refuses

PAIRS = [((1, 40, 41, 42), (50, 51, 52)), ((1, 40, 41, 42), (60, 61)), ((1, 9), (7, 8, 9, 10))]
POLICIES = {
    "reference": frozen("shipped"),
    "generator": adapter("shipped", rank=4, alpha=8, lr=1e-2, lr_warmup=0),
    "apart": trainable("shipped", lr=1e-2, lr_warmup=0),
    "verifier": adapter("shipped", rank=2, alpha=8, targets=("q_proj", "v_proj"), lr=1e-2, lr_warmup=0),
    "other": frozen("shipped-format"),
}


@pytest.fixture
def cast():
    return cast_of(POLICIES, seed=5)


def learn(cast, policy):
    sampled = cast[policy].logprobs(PAIRS)
    samples = tuple(
        Sample(key=str(i), prompt_ids=p, token_ids=t, sampler_logprobs=b, advantages=torch.full_like(b, (-1.0) ** i))
        for i, ((p, t), b) in enumerate(zip(PAIRS, sampled, strict=True))
    )
    assert (
        cast[policy]
        .update([LossTerm(name="o", algorithm=PolicyGradient(reward_weights={OUTCOME: 1.0}), samples=samples)])
        .stepped
    )


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.whole
def test_who_shares_a_module(cast):
    assert cast["generator"].model is cast["verifier"].model is cast["reference"].model
    assert len({id(cast[name].model) for name in ("generator", "apart", "other")}) == 3
    assert cast["generator"].renderer is cast["reference"].renderer
    assert {h.name for h in cast if h.activate} == {"generator", "verifier", "reference"}
    assert cast["generator"].base is cast["verifier"].base
    assert all(p.requires_grad for p in cast["apart"].model.parameters())
    cast["reference"].activate()
    assert not any(p.requires_grad for p in cast["reference"].model.parameters())


@pytest.mark.whole
def test_all_begin_alike_and_learn_apart(cast):
    plain = Scorer(load_model("shipped")[0]).logprobs(PAIRS)
    assert all(same(cast[name].logprobs(PAIRS), plain) for name in ("reference", "generator", "apart", "verifier"))
    for name in ("generator", "apart", "verifier", "generator"):
        others = [other for other in POLICIES if other != name]
        before, scores = cast.tensors(), {other: cast[other].logprobs(PAIRS) for other in POLICIES}
        learn(cast, name)
        after = cast.tensors()
        for other in others:
            assert same(cast[other].logprobs(PAIRS), scores[other])
            assert other not in after or same(before[other].values(), after[other].values())
        assert not same(cast[name].logprobs(PAIRS), scores[name])
    assert same(cast["reference"].logprobs(PAIRS), plain)


@pytest.mark.whole
def test_a_checkpoint_holds_adapters_and_not_their_base(cast):
    for name in ("generator", "verifier"):
        learn(cast, name)
        tensors = cast.tensors()[name]
        assert all(f".policy-{name}." in key for key in tensors)
        assert {t.dtype for t in tensors.values()} == {torch.float32}
    config = cast["reference"].model.config
    assert sum(k.startswith("model.") for k in cast.tensors()["verifier"]) == 2 * 2 * config.num_hidden_layers
    state, tensors = cast.state(), cast.tensors()
    fresh = cast_of(dict(reversed(POLICIES.items())), seed=6)  # loaded in another order, drawn with another seed
    fresh.load(state, tensors)
    for name in POLICIES:
        assert same(fresh[name].logprobs(PAIRS), cast[name].logprobs(PAIRS))
    for made in (cast, fresh):
        learn(made, "generator")
    assert same(fresh["generator"].logprobs(PAIRS), cast["generator"].logprobs(PAIRS))


@pytest.mark.whole
def test_a_policy_may_begin_with_a_saved_adapter(cast, tmp_path):
    learn(cast, "generator")
    cast["generator"].save(tmp_path / "saved")
    again = cast_of({"judge": adapter("shipped", path=str(tmp_path / "saved"))}, seed=0)
    assert same(again["judge"].logprobs(PAIRS), cast["generator"].logprobs(PAIRS))
    with refuses("E_ADAPTER_FILE_MISSING", names=("policy 'judge'", "adapter_config.json")):
        cast_of({"judge": adapter("shipped", path=str(tmp_path / "nowhere"))}, seed=0)
    with refuses("E_ADAPTER_BASE", names="'shipped-format'"):
        cast_of({"judge": adapter("shipped-format", path=str(tmp_path / "saved"))}, seed=0)


def test_a_frozen_model_at_an_address_is_a_remote_one():
    assert frozen("http://127.0.0.1:9/v1#judge") == remote("http://127.0.0.1:9/v1", "judge")


def test_the_recipes_share_a_base_when_the_models_are_one():
    for made in (tango(lora=4), grpo(lora=4), tango(lora=4, verifier_model="shipped-format")):
        trained = [spec for spec in made.policies.values() if spec.is_trained]
        assert all(spec.lora == Lora(rank=4, alpha=8) and spec.kind == "adapter" for spec in trained)
        assert made.policies["reference"] == frozen("shipped")
    assert made.policies["verifier"].model == "shipped-format"
    assert all(spec.lora is None for spec in tango().policies.values())
    with refuses("E_LORA_RANGE", names="rank -1"):
        grpo(lora=-1)


@pytest.mark.whole
def test_the_start_of_an_adapter_is_at_no_distance_from_its_reference(cast):
    """What a KL term sees: the policy minus the reference, 0 before the first update and not after it."""
    for updates in (0, 1):
        gaps = zip(cast["generator"].logprobs(PAIRS), cast["reference"].logprobs(PAIRS), strict=True)
        distance = math.fsum(float((a - b).abs().sum()) for a, b in gaps)
        assert (distance > 0.0) == bool(updates)
        learn(cast, "generator")
