"""New weights are those of a fresh engine, bit for bit; each cure of what is silently wrong is left out once."""

import copy

import pytest
import torch

from cotrain.core.types import Sampling
from cotrain.models.load import load_model, save_model
from tests.helpers import request

LONG = tuple(10 + i % 80 for i in range(400))  # several blocks of the prefix cache


def asked():
    return [
        request(prompt_ids=LONG[: 300 + 20 * i], sampling=Sampling(max_tokens=12, temperature=1.0), task=i)
        for i in range(6)
    ]


@torch.no_grad()
def shaken(model, seed=1):
    """The same model with other weights."""
    other, noise = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for weight in other.parameters():
        weight += 0.1 * weight.std(correction=0) * torch.randn(weight.shape, generator=noise)
    return other


def weights(model):
    return {name: weight.detach() for name, weight in model.named_parameters()}


@pytest.fixture(scope="module")
def fresh(model, begin, tmp_path_factory):
    """A model with other weights, and what a fresh engine on it says."""
    torch.set_num_threads(1)
    old, tokenizer = load_model(model)
    new, folder = shaken(old), tmp_path_factory.mktemp("shaken") / "model"
    save_model(new, tokenizer, folder)
    engine = begin(folder, {"a": None})
    said = engine.answers(asked())
    engine.close()
    return old, new, said


def spread(said, expected):
    """The largest distance of log-probabilities, inf where tokens differ."""
    if [one.token_ids for one in said] != [one.token_ids for one in expected]:
        return float("inf")
    pairs = zip((x for s in said for x in s.logprobs), (x for s in expected for x in s.logprobs), strict=True)
    return max(abs(x - y) for x, y in pairs)


def test_published_weights_are_those_of_a_fresh_engine_bit_for_bit(model, begin, fresh):
    old, new, expected = fresh
    engine = begin(model, {"a": None})
    before = engine.answers(asked())
    engine.load_weights("a", weights(new), 1)
    after = engine.answers(asked())
    assert [(s.token_ids, s.logprobs) for s in after] == [(s.token_ids, s.logprobs) for s in expected]
    assert {said.version for said in after} == {1} and spread(after, before) > 1e-2
    engine.load_weights("a", weights(old), 2)
    again = engine.answers(asked())
    assert [(s.token_ids, s.logprobs) for s in again] == [(s.token_ids, s.logprobs) for s in before]


@pytest.mark.parametrize("cure", ["_repack_output", "_clear_prefix_cache"])
def test_without_a_cure_old_weights_are_sampled_from(cure, model, begin, fresh):
    _, new, expected = fresh
    engine = begin(model, {"a": None}, without=(cure,))
    engine.answers(asked())
    engine.load_weights("a", weights(new), 1)
    assert spread(engine.answers(asked()), expected) > 1e-2
