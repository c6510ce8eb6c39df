"""Two adapters and their base in one engine: each answers with its own weights, which change in place."""

from dataclasses import replace

import pytest
import torch

from cotrain.core.types import Sampling
from cotrain.distributed.engine_host import saved_name
from cotrain.learner.logprobs import Scorer
from cotrain.models.adapters import AdapterBase
from tests.helpers import request
from tests.sentences import refuses

RANK = 4
POLICIES = {"generator": RANK, "reference": None, "verifier": RANK}
CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 8, "bias": "none"}


@pytest.fixture
def base(model):
    """Both adapters far from the base."""
    torch.set_num_threads(1)
    found = AdapterBase(model)
    for seed, policy in enumerate(("generator", "verifier")):
        found.add(policy, rank=RANK, alpha=8, targets="all-linear", seed=seed)
        change(found, policy, seed)
    return found


@torch.no_grad()
def change(base, policy, seed):
    noise = torch.Generator().manual_seed(100 + seed)
    for name, weight in weights(base, policy).items():
        if ".lora_B." in name:
            weight.copy_(0.05 * torch.randn(weight.shape, generator=noise))


def weights(base, policy):
    """As its learner gives them."""
    base.activate(policy)
    return {name: weight for name, weight in base.module.named_parameters() if weight.requires_grad}


def send(engine, base, policy, version):
    saved = {saved_name(name, policy): weight.detach() for name, weight in weights(base, policy).items()}
    targets = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in saved})
    engine.load_weights(policy, saved, version, {**CONFIG, "target_modules": targets})


def asked():
    prompt = tuple(10 + i % 80 for i in range(300))
    return [
        request(policy=sorted(POLICIES)[i % 3], prompt_ids=prompt[: 200 + i], sampling=Sampling(max_tokens=12), task=i)
        for i in range(9)
    ]


def gaps(base, said):
    """The largest distance of each policy's log-probabilities from its own weights'."""
    found = {}
    for request_, one in zip(asked(), said, strict=True):
        base.activate(None if one.policy == "reference" else one.policy)
        expected = Scorer(base.module).logprobs([(request_.prompt_ids, one.token_ids)])[0]
        gap = float((expected - torch.tensor(one.logprobs)).abs().max())
        found[one.policy] = max(gap, found.get(one.policy, 0.0))
    return found


def test_adapters_answer_with_their_own_weights_which_change_in_place(model, begin, base):
    engine = begin(model, POLICIES)
    with refuses("E_ADAPTER_NOT_PUBLISHED"):
        engine.answers([replace(asked()[0], policy="generator")])
    for policy in ("generator", "verifier"):
        send(engine, base, policy, 1)
    first = engine.answers(asked())
    assert max(gaps(base, first).values()) < 2e-4
    change(base, "generator", 7)
    send(engine, base, "generator", 2)
    second = engine.answers(asked())
    assert max(gaps(base, second).values()) < 2e-4
    assert [one for one in second if one.policy != "generator"] == [one for one in first if one.policy != "generator"]
    assert {one.version for one in second if one.policy == "generator"} == {2}
    change(base, "generator", 0)
    send(engine, base, "generator", 1)
    assert engine.answers(asked()) == first


def test_without_loading_in_place_old_weights_stay(model, begin, base):
    engine = begin(model, POLICIES, without=("_adapter_request",))
    for policy in ("generator", "verifier"):
        send(engine, base, policy, 1)
    engine.answers(asked())
    change(base, "generator", 7)
    send(engine, base, "generator", 2)
    found = gaps(base, engine.answers(asked()))
    assert found["generator"] > 1e-2 and found["verifier"] < 2e-4


def test_without_an_empty_slot_the_base_answers_with_an_adapter_beside_it(model, begin, base):
    engine = begin(model, POLICIES, without=("_slot_count",))
    for policy in ("generator", "verifier"):
        send(engine, base, policy, 1)
    found = gaps(base, engine.answers(asked()))
    assert found["reference"] > 1e-2 and found["generator"] < 2e-4
