import pytest
import torch

from cotrain.models.attention import can_isolate, document_attention, isolate_documents
from cotrain.models.from_scratch import new_model, small_config


def tiny(kind="llama"):
    return new_model(small_config(60, depth=2, width=16, heads=4, kv_heads=2, feed_forward=24, kind=kind), seed=1)


LENGTHS = [3, 7, 2, 9, 1, 2]  # two rows of twelve


def inputs():
    ids = torch.randint(6, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(n) for n in LENGTHS]).view(2, 12)
    number = torch.repeat_interleave(torch.arange(6), torch.tensor(LENGTHS)).view(2, 12)
    mask = (number[:, None, :, None] == number[:, None, None, :]) & torch.ones(12, 12, dtype=torch.bool).tril()
    return ids, positions, mask


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_document_alone_is_what_a_mask_leaves_of_a_row(kind, autocast):
    model = tiny(kind)
    ids, positions, mask = inputs()
    found = []
    for fast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if fast:
                with isolate_documents(model):
                    logits = model(ids, position_ids=positions, document_lengths=LENGTHS, use_cache=False).logits
            else:
                logits = model(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
        model.zero_grad()
        logits.float().pow(2).sum().backward()
        found.append((logits.float().detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    (slow, slow_gradient), (fast_logits, gradient) = found
    tolerance = 1e-5 if not autocast else 2e-2
    assert torch.allclose(slow, fast_logits, atol=tolerance)
    assert (slow_gradient - gradient).norm() < tolerance * slow_gradient.norm()
    assert model.config._attn_implementation == "sdpa", "the model is left as it was"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_by_hand(dtype):
    query = torch.zeros(1, 2, 4, 8, dtype=dtype)  # equal scores: each token averages what it may see
    value = torch.tensor([1.0, 3.0, 10.0, 20.0], dtype=dtype).view(1, 1, 4, 1).expand(1, 1, 4, 8)
    out, _ = document_attention(None, query, torch.ones_like(value), value, None, document_lengths=[2, 2])
    assert out.shape == (1, 4, 2, 8)
    assert out[0, :, 0, 0].tolist() == out[0, :, 1, 7].tolist() == [1.0, 2.0, 10.0, 15.0]


def test_for_whom_it_is_exact():
    model = tiny()
    assert can_isolate(model)
    model.config.model_type = "gemma2"
    assert not can_isolate(model)
    windowed = tiny("qwen3")
    windowed.config.layer_types = ["full_attention", "sliding_attention"]
    assert not can_isolate(windowed) and not can_isolate(torch.nn.Linear(1, 1))
