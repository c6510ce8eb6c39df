import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch

from cotrain.models.load import describe_model, load_model
from cotrain.models.lora import Lora
from cotrain.pretraining.corpora import from_items, procedural_corpus
from cotrain.pretraining.packing import Document
from cotrain.pretraining.pretrain import bits_per_byte, config_for, make_plan, pretrain, step_count
from cotrain.pretraining.sft import sft
from cotrain.pretraining.trainer import read_result
from tests.sentences import refuses

SMALL = {"tokens": 64 * 4 * 6, "batch_tokens": 64 * 4, "length": 64, "validation": 3}


@pytest.fixture
def base(sentences, tokenizer, tmp_path):
    config = config_for(tokenizer, depth=1, width=16, heads=2, kv_heads=1, feed_forward=24)
    outcome = pretrain(tmp_path / "base", corpus=sentences, tokenizer=tokenizer, config=config, **SMALL)
    assert outcome.step == 6 and outcome.finished and set(outcome.validation) == {"sentences"}
    return tmp_path / "base"


@pytest.mark.whole
def test_from_text_to_a_tuned_model(base, sentences, conversations, tokenizer, tmp_path):
    model, tokens = load_model(base)
    assert (model.config.pad_token_id, model.config.eos_token_id) == (tokens.pad_token_id, tokens.eos_token_id)
    parts = [(conversations, 2), (sentences, 1)]
    outcome = sft(base, tmp_path / "tuned", conversations=parts, save_dtype=torch.bfloat16, **SMALL)
    assert outcome.finished and set(outcome.validation) == {"conversations", "sentences"}
    tuned, again = load_model(tmp_path / "tuned")
    assert again.get_vocab() == tokens.get_vocab()
    assert not torch.equal(tuned.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert describe_model(tmp_path / "tuned")["bytes"] < 0.7 * describe_model(base)["bytes"]


def test_what_a_training_came_to_stands_beside_its_model(base, conversations, tokenizer, tmp_path):
    result = read_result(base)
    assert (result["stage"], result["start"], result["steps"], result["resumed"]) == ("pretrain", "new", 6, False)
    assert result["parameters"] == sum(p.numel() for p in load_model(base)[0].parameters())
    assert set(result["bits_per_byte"]) == {"sentences"} and 0 < result["bits_per_byte"]["sentences"] < 16
    assert len(tokenizer(result["sample"])["input_ids"]) > 8
    sft(base, tmp_path / "tuned", conversations=conversations, taught={"role": "solver"}, **SMALL)
    tuned = read_result(tmp_path / "tuned")
    assert (tuned["stage"], tuned["start"], tuned["role"]) == ("sft", str(base), "solver")
    assert tuned["bits_per_byte"] == {} and tuned["sample"] == ""  # it learned replies, not text
    assert read_result(tmp_path) == {}


def test_rows_fit_into_the_context_of_their_model(base, sentences, conversations, tokenizer, tmp_path):
    with refuses("E_LENGTH_ABOVE_CONTEXT", names=("length 1025", "1024 tokens")):
        sft(base, tmp_path / "tuned", conversations=conversations, tokens=2000, batch_tokens=1025, length=1025)
    sizes = {"tokens": 1100, "batch_tokens": 1100, "length": 1100, "validation": 3, "tokenizer": tokenizer}
    pretrain(tmp_path / "new", corpus=sentences, **sizes)
    assert load_model(tmp_path / "new")[0].config.max_position_embeddings == 1100


def test_bits_per_byte_by_hand():
    texts = from_items("two", ["abcd", "é"])  # six bytes
    documents = [Document(ids=(0, 1, 2, 3), learn=(True,) * 4), Document(ids=(0, 4, 3), learn=(True,) * 3)]
    assert bits_per_byte(texts, documents, 2 * math.log(2)) == pytest.approx(5 * 2 / 6)


def test_a_finished_run_is_not_done_again(base, sentences, tokenizer):
    config = config_for(tokenizer, depth=1, width=16, heads=2, kv_heads=1, feed_forward=24)
    before = describe_model(base)
    outcome = pretrain(base, corpus=sentences, tokenizer=tokenizer, config=config, resume=True, **SMALL)
    assert outcome.finished and describe_model(base) == before
    assert outcome.sample == json.loads((base / "result.json").read_text())["sample"] != ""
    with refuses("E_OUT_HOLDS_TRAINING"):
        pretrain(base, corpus=sentences, tokenizer=tokenizer, config=config, **SMALL)
    changed = replace(sentences, get=lambda index: "Other words." if index == 3 else sentences.get(index))
    with refuses("E_TRAINING_DIFFERS", names=("about", "texts")):
        pretrain(base, corpus=changed, tokenizer=tokenizer, config=config, resume=True, **SMALL)


@pytest.mark.whole
def test_going_on_from_a_model_with_a_tokenizer_of_its_own(base, sentences, tmp_path):
    outcome = pretrain(tmp_path / "more", corpus=sentences, model=base, **SMALL)
    assert outcome.finished
    with refuses("E_MODEL_WITH_TOKENIZER"):
        pretrain(tmp_path / "x", corpus=sentences, model=base, tokenizer=load_model(base)[1], **SMALL)


@pytest.mark.whole
def test_a_new_tokenizer_is_learned_from_the_corpus(tmp_path):
    corpus = from_items("pears", [f"There are {i} pears." for i in range(40)])
    pretrain(tmp_path / "new", corpus=corpus, vocab_size=280, plan={"steps": 1}, **SMALL)
    _, tokens = load_model(tmp_path / "new")
    assert tokens.tokenize(" pears") == ["Ġpears"]


def test_plans_in_tokens():
    assert step_count(32768, 2048, 160) == 18 and step_count(4096, 2048, 512) == 2  # 12 and 4 rows of whole length
    plan = make_plan(1000, 128, {"save_every": 3}, length=60, lr=1.0, warmup=100)
    assert (plan.rows, plan.steps, plan.warmup, plan.save_every) == (2, 9, 1, 3)
    with refuses("E_LENGTHS_ORDER", names=("length 60", "batch_tokens 50", "tokens 1000")):
        make_plan(1000, 50, None, length=60, lr=1.0, warmup=0)
    with refuses("E_PLAN_FIELD", names="'stpes'"):
        make_plan(1000, 128, {"stpes": 3}, length=60, lr=1.0, warmup=0)


@pytest.mark.whole
def test_conversations_longer_than_a_row(base, tmp_path):
    turns = [{"role": "user", "content": "ab " * 80}, {"role": "assistant", "content": "7"}]
    with refuses("E_CONVERSATIONS_LEFT_OUT", names=("64 tokens", "--length")):
        sft(base, tmp_path / "x", conversations=procedural_corpus("long", lambda i: turns), **SMALL)
    assert not (tmp_path / "x").exists()


def test_an_adapter_is_trained_and_written_within_its_base(base, conversations, tmp_path):
    lora = Lora(rank=2, alpha=4)
    done = sft(base, tmp_path / "tuned", conversations=conversations, lora=lora, **SMALL)
    (before, _), (after, _) = load_model(base), load_model(tmp_path / "tuned")
    assert done.finished and before.state_dict().keys() == after.state_dict().keys()
    changed = {
        name for name, weight in before.state_dict().items() if not torch.equal(weight, after.state_dict()[name])
    }
    assert any("q_proj" in name for name in changed) and not any("norm" in name or "embed" in name for name in changed)


@pytest.mark.whole
def test_an_interrupted_adapter_ends_as_an_uninterrupted_one(base, conversations, tmp_path):
    options = {**SMALL, "conversations": conversations, "lora": Lora(rank=2, alpha=4), "plan": {"log_every": 1}}
    sft(base, tmp_path / "whole", **options)

    def stop(row):
        if row["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    assert not sft(base, tmp_path / "parts", **options, report=stop).finished
    with refuses("E_TRAINING_DIFFERS", names=("lora", "4")):
        sft(base, tmp_path / "parts", **{**options, "lora": Lora(rank=4)}, resume=True)
    assert sft(base, tmp_path / "parts", **options, resume=True).finished
    one, other = (load_model(tmp_path / name)[0].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
