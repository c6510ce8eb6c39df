import pytest
import torch

from cotrain.models.from_scratch import new_model, small_config
from tests.sentences import refuses


def tiny(**sizes):
    return small_config(
        **{"vocab_size": 50, "depth": 1, "width": 16, "heads": 2, "kv_heads": 1, "feed_forward": 24} | sizes
    )


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_weights_depend_on_the_seed_alone(kind):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = new_model(tiny(kind=kind), seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = new_model(tiny(kind=kind), seed=7), new_model(tiny(kind=kind), seed=8)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.model.embed_tokens.weight, other.model.embed_tokens.weight)
    assert {p.dtype for p in one.parameters()} == {torch.float32} and not one.training


def test_number_of_parameters_by_hand():
    model = new_model(tiny(), seed=0)
    embedding, attention = 50 * 16, 16 * 16 + 2 * 16 * 8 + 16 * 16  # q, k and v of one head of 8, o
    assert sum(p.numel() for p in model.parameters()) == embedding + attention + 3 * 16 * 24 + 3 * 16
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id) == (0, 1, 5)


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ({"width": 18, "heads": 4}, "E_MODEL_SIZES: width 18 | into 4"),
        ({"heads": 4, "width": 32, "kv_heads": 3}, "E_MODEL_SIZES: heads 4 | kv_heads 3"),
        ({"vocab_size": 5}, "E_MODEL_SIZES: vocab_size 5"),
    ],
)
def test_sizes_that_do_not_fit(sizes, code):
    with refuses(code):
        tiny(**sizes)


def test_unknown_kind_names_the_nearest():
    with refuses("E_UNKNOWN_KIND", names="'llama'"):
        tiny(kind="lama")
