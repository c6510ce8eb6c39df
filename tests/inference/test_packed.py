"""Decoding with weights in oneDNN's layout says what decoding without them says, before and after every update."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from cotrain.config.policies import Trained
from cotrain.core.types import Sampling
from cotrain.distributed.engine_host import EngineHost, to_host_request
from cotrain.inference.local import LocalEngine
from cotrain.inference.packed_weights import PackedWeights, can_pack, measure_gain
from cotrain.inference.reference import complete_request
from cotrain.learner.optim import adamw
from cotrain.models.adapters import AdapterBase
from cotrain.models.load import load_model
from cotrain.pretraining.muon import muon
from tests.helpers import CONTEXT, TINY, VOCABULARY, answers, mixed_requests, request

pytestmark = pytest.mark.skipif(not can_pack(), reason="this build of torch has no oneDNN")


def wide_model(config=LlamaConfig, seed=0, **changes):
    """As ``tests.helpers.tiny_model``, with layers wide enough to be laid out."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8, "num_key_value_heads": 8}
    sizes |= {"num_hidden_layers": 2, "head_dim": 8, "max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = config(**{**sizes, "tie_word_embeddings": True, **changes})
        model = AutoModelForCausalLM.from_config(whole, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter *= 3
    return model.eval()


def packing_of(engine, policy="a"):
    return engine._schedulers[policy]._copies


def assert_equals_reference(engine, models, requests):
    for asked, completion in zip(requests, answers(engine, requests), strict=True):
        expected = complete_request(models[asked.policy], asked)
        assert completion.token_ids == expected.token_ids
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.whole
def test_two_families_equal_the_reference():
    """With a tied head, and with heads and biases of their own; a policy beside them decodes as ever."""
    models = {
        "tied": wide_model(),
        "biased": wide_model(Qwen3Config, 1, tie_word_embeddings=False, attention_bias=True),
        "plain": wide_model(seed=2),
    }
    engine = LocalEngine(models, max_rows=8, pack_weights=["tied", "biased"])
    assert len(packing_of(engine, "tied")._packed) == len(packing_of(engine, "biased")._packed) == 2 * 7 + 1
    assert packing_of(engine, "plain") is None
    assert_equals_reference(engine, models, mixed_requests(sorted(models), 30))
    assert not any("forward" in vars(module) for model in models.values() for module in model.modules())


@pytest.mark.whole
@pytest.mark.parametrize("optimizer", [adamw, muon])
def test_every_write_to_a_weight_is_seen_and_nothing_else_is_laid_out_again(optimizer):
    model, other = wide_model(), wide_model(seed=1)
    engine = LocalEngine({"a": model}, pack_weights=["a"])
    requests = mixed_requests(["a"], 4)
    answers(engine, requests)
    made = dict(packing_of(engine)._packed)
    answers(engine, requests)
    assert packing_of(engine)._packed == made  # the same objects

    def step():
        model(input_ids=torch.tensor([[1, 2, 3]])).logits.square().sum().backward()
        optimizer(model, lr=0.05).step()

    def copy():
        with torch.no_grad():
            model.lm_head.weight.copy_(other.lm_head.weight)

    for change in (step, copy, lambda: model.load_state_dict(other.state_dict())):
        before = answers(engine, requests)
        change()
        engine.publish("a", 1)
        assert [one.logprobs for one in answers(engine, requests)] != [one.logprobs for one in before]
        assert_equals_reference(engine, {"a": model}, requests)


def test_adapters_stand_on_one_base_that_is_laid_out_once():
    base = AdapterBase(TINY)
    for name in ("one", "two"):
        base.add(name, rank=4, alpha=8, targets="all-linear", seed=0)
    activate = {name: lambda name=name: base.activate(name) for name in ("one", "two")}
    models = dict.fromkeys(activate, base.module)
    engine = LocalEngine(models, activate=activate, pack_weights=["one", "two"])
    assert packing_of(engine, "one") is packing_of(engine, "two")
    asked = [request(policy=policy, prompt_ids=(1, 40, 41, 42)) for policy in activate]
    fresh = answers(engine, asked)
    laid_out = dict(packing_of(engine, "one")._packed)
    with torch.no_grad():
        for name, parameter in base.module.named_parameters():
            if ".lora_B.policy-one." in name:
                parameter.fill_(0.05)
    engine.publish("one", 1)
    one, two = answers(engine, asked)
    assert two.logprobs == fresh[1].logprobs and one.logprobs != fresh[0].logprobs
    assert packing_of(engine, "one")._packed == laid_out  # no adapter is among them
    activate["one"]()
    assert one.logprobs == pytest.approx(complete_request(base.module, asked[0]).logprobs, abs=1e-4)


def test_an_engine_in_another_process_follows_what_is_published():
    torch.set_num_threads(1)
    asked = request(policy="generator", prompt_ids=(1, 40, 41), sampling=Sampling(max_tokens=6))
    host = EngineHost({"generator": Trained(model=TINY, pack_weights=True)}, 0, "cpu", 1)
    assert packing_of(host._engine, "generator")._packed
    weights = {name: tensor * 1.5 for name, tensor in load_model(TINY)[0].state_dict().items()}
    host.publish("generator", 1, {n: w.numpy() for n, w in weights.items() if n != "lm_head.weight"}, ())
    [answer], *_ = host.advance([to_host_request(0, asked)], ())
    model = load_model(TINY)[0]
    model.load_state_dict(weights)
    assert answer.completion.logprobs == pytest.approx(complete_request(model, asked).logprobs, abs=1e-4)
    host.close()


def test_a_kernel_that_computes_otherwise_is_not_used(monkeypatch):
    multiply = torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda x, *rest: multiply(x * 1.1, *rest))
    model = wide_model()
    with pytest.warns(RuntimeWarning, match="policy 'a': decoded without packed weights .* off by"):
        engine = LocalEngine({"a": model}, pack_weights=["a"])
    assert packing_of(engine) is None
    assert_equals_reference(engine, {"a": model}, mixed_requests(["a"], 4))


def test_half_precision_and_devices_of_fixed_shapes_have_none():
    assert not isinstance(packing_of(LocalEngine({"a": wide_model()}, pack_weights=["a"], static=True)), PackedWeights)
    half = LocalEngine({"a": wide_model()}, pack_weights=["a"], autocast=torch.bfloat16)
    assert not isinstance(packing_of(half), PackedWeights)


def test_the_probe_measures_what_there_is():
    state = torch.random.get_rng_state()
    assert 0.0 < measure_gain([(256, 64), (64, 256), (8, 64)]) < 1000.0
    assert measure_gain([]) == measure_gain([(8, 64)]) == 1.0
    assert bool((torch.random.get_rng_state() == state).all())
