"""Linear layers by oneDNN give what ``nn.Linear`` gives, and its gradients."""

import copy
import shutil

import pytest
import torch
from torch import nn

from cotrain.core.shipped import shipped_folder
from cotrain.models.from_scratch import new_model, small_config
from cotrain.models.linear import LEAST_ROWS, NARROWEST, OneDNNLinear, is_mkl_slow
from cotrain.models.load import load_model

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")


def two_layers(bias=True, wide=96):
    """The same layer twice: by oneDNN, and torch's own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = nn.Linear(64, wide, bias=bias)
    by_onednn = copy.deepcopy(plain)
    by_onednn.__class__ = OneDNNLinear
    return by_onednn, plain


def some_rows(*shape):
    return torch.randn(*shape, 64, generator=torch.Generator().manual_seed(1))


def gradients(layer, rows):
    rows = rows.clone().requires_grad_()
    output = layer(rows)
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return [output.detach(), rows.grad, *(p.grad for p in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
def test_products_and_gradients_equal_those_of_torch(bias):
    rows = some_rows(2, LEAST_ROWS)
    by_onednn, plain = two_layers(bias)
    for found, expected in zip(gradients(by_onednn, rows), gradients(plain, rows), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_no_gradient_is_computed_of_what_is_frozen():
    """As for the base of an adapter: the input's gradient alone, and the input is not kept for it."""
    by_onednn, plain = two_layers()
    by_onednn.requires_grad_(False)
    plain.requires_grad_(False)
    rows = some_rows(LEAST_ROWS)
    for found, expected in zip(gradients(by_onednn, rows), gradients(plain, rows), strict=True):
        if expected is None:
            assert found is None
        else:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    kept = by_onednn(rows.requires_grad_()).grad_fn.saved_tensors
    assert [None if tensor is None else tuple(tensor.shape) for tensor in kept] == [None, (96, 64)]


def test_a_bias_alone_is_trained():
    """Where weights are frozen, and the gradient that comes back is one number for all."""
    found = []
    for layer in two_layers():
        layer.weight.requires_grad_(False)
        layer(some_rows(2, LEAST_ROWS)).sum().backward()
        found.append(layer.bias.grad)
    assert torch.equal(*found) and bool((found[0] == 2 * LEAST_ROWS).all())


def test_gradients_of_a_sum_equal_those_of_torch():
    """Its gradient is one number, seen from everywhere."""
    found = []
    for layer in two_layers():
        rows = some_rows(LEAST_ROWS).requires_grad_()
        layer(rows).sum().backward()
        found.append((rows.grad, layer.weight.grad, layer.bias.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_few_rows_and_other_types_are_left_to_torch():
    by_onednn, plain = two_layers()
    few = some_rows(LEAST_ROWS - 1)
    assert torch.equal(by_onednn(few), plain(few))
    many = some_rows(LEAST_ROWS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(by_onednn(many), plain(many))
    assert torch.equal(by_onednn.double()(many.double()), plain.double()(many.double()))
    assert by_onednn.to("meta")(many.to("meta")).shape == (LEAST_ROWS, 96)


def test_models_have_such_layers_where_mkl_is_slow(tmp_path):
    """Loaded or made anew, and copies of them; narrow layers stay as they are."""
    made = new_model(small_config(vocab_size=80, width=NARROWEST, heads=2, kv_heads=1, feed_forward=192), seed=0)
    made.save_pretrained(tmp_path)
    shutil.copy(shipped_folder("shipped") / "tokenizer.json", tmp_path)
    shutil.copy(shipped_folder("shipped") / "tokenizer_config.json", tmp_path)
    loaded, _ = load_model(tmp_path)
    expected = OneDNNLinear if is_mkl_slow() else nn.Linear
    for model in (loaded, made, copy.deepcopy(loaded)):
        attention = model.model.layers[0].self_attn
        assert type(attention.q_proj) is expected
        assert type(attention.k_proj) is type(model.lm_head) is nn.Linear


def test_a_model_says_the_same_with_such_layers():
    plain = new_model(small_config(vocab_size=80, width=64, heads=1, kv_heads=1, feed_forward=96), seed=0)
    model = copy.deepcopy(plain)
    for one, other in zip(plain.modules(), model.modules(), strict=True):
        if isinstance(one, nn.Linear):
            one.__class__ = nn.Linear
            other.__class__ = OneDNNLinear
    ids = torch.arange(2 * LEAST_ROWS).view(2, -1) % 80
    torch.testing.assert_close(model(input_ids=ids).logits, plain(input_ids=ids).logits, rtol=1e-4, atol=1e-4)
