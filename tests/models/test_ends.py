"""Ends of sequence that stand beside a model are heeded wherever it speaks, and kept when it is written."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import GenerationConfig

from cotrain.config.policies import frozen, trainable
from cotrain.distributed.local import LocalBackend
from cotrain.models.ends import written_ends
from cotrain.models.load import load_model, load_renderer, save_model
from cotrain.models.sizes import model_size
from cotrain.prompts.render import Renderer
from cotrain.serving.chat import Conversation


@pytest.fixture
def directory_with(model, tokenizer, tmp_path):
    """A model directory whose config.json and generation_config.json say these ends; None: no such line or file."""

    def write(in_config, in_generation=None):
        where = tmp_path / "model"
        save_model(model, tokenizer, where)
        (where / "generation_config.json").unlink(missing_ok=True)
        config = json.loads((where / "config.json").read_text())
        config.pop("eos_token_id", None)
        if in_config is not None:
            config["eos_token_id"] = in_config
        (where / "config.json").write_text(json.dumps(config))
        if in_generation is not None:
            (where / "generation_config.json").write_text(json.dumps(in_generation))
        return where

    return write


def stops_of(directory):
    return load_renderer(directory).stop_ids


def test_ends_of_config_json_alone_stop_every_speaker(directory_with, tokenizer, tmp_path):
    (own,) = Renderer(tokenizer).stop_ids
    others = [i for i in (20, 23) if i != own]
    where = directory_with(others)
    expected = tuple(sorted({own, *others}))
    network, _ = load_model(where)
    policies = LocalBackend().open({"a": frozen(str(where)), "b": trainable(str(where))}, seed=0)
    assert stops_of(where) == expected and Conversation(where, 0.0, "cpu").renderer.stop_ids == expected
    assert [handle.renderer.stop_ids for handle in policies.values()] == [expected, expected]
    assert model_size(where).parameters > 0
    save_model(network, tokenizer, tmp_path / "again")  # as a run or an export writes it
    again = GenerationConfig.from_pretrained(tmp_path / "again")
    assert again.eos_token_id == list(expected) and stops_of(tmp_path / "again") == expected


def test_generation_is_over_at_any_of_them(directory_with, tokenizer):
    where = directory_with([20, 23])
    conversation = Conversation(where, 0.0, "cpu")
    with torch.no_grad():
        for parameter in conversation.model.parameters():
            parameter.zero_()  # all tokens are as likely, and the first of the largest is taken
        body = conversation.model.get_output_embeddings()
        body.weight[23] = 1.0
        conversation.model.model.norm.weight.fill_(1.0)
        conversation.model.get_input_embeddings().weight.fill_(1.0)
    assert conversation.reply_lines("a", 0) == [""]


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        ([20, 23], None, {20, 23}),
        (20, None, {20}),
        (2, None, {2}),
        (None, None, set()),
        ([20, 23], {"eos_token_id": 21}, {21}),  # the file that is about generation has the word
        ([20, 23], {"temperature": 0.5}, {20, 23}),
        ([20, 23], {"_from_model_config": True, "eos_token_id": 2}, {20, 23}),
        (2, {"_from_model_config": True, "eos_token_id": 2}, set()),  # as transformers fills in for a Llama
    ],
)
def test_what_is_made_up_says_nothing(directory_with, tokenizer, in_config, in_generation, expected):
    where = directory_with(in_config, in_generation)
    assert set(stops_of(where)) == expected | set(Renderer(tokenizer).stop_ids)


def test_ends_of_the_part_that_reads_text(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {"eos_token_id": [7, 8]}}))
    found = written_ends(tmp_path)
    assert found is not None and found.eos_token_id == [7, 8]
