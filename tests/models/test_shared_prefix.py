import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from cotrain.models.shared_prefix import can_branch, prefix_tree, rectangles_of, use_branches

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64,
}  # fmt: skip


def model_of(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    network = (
        LlamaForCausalLM(LlamaConfig(**SIZES)) if kind == "llama" else Qwen3ForCausalLM(Qwen3Config(**SIZES))
    ).double()
    return network.eval()


FEW = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)  # of so few ids that many begin alike


def test_a_tree_by_hand():
    """Two that part after two tokens, one that ends there, one twice, and one that has nothing in common with them."""
    tree = prefix_tree([(1, 2, 5), (1, 2), (7, 8), (1, 2, 3, 4), (7, 8)])
    assert tree.ids == [1, 2, 3, 4, 5, 7, 8]
    assert tree.places == [[0, 1, 4], [0, 1], [5, 6], [0, 1, 2, 3], [5, 6]]
    assert [(p.start, p.end, p.prefix) for p in tree.branches.pieces] == [
        (0, 2, ()),
        (2, 4, ((0, 2),)),
        (4, 5, ((0, 2),)),
        (5, 7, ()),
    ]
    assert tree.branches.positions.tolist() == [[0, 1, 2, 3, 2, 0, 1]]
    assert tree.branches.before.tolist()[1:5] == [0, 1, 2, 1]


@settings(max_examples=100, deadline=None)
@given(st.lists(FEW, min_size=1, max_size=8), st.randoms())
def test_each_beginning_stands_once_and_every_sequence_is_found(sequences, chance):
    tree = prefix_tree(sequences)
    assert len(tree.ids) == len({ids[:n] for ids in sequences for n in range(1, len(ids) + 1)})
    for ids, places in zip(sequences, tree.places, strict=True):
        assert tuple(tree.ids[place] for place in places) == ids
        assert tree.branches.positions[0, places].tolist() == list(range(len(ids)))
        assert tree.branches.before[places[1:]].tolist() == places[:-1]
    mixed = chance.sample(range(len(sequences)), len(sequences))
    again = prefix_tree([sequences[i] for i in mixed])
    assert (again.ids, again.branches.pieces) == (tree.ids, tree.branches.pieces)
    assert again.places == [tree.places[i] for i in mixed]


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_hidden_states_and_gradients_are_those_of_separate_rows(kind, seed):
    model = model_of(kind)
    chance = random.Random(seed)
    rows = [tuple(chance.choices(range(3), k=chance.randint(1, 12))) for _ in range(12)]
    tree = prefix_tree(rows)
    branches = tree.branches
    assert len(tree.ids) < sum(map(len, rows))
    with use_branches(model):
        together = model.model(
            input_ids=torch.tensor([tree.ids]), position_ids=branches.positions, branches=branches, use_cache=False
        ).last_hidden_state[0]
    weights = torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    sum((together[places] @ weights).sin().sum() for places in tree.places).backward()
    mine = [p.grad.clone() for p in model.model.parameters()]
    model.zero_grad()
    for ids, places in zip(rows, tree.places, strict=True):
        alone = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(together[places].detach(), alone.detach(), rtol=1e-10, atol=1e-10)
        (alone @ weights).sin().sum().backward()
    torch.testing.assert_close(  # norms compute in float32
        mine, [p.grad for p in model.model.parameters()], rtol=1e-4, atol=3e-5
    )


@pytest.mark.whole
@settings(max_examples=50, deadline=None)
@given(st.lists(FEW, min_size=1, max_size=8))
def test_every_place_has_one_result_and_sees_its_own_sequence_alone(sequences):
    tree = prefix_tree(sequences)
    where = rectangles_of(tree.branches.pieces)
    total = len(tree.ids)
    assert len(set(where.back.tolist())) == len(where.back) == total
    asked = torch.cat([where.roots.flatten(), where.branches.flatten()])
    assert asked[where.back].tolist() == list(range(total))
    path = {places[n]: places[: n + 1] for places in tree.places for n in range(len(places))}
    for b, piece in enumerate(piece for piece in tree.branches.pieces if piece.prefix):
        for t in range(piece.length):
            assert where.keys[b][where.seen[b, 0, t]].tolist() == path[piece.start + t]


def test_only_models_whose_attention_is_plain_can_branch():
    assert can_branch(model_of("llama")) and can_branch(model_of("qwen3"))
    assert not can_branch(GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1, n_positions=8)))
    assert not can_branch(torch.nn.Linear(1, 1))
