"""Logits times a factor, by the scale of the last norm."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from bases.sharpen import sharpen
from cotrain.models.load import load_model
from tests.helpers import TINY
from tests.sentences import refuses


def test_logits_are_multiplied_and_greedy_answers_stay():
    model, _ = load_model(TINY)
    ids = torch.arange(40)[None]
    before = model(ids).logits
    sharpen(model, 2.0)
    after = model(ids).logits
    torch.testing.assert_close(after, 2 * before, rtol=1e-4, atol=1e-4)
    assert torch.equal(after.argmax(-1), before.argmax(-1))


def test_what_cannot_be_sharpened_is_refused():
    model, _ = load_model(TINY)
    with refuses("E_CONFIG", names="factor is 0"):
        sharpen(model, 0.0)
    other = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1, n_positions=4))
    with refuses("E_MODEL", names="GPT2LMHeadModel"):
        sharpen(other, 2.0)
    model.config.final_logit_softcapping = 15.0
    with refuses("E_MODEL", names="LlamaForCausalLM"):
        sharpen(model, 2.0)
