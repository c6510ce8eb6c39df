"""Lanes of several adapters on one module say what each adapter says by itself, whoever else runs between."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import complete_request
from cotrain.models.adapters import AdapterBase
from cotrain.models.shared_prefix import can_branch
from tests.helpers import answers, mixed_requests, request, tiny_model
from tests.sentences import refuses

POLICIES = ("one", "two", "still")


def wrapped(kind):
    """A model in PEFT's wrapper with two adapters that say something, and what makes one of them, or none, speak."""
    torch.manual_seed(0)
    config = {"target_modules": "all-linear", "r": 4, "lora_alpha": 32, "init_lora_weights": False}
    model = get_peft_model(tiny_model(kind), LoraConfig(task_type="CAUSAL_LM", **config), adapter_name="one").eval()
    model.add_adapter("two", LoraConfig(task_type="CAUSAL_LM", **config))

    def speak(name):
        if name == "still":
            model.base_model.disable_adapter_layers()
        else:
            model.base_model.enable_adapter_layers()
            model.set_adapter(name)

    return model, {name: lambda name=name: speak(name) for name in POLICIES}


@pytest.mark.parametrize(("kind", "inside"), [("llama", True), pytest.param("qwen3", False, marks=pytest.mark.whole)])
def test_adapters_on_one_module_equal_the_reference(kind, inside):
    """Three policies whose decode steps and prefills take turns; ``inside``: the module in the wrapper is handed
    over."""
    model, activate = wrapped(kind)
    speaking = model.get_base_model() if inside else model
    assert can_branch(speaking)  # prompts that begin alike are computed once
    engine = LocalEngine(dict.fromkeys(POLICIES, speaking), max_rows=6, activate=activate)
    requests = mixed_requests(POLICIES, 24)
    for asked, completion in zip(requests, answers(engine, requests), strict=True):
        activate[asked.policy]()
        expected = complete_request(model, asked)
        assert completion.token_ids == expected.token_ids
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    same = {answers(engine, [request(policy=policy)])[0].logprobs for policy in POLICIES}
    assert len(same) == len(POLICIES)


@pytest.mark.whole
def test_lanes_of_an_adapter_base(embedded_base):
    """The shipped model: fresh adapters say what the base says, and an adapter that is not loaded is an error."""
    base = embedded_base
    activate = {name: lambda name=name: base.activate(name) for name in ("one", "two")}
    activate |= {"still": lambda: base.activate(None), "other": lambda: base.activate("other")}
    engine = LocalEngine(dict.fromkeys(activate, base.module), activate=activate)
    said = [answers(engine, [request(policy=policy, prompt_ids=(1, 40, 41, 42))])[0] for policy in POLICIES]
    assert len({completion.logprobs for completion in said}) == 1
    with refuses("E_UNKNOWN_ADAPTER", names=("'shipped'", "'other'")):
        answers(engine, [request(policy="other")])


@pytest.fixture(scope="module")
def embedded_base():
    base = AdapterBase("shipped")
    for name in ("one", "two"):
        base.add(name, rank=4, alpha=8, targets="all-linear", seed=0)
    return base
