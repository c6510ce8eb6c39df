"""Adapters on one base: the base at the start, apart from each other always, and PEFT's own when saved."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from cotrain.core.errors import UnknownName
from cotrain.models.adapters import AdapterBase, merge_into_base
from cotrain.models.from_scratch import new_model, small_config
from cotrain.models.load import load_model, load_tokenizer, save_model
from cotrain.models.shared_prefix import can_branch
from tests.sentences import refuses

IDS = torch.tensor([[1, 9, 8, 7, 40, 3], [1, 5, 6, 7, 8, 2]])
PLAIN = {"rank": 4, "alpha": 8, "targets": "all-linear", "seed": 0}


def base_of(directory, *policies, **changes):
    base = AdapterBase(directory)
    for policy in policies:
        base.add(policy, **{**PLAIN, **changes})
    return base


def logits(base, policy):
    base.activate(policy)
    with torch.no_grad():
        return base.module(input_ids=IDS, use_cache=False).logits


def trained(base):
    return {name: p for name, p in base.module.named_parameters() if p.requires_grad}


def train(base, policy, steps=3):
    """Some steps of an optimiser over whatever requires a gradient while the policy is active."""
    base.activate(policy)
    optimizer = torch.optim.AdamW(trained(base).values(), lr=1e-2)
    for _ in range(steps):
        base.activate(policy)
        optimizer.zero_grad()
        base.module(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
        optimizer.step()
    optimizer.zero_grad()


def weights_of(base, policy):
    return {n: p.detach().clone() for n, p in base.module.named_parameters() if f"policy-{policy}" in n.split(".")}


def test_a_fresh_adapter_is_the_base_bit_for_bit(directory):
    plain, _ = load_model(directory)
    base = base_of(directory, "one", "two")
    expected = plain(input_ids=IDS, use_cache=False).logits
    for policy in ("one", "two", None):
        assert torch.equal(logits(base, policy), expected)
    for name, weight in weights_of(base, "one").items():
        assert weight.any() == (".lora_A." in name)
    assert len(weights_of(base, "one")) == 2 * 7  # seven linear layers, the output layer left out


@pytest.mark.whole
def test_the_draw_depends_on_seed_policy_and_name_alone(directory):
    alone, among = base_of(directory, "two"), base_of(directory, "zero", "one", "two", rank=2)
    wide = base_of(directory, "one", "two")
    assert all(torch.equal(a, b) for a, b in zip(*(weights_of(b, "two").values() for b in (alone, wide)), strict=True))
    pairs = list(zip(weights_of(among, "one").items(), weights_of(among, "two").values(), strict=True))
    assert all(torch.equal(a, b) == (".lora_B." in name) for (name, a), b in pairs)
    other = base_of(directory, "two", seed=1)
    assert not all(
        torch.equal(a, b)
        for a, b in zip(weights_of(alone, "two").values(), weights_of(other, "two").values(), strict=True)
    )


def test_the_global_generator_is_untouched(directory):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    base_of(directory, "one", "two")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.whole
def test_adapters_do_not_influence_each_other(directory):
    base = base_of(directory, "one", "two")
    train(base, "two")
    plain, still = logits(base, None), logits(base, "two")
    weights, own = weights_of(base, "two"), weights_of(base, "one")
    below = {n: p.detach().clone() for n, p in base.module.named_parameters() if "lora_" not in n}
    train(base, "one")
    assert not any(torch.equal(a, b) for a, b in zip(own.values(), weights_of(base, "one").values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(weights.values(), weights_of(base, "two").values(), strict=True))
    assert all(torch.equal(p, dict(base.module.named_parameters())[n]) for n, p in below.items())
    assert torch.equal(logits(base, "two"), still) and torch.equal(logits(base, None), plain)
    assert not torch.equal(logits(base, "one"), still) and not torch.equal(logits(base, "one"), plain)


def test_only_the_active_adapter_requires_gradients(directory):
    base = base_of(directory, "one", "one-and-more")
    assert not trained(base)
    for policy in ("one", "one-and-more", "one", None, "one-and-more"):
        with torch.inference_mode():  # as the engine calls it
            base.activate(policy)
        assert set(trained(base)) == (set(weights_of(base, policy)) if policy else set())
    base.activate("one")
    base.add("late", **PLAIN)
    assert not trained(base)
    base.activate("late")
    base.module(input_ids=IDS, use_cache=False).logits.sum().backward()
    assert {n for n, p in base.module.named_parameters() if p.grad is not None} == set(weights_of(base, "late"))


def test_policies_may_have_any_name_and_other_targets(directory):
    base = base_of(directory, "values", "lora", "q_proj", targets=("q_proj", "down_proj"))
    base.add("weight", **{**PLAIN, "targets": "o_proj", "rank": 2})
    for policy in base.policies:
        train(base, policy)
    assert len(weights_of(base, "weight")) == 2 and len(weights_of(base, "values")) == 4
    results = [logits(base, policy) for policy in (*base.policies, None)]
    assert not any(torch.equal(a, b) for i, a in enumerate(results) for b in results[:i])


@pytest.mark.whole
def test_a_missing_adapter_is_an_error(directory, tmp_path):
    base = base_of(directory, "generator")
    before = logits(base, "generator")
    with refuses("E_UNKNOWN_ADAPTER", names="'generator'"):
        base.activate("genrator")
    assert torch.equal(base.module(input_ids=IDS, use_cache=False).logits, before)
    with pytest.raises(UnknownName):
        base.save("genrator", tmp_path / "saved")
    with refuses("E_ADAPTER_TWICE"):
        base.add("generator", **PLAIN)
    with refuses("E_ADAPTER_NOT_MADE"):
        base_of(directory, "one", targets=("query",))
    with refuses("E_ADAPTER_LAYERS"):
        base_of(directory, "one", targets=("embed_tokens",))


@pytest.mark.whole
def test_a_saved_adapter_is_peft_s_own_and_comes_back(directory, tmp_path):
    base = base_of(directory, "one", "two")
    for policy in ("one", "two"):
        train(base, policy)
        base.save(policy, tmp_path / policy)
    plain, _ = load_model(directory)
    theirs = PeftModel.from_pretrained(plain, tmp_path / "one").eval()
    assert torch.equal(theirs(input_ids=IDS, use_cache=False).logits, logits(base, "one"))
    again = AdapterBase(directory)
    again.load("two", tmp_path / "two")
    again.load("other", tmp_path / "one")
    again.add("fresh", **PLAIN)
    for policy, source in (("two", "two"), ("other", "one"), ("fresh", None)):
        assert torch.equal(logits(again, policy), logits(base, source))
    train(again, "other")
    assert torch.equal(logits(again, "two"), logits(base, "two"))


@pytest.mark.whole
def test_an_adapter_that_peft_wrote_is_read(directory, tmp_path):
    theirs = get_peft_model(
        load_model(directory)[0],
        LoraConfig(
            task_type="CAUSAL_LM",
            r=3,
            lora_alpha=6,
            target_modules=["q_proj"],
            lora_dropout=0.5,
            rank_pattern={"q_proj": 2},
            use_rslora=True,
            init_lora_weights=False,
        ),
    ).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    base = AdapterBase(directory)
    base.load("mine", tmp_path / "theirs")
    assert torch.equal(logits(base, "mine"), theirs(input_ids=IDS, use_cache=False).logits)
    assert not torch.equal(logits(base, "mine"), logits(base, None))


@pytest.mark.whole
def test_what_is_no_adapter_of_this_base_is_refused(directory, model, tokenizer, tmp_path):
    base = base_of(directory, "one")
    base.save("one", tmp_path / "good")
    weights = load_file(tmp_path / "good" / "adapter_model.safetensors")
    config = json.loads((tmp_path / "good" / "adapter_config.json").read_text())

    def refused(code, *, on=directory, **changes):
        """``changes``: of the configuration; or ``raw``: what its file or that of the weights holds instead."""
        folder = tmp_path / "bad"
        folder.mkdir(exist_ok=True)
        raw = changes.pop("raw", {})
        found = {**config, **changes}
        (folder / "adapter_config.json").write_text(raw.get("config", json.dumps(found)))
        save_file(raw.get("weights", weights), folder / "adapter_model.safetensors")
        if "bytes" in raw:
            (folder / "adapter_model.safetensors").write_bytes(raw["bytes"])
        with refuses(code) as error:
            AdapterBase(on).load("one", folder)
        assert "\n" not in str(error.value) and "policy 'one'" in str(error.value)

    with refuses("E_ADAPTER_FILE_MISSING", names="adapter_config.json"):
        AdapterBase(directory).load("one", tmp_path / "nowhere")
    refused("E_MODEL_FILE_NOT_JSON: adapter_config.json", raw={"config": "{"})
    refused("E_WEIGHTS_DAMAGED", raw={"bytes": b"x"})
    refused("E_ADAPTER_KIND", peft_type="LOHA", raw={"config": json.dumps({"peft_type": "LOHA"})})
    for change in (
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"init_lora_weights": "pissa"},
    ):
        refused(f"E_ADAPTER_SETTINGS: {next(iter(change))}", **change)
    first = next(iter(weights))
    refused("E_ADAPTER_WEIGHTS_MISFIT", raw={"weights": {k: v for k, v in weights.items() if k != first}})
    refused("E_ADAPTER_WEIGHTS_MISFIT", raw={"weights": {**weights, first: weights[first][:, :3].contiguous()}})
    refused(
        "E_ADAPTER_WEIGHTS_MISFIT",
        raw={"weights": {**weights, first.replace("layers.0", "layers.1"): weights[first].clone()}},
    )
    refused("E_ADAPTER_NOT_MADE: not found", target_modules=["query"])
    sizes = {"depth": 1, "width": 16, "heads": 2, "kv_heads": 1, "feed_forward": 24}
    other = new_model(small_config(len(tokenizer), **sizes), seed=4)  # of the same shapes
    save_model(other, tokenizer, tmp_path / "other")
    refused("E_ADAPTER_BASE", on=tmp_path / "other")
    refused("E_ADAPTER_BASE", base_model_name_or_path="shipped")
    save_model(model, tokenizer, tmp_path / "copy")
    AdapterBase(tmp_path / "copy").load("one", tmp_path / "good")


def test_float32_adapters_on_a_bfloat16_base(directory):
    base = AdapterBase(directory, torch.bfloat16)
    base.add("one", **PLAIN)
    assert torch.equal(logits(base, "one"), logits(base, None)) and logits(base, None).dtype == torch.bfloat16
    train(base, "one")
    assert {p.dtype for p in trained(base).values()} == {torch.float32}
    assert not torch.equal(logits(base, "one"), logits(base, None))


def test_models_with_adapters_can_branch(directory):
    base = base_of(directory, "one")
    assert can_branch(base.module) and can_branch(base._peft)


@pytest.mark.whole
@pytest.mark.parametrize("targets", [["lm_head"], ["q_proj", "lm_head"]])
def test_an_adapter_of_a_layer_that_is_another_ones_too_is_refused(directory, tmp_path, targets):
    with refuses("E_ADAPTER_LAYER_SHARED", names=("'lm_head'", "'model.embed_tokens'")):
        AdapterBase(directory).add("one", rank=2, alpha=4, targets=targets, seed=0)
    elsewhere = get_peft_model(
        AutoModelForCausalLM.from_pretrained(directory), LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=targets)
    )
    elsewhere.save_pretrained(tmp_path / "theirs")
    with refuses("E_ADAPTER_LAYER_SHARED"):
        AdapterBase(directory).load("one", tmp_path / "theirs")


@pytest.mark.whole
def test_an_output_layer_of_its_own_takes_an_adapter_and_merges(directory, tmp_path):
    untied = AutoModelForCausalLM.from_pretrained(directory)
    untied.config.tie_word_embeddings = False
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    save_model(untied, load_tokenizer(directory), tmp_path / "untied")
    base = AdapterBase(tmp_path / "untied")
    base.add("one", rank=2, alpha=4, targets=["lm_head", "q_proj"], seed=0)
    with torch.no_grad():
        for weight in base._weights["one"].values():
            weight.fill_(0.1)
    whole = merge_into_base(base, "one")
    assert torch.allclose(whole(input_ids=IDS).logits, logits(base, "one"), atol=1e-5)


@pytest.mark.whole
def test_a_merged_model_that_is_another_one_is_not_exported(directory, monkeypatch):
    base = base_of(directory, "one")
    with torch.no_grad():
        for weight in base._weights["one"].values():
            weight.fill_(0.1)
    whole = merge_into_base(base, "one")
    assert torch.allclose(whole(input_ids=IDS).logits, logits(base, "one"), atol=1e-5)
    unmerged = load_model(directory)[0]
    monkeypatch.setattr(PeftModel, "merge_and_unload", lambda self: unmerged, raising=False)
    with refuses("E_ADAPTER_MERGE_INEXACT"):
        merge_into_base(base, "one")
