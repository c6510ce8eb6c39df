"""A sampler with int8 weights says nearly what float32 says, follows what is published, and is refused where it cannot
be."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config

from cotrain.config.override import override
from cotrain.config.policies import Critic, Frozen, Trained, adapter, frozen, reward_model, trainable
from cotrain.config.recipe import check_due
from cotrain.config.remote import remote
from cotrain.core.types import Sampling
from cotrain.distributed.engine_host import EngineHost, to_host_request
from cotrain.inference import int8_weights
from cotrain.inference.int8_weights import lay_out_int8
from cotrain.inference.local import LocalEngine
from cotrain.models.adapters import AdapterBase
from cotrain.models.load import load_model
from cotrain.models.sizes import model_size
from cotrain.recipes.grpo import grpo
from cotrain.recipes.magrpo import magrpo
from cotrain.recipes.tango import tango
from cotrain.runs.fitting import with_packing
from cotrain.runs.memory_plan import estimate_run
from tests.helpers import CONTEXT, EASY, TINY, VOCABULARY, answers, request, tiny_model
from tests.inference.test_packed import packing_of, wide_model
from tests.sentences import command_refuses, refuses

OFF = 0.1  # nats by which the log-probability of a token may differ from that of float32
HERE = {"kind": "local", "device": "cpu"}


def layer_of(weight, bias=None):
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)
    return layer


@torch.inference_mode()
def test_a_product_by_hand():
    """Scales of the weights are 1/127 and 2/127: 0.3 is 38/127, and 0.5 is 32 · 2/127. The scale of the second row is
    5/127: 1 is 25.4 steps of it, 25 and 102/254 (101.6)."""
    layer = layer_of([[1.0, 0.3], [0.5, 2.0]], bias=[10.0, 0.0])
    rows = torch.tensor([[1.0, 0.0], [5.0, 1.0]])
    found = lay_out_int8(layer)(rows[None])[0]
    one = (25 + 102 / 254) * 5 / 127
    first = [10 + 1.0, 32 * 2 / 127]
    second = [10 + 5 + one * 38 / 127, 5 * 32 * 2 / 127 + one * 2]
    assert found.shape == (2, 2)
    assert found.flatten().tolist() == pytest.approx([*first, *second], rel=1e-6)


@torch.inference_mode()
def test_a_row_depends_on_no_other_and_blocks_are_one_layer(monkeypatch):
    torch.manual_seed(0)
    layer, rows = nn.Linear(48, 40), torch.randn(5, 48)
    whole = lay_out_int8(layer)(rows)
    assert (whole - layer(rows)).norm() < 0.006 * layer(rows).norm()
    louder = torch.cat([rows[:1], 1000 * rows[1:]])
    assert torch.equal(lay_out_int8(layer)(louder)[0], whole[0])
    monkeypatch.setattr(int8_weights, "BLOCK", 16)
    assert torch.equal(lay_out_int8(layer)(rows), whole)


@torch.inference_mode()
def test_a_number_that_outweighs_its_row_costs_the_others_little():
    torch.manual_seed(0)
    layer, rows = nn.Linear(64, 64), torch.randn(4, 64)
    rows[:, 0] = 40.0
    small = layer(rows) - layer.weight[:, 0] * 40.0  # what the others contribute
    found = lay_out_int8(layer)(rows) - lay_out_int8(layer)(rows * (torch.arange(64) == 0)) + layer.bias
    assert (found - small).norm() < 0.01 * small.norm()


@torch.inference_mode()
def test_zeros_stay_zeros_and_what_is_no_number_stays_none():
    layer = layer_of([[1.0, 2.0], [0.0, 0.0]])
    rows = torch.tensor([[0.0, 0.0], [1.0, float("nan")], [float("inf"), 1.0], [1.0, 1.0]])
    found = lay_out_int8(layer)(rows)
    assert found[0].tolist() == [0.0, 0.0] and found[3, 1] == 0.0
    assert not found[1].isfinite().any() and not found[2].isfinite().any() and found[3].isfinite().all()


def sampled_logprobs(engine, models, requests):
    """Pairs of log-probabilities of the tokens that the engine drew: its own, and those of float32."""
    own, exact = [], []
    for asked, completion in zip(requests, answers(engine, requests), strict=True):
        ids = torch.tensor([[*asked.prompt_ids, *completion.token_ids]])
        with torch.inference_mode():
            logits = models[asked.policy](input_ids=ids).logits[0, len(asked.prompt_ids) - 1 : -1]
        drawn = torch.tensor(completion.token_ids)[:, None]
        exact += logits.log_softmax(-1).gather(1, drawn)[:, 0].tolist()
        own += completion.logprobs
    return torch.tensor(own), torch.tensor(exact)


def plain_requests(policy, count):
    """At temperature 1, of whole distributions."""
    made = []
    for i in range(count):
        prompt = tuple((7 * i + k) % VOCABULARY for k in range(3 + i))
        made.append(request(policy=policy, prompt_ids=prompt, task=i, sampling=Sampling(max_tokens=8)))
    return made


def test_log_probabilities_are_near_those_of_float32_and_the_same_again():
    models = {"a": wide_model(), "exact": wide_model(seed=1)}
    engine = LocalEngine(models, int8_weights=["a"])
    assert len(packing_of(engine)._packed) == 2 * 7 + 1 and packing_of(engine, "exact") is None
    own, exact = sampled_logprobs(engine, models, plain_requests("a", 6))
    assert (own - exact).abs().mean() > 1e-4 and (own - exact).abs().max() < OFF
    again, _ = sampled_logprobs(LocalEngine(models, int8_weights=["a"]), models, plain_requests("a", 6))
    assert torch.equal(own, again)
    own, exact = sampled_logprobs(engine, models, plain_requests("exact", 2))
    assert own.tolist() == pytest.approx(exact.tolist(), abs=1e-4)
    assert not any("forward" in vars(module) for model in models.values() for module in model.modules())


def test_a_publish_changes_the_int8_weights_and_not_the_learners():
    model, other = wide_model(), wide_model(seed=1)
    engine = LocalEngine({"a": model}, int8_weights=["a"])
    before, _ = sampled_logprobs(engine, {"a": model}, plain_requests("a", 4))
    laid_out = dict(packing_of(engine)._packed)
    again, _ = sampled_logprobs(engine, {"a": model}, plain_requests("a", 4))
    assert torch.equal(before, again) and packing_of(engine)._packed == laid_out  # the same objects
    model.load_state_dict(other.state_dict())
    engine.publish("a", 1)
    own, exact = sampled_logprobs(engine, {"a": model}, plain_requests("a", 4))
    assert (own - exact).abs().max() < OFF and own.tolist() != before.tolist()
    assert not packing_of(engine)._packed.keys() - laid_out.keys()
    assert all(packing_of(engine)._packed[layer] is not laid_out[layer] for layer in laid_out)
    expected = other.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_an_engine_in_another_process_follows_what_is_published():
    torch.set_num_threads(1)
    asked = request(policy="generator", prompt_ids=(1, 40, 41), sampling=Sampling(max_tokens=6))
    host = EngineHost({"generator": Trained(model=TINY, pack_weights="int8")}, 0, "cpu", 1)
    assert packing_of(host._engine, "generator").approximate
    weights = {name: tensor * 1.5 for name, tensor in load_model(TINY)[0].state_dict().items()}
    host.publish("generator", 1, {n: w.numpy() for n, w in weights.items() if n != "lm_head.weight"}, ())
    [answer], *_ = host.advance([to_host_request(0, asked)], ())
    model = load_model(TINY)[0]
    model.load_state_dict(weights)
    ids = torch.tensor([[*asked.prompt_ids, *answer.completion.token_ids]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, 2:-1]
    exact = logits.log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    assert answer.completion.logprobs == pytest.approx(exact.tolist(), abs=2 * OFF)
    host.close()


def test_the_base_of_adapters_is_quantised_and_the_adapters_are_counted():
    base = AdapterBase(TINY)
    base.add("one", rank=4, alpha=8, targets="all-linear", seed=0)
    models, activate = {"one": base.module}, {"one": lambda: base.activate("one")}
    with pytest.warns(RuntimeWarning, match="policy 'one': 89.8% of .* in int8; in float32 stay 22,528 narrower"):
        engine = LocalEngine(models, activate=activate, int8_weights=["one"])
    asked = [request(policy="one", prompt_ids=(1, 40, 41, 42))]
    [fresh] = answers(engine, asked)
    laid_out = dict(packing_of(engine, "one")._packed)
    with torch.no_grad():
        for name, parameter in base.module.named_parameters():
            if ".lora_B." in name:
                parameter.fill_(0.05)
    engine.publish("one", 1)
    [changed] = answers(engine, asked)
    assert changed.logprobs != fresh.logprobs and packing_of(engine, "one")._packed == laid_out


# -- what is refused


def test_models_without_wide_linear_layers_are_refused_and_others_counted():
    with refuses("E_EIGHT_BIT_NO_LAYER", names=("'a'", "LlamaForCausalLM", "narrower than 64")):
        LocalEngine({"a": tiny_model()}, int8_weights=["a"])
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=64, n_layer=1, n_head=4, n_positions=CONTEXT)
    gpt2 = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with pytest.warns(RuntimeWarning, match="in float32 stay 49,152 of Conv1D"):
        engine = LocalEngine({"a": gpt2}, int8_weights=["a"])
    assert len(packing_of(engine)._packed) == 1  # the output layer


def test_a_processor_whose_sums_overflow_is_refused(monkeypatch):
    multiply = torch._int_mm
    monkeypatch.setattr(torch, "_int_mm", lambda *parts: multiply(*parts).clamp(min=-32 * 32767 // 2))
    with refuses("E_EIGHT_BIT_PRODUCTS", names="'a'"):
        LocalEngine({"a": wide_model()}, int8_weights=["a"])


def test_a_model_that_loses_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(int8_weights, "LARGEST", 2)
    with refuses("E_MODEL_NOT_DECODABLE", names=("'a'", "pack_weights=int8", "off by")):
        LocalEngine({"a": wide_model()}, int8_weights=["a"])


@pytest.mark.parametrize("other", [{"static": True}, {"autocast": torch.bfloat16}], ids=["device", "half"])
def test_an_engine_of_other_arithmetic_refuses_it(other):
    with refuses("E_EIGHT_BIT_PLACE", names="'a'"):
        LocalEngine({"a": wide_model()}, int8_weights=["a"], **other)


def test_policies_that_cannot_have_it_are_refused():
    for made in ({"autocast": True}, {"dtype": "bfloat16"}, {"load_in_4bit": True}):
        with refuses("E_EIGHT_BIT_ARITHMETIC", names=next(iter(made))):
            Frozen(model=TINY, pack_weights="int8", **made)
    for kind in (Critic, type(reward_model(TINY))):
        with refuses("E_EIGHT_BIT_ARITHMETIC", names="no tokens"):
            kind(model=TINY, pack_weights="int8")
    with refuses("E_PACK_WEIGHTS", names="'int4'"):
        Trained(model=TINY, pack_weights="int4")
    for made in (trainable(TINY), adapter(TINY), frozen(TINY)):
        assert type(made).__dataclass_fields__["pack_weights"].default is None


def with_int8(recipe, *names, value="int8"):
    return override(recipe, [f"policies.{name}.pack_weights={value}" for name in names])


def test_an_engine_or_a_device_without_it_is_refused_and_so_is_a_policy_that_never_speaks():
    recipe = with_int8(tango(model=TINY), "verifier")
    assert with_packing(recipe, HERE) == (recipe, [])
    with refuses("E_EIGHT_BIT_PLACE", names=("policies.verifier", "vLLM")):
        with_packing(recipe, {"kind": "ray", "engine": "vllm", "device": "cpu"})
    with refuses("E_EIGHT_BIT_PLACE", names=("policies.verifier", "cuda")):
        with_packing(recipe, {"kind": "local", "device": "cuda"})
    with refuses("E_EIGHT_BIT_PLACE", names=("policies.reference", "no role")):
        with_packing(with_int8(tango(model=TINY), "reference"), HERE)


def test_a_loss_without_a_ratio_is_refused():
    made = with_int8(magrpo(model=TINY), *(name for name in magrpo().policies if name != "reference"))
    with refuses("E_EIGHT_BIT_WITHOUT_RATIO", names=("pack_weights=int8", ".cap=2")):
        check_due(made)
    check_due(override(made, [f"objectives.{name}.algorithm.loss.cap=2" for name in made.objectives]))
    check_due(with_int8(grpo(model=TINY), "generator"))


def test_a_server_has_no_such_setting():
    recipe = tango(model=TINY, verifier="frozen", warmup=0)
    policies = {**recipe.policies, "verifier": remote("http://127.0.0.1:9/v1", "judge")}
    with refuses("E_NO_SUCH_FIELD", names="pack_weights"):
        with_int8(type(recipe)(**{**vars_of(recipe), "policies": policies}), "verifier")


def vars_of(recipe):
    return {name: getattr(recipe, name) for name in recipe.__dataclass_fields__}


def test_the_setting_goes_from_and_to_every_value():
    recipe = grpo(model=TINY, tasks=EASY)
    for before in ("true", "int8", "null"):
        for after, value in (("true", True), ("int8", "int8"), ("false", False), ("null", None)):
            changed = with_int8(with_int8(recipe, "generator", value=before), "generator", value=after)
            assert changed.policies["generator"].pack_weights == value
    for value in ("int4", "8", "[true]"):
        with refuses("E_OVERRIDE_TYPE", names="int8"):
            with_int8(recipe, "generator", value=value)


def test_the_estimate_of_memory_counts_a_byte_a_weight():
    recipe = grpo(model=TINY, tasks=EASY)
    packed = {}
    for value in ("true", "int8", "false"):
        parts = estimate_run(with_int8(recipe, "generator", value=value), device="cpu").memory
        packed[value] = parts.get("packed weights", 0)
    assert packed["int8"] == model_size(TINY).parameters and packed["true"] == 4 * packed["int8"]
    assert packed["false"] == 0


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    words = ["run", "grpo", "--smoke", "--out", tmp_path / "run", "--set"]
    command_refuses([*words, "policies.reference.pack_weights=int8"], "E_EIGHT_BIT_PLACE: policies.reference", capsys)
    command_refuses([*words, "policies.generator.pack_weights=int4"], "E_OVERRIDE_TYPE: 'int8' | 'int4'", capsys)
    assert not (tmp_path / "run").exists()
