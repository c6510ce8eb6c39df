"""Prompts that begin alike are computed together, and give what each gives alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from cotrain.inference import prefill as module
from cotrain.inference.prefill import TOKENS, prefill
from cotrain.models import shared_prefix
from cotrain.models.shared_prefix import RECTANGLE, prefix_tree, rectangles_of
from tests.helpers import CONTEXT, VOCABULARY, tiny_model


def families(seed: int) -> list[tuple[int, ...]]:
    """Beginnings of 5 to 20 tokens with several endings (one of them empty), and prompts of their own."""
    rng = random.Random(seed)
    draw = lambda n: tuple(rng.randrange(VOCABULARY) for _ in range(n))  # noqa: E731
    found = {draw(rng.randint(1, 12)) for _ in range(4)}
    for _ in range(3):
        beginning = draw(rng.randint(5, 20))
        found |= {beginning + draw(rng.randint(1, 8)) for _ in range(3)} | {beginning}
    return sorted(found, key=lambda ids: rng.random())


def gpt2() -> torch.nn.Module:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=16, n_layer=2, n_head=2)
    ).eval()


@pytest.mark.parametrize("make", [tiny_model, lambda: tiny_model("qwen3"), gpt2])
@torch.inference_mode()
def test_each_prompt_gets_what_it_gets_alone(make):
    model, prompts = make(), families(1)
    seen = {}
    for part in prefill(model, model.config, prompts):
        for u, prompt in enumerate(part.prompts):
            stored = [tensor[u, :, -len(prompt) :] for pair in part.layers for tensor in pair]
            seen[prompt] = part.logits[u], stored
    assert sorted(seen) == sorted(prompts)
    for prompt, (logits, stored) in seen.items():
        alone = model(input_ids=torch.tensor([prompt]), use_cache=True)
        torch.testing.assert_close(logits, alone.logits[0, -1], rtol=1e-4, atol=1e-4)
        expected = [t[0] for layer in alone.past_key_values.layers for t in (layer.keys, layer.values)]
        torch.testing.assert_close(stored, expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_beginnings_are_computed_once_also_within_each_other():
    model = tiny_model()
    beginning = tuple(range(12))
    reviews = [(*beginning, 20 + i, 21, 22) for i in range(8)]
    other = (*beginning[:3], 1, 1, 1, 1, 1, 1, 1)  # begins alike for three tokens
    parts = list(prefill(model, model.config, [*reviews, other]))
    assert sum(part.computed for part in parts) == 12 + 8 * 3 + 7
    backwards = list(prefill(model, model.config, [other, *reversed(reviews)]))
    for part, again in zip(parts, backwards, strict=True):
        assert part.prompts == again.prompts and torch.equal(part.logits, again.logits)


@torch.inference_mode()
def test_batches_keep_to_their_budget(monkeypatch):
    monkeypatch.setitem(TOKENS, "cpu", 30)
    model, prompts = tiny_model(), families(2)
    parts = list(prefill(model, model.config, prompts))
    assert len(parts) > 2 and sorted(p for part in parts for p in part.prompts) == sorted(prompts)
    for part in parts:
        beginnings = {prompt[:5] for prompt in part.prompts}
        assert part.computed <= 30 or len(beginnings) == 1  # a family is not cut


UNLIKE = [(1,) * 8000, *((i % 90 + 2, i // 90 + 2) * 50 for i in range(83))]
ALIKE = [(1,) * 500 + (i // 90 + 2, i % 90 + 2) * 250 for i in range(200)]


@pytest.mark.parametrize("prompts", [UNLIKE, ALIKE])
def test_off_the_cpu_a_batch_is_not_padded_without_end(prompts, monkeypatch):
    """There attention pads every prompt to the longest. On a CPU it does not, and all of these go together."""
    batches = {"cpu": [], "meta": []}
    monkeypatch.setattr(
        module, "_prefill_families", lambda model, config, found, device: batches[device.type].append(found)
    )
    for kind in batches:
        monkeypatch.setitem(TOKENS, kind, 16384)
        model = tiny_model().to(kind)
        list(prefill(model, model.config, prompts))
    assert len(batches["cpu"]) == 1
    together = [[prompt for _, family in found for prompt in family] for found in batches["meta"]]
    assert 1 < len(together) < 5 and sorted(p for batch in together for p in batch) == sorted(prompts)
    assert all(len(batch) * max(map(len, batch)) <= RECTANGLE * 16384 for batch in together)


def test_rectangles_under_a_mask_are_the_same_attention():
    """What a GPU computes, in fused kernels: output and gradients."""
    where = prefix_tree([(1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 7), (1, 2, 3, 8), (9, 9), (9, 9, 1)]).branches
    assert len(where.pieces) == 7
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, heads, where.positions.shape[1], 8, generator=generator) for heads in (4, 2, 2)]
    found = []
    for layout in (where, replace(where, rectangles=rectangles_of(where.pieces))):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, _ = shared_prefix.branch_attention(torch.nn.Identity(), *leaves, None, branches=layout)
        out.square().sum().backward()
        found.append([out, *(leaf.grad for leaf in leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
