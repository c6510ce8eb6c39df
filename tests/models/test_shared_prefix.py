import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from cotrain.models.shared_prefix import branches_of, can_branch, rectangles_of, use_branches

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


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("groups", [[(3, [2, 4, 0])], [(1, [1]), (5, [3, 1]), (2, [0, 0])], [(4, [0])]])
def test_hidden_states_and_gradients_are_those_of_separate_rows(kind, groups):
    """``groups``: (prompt length, lengths of its answers)."""
    model = model_of(kind)
    generator = torch.Generator().manual_seed(1)

    def draw(length: int) -> list[int]:
        return torch.randint(0, 32, (length,), generator=generator).tolist()

    row, answers, separate, places = [], [], [], []
    for u, (prompt_length, tails) in enumerate(groups):
        prompt, start = draw(prompt_length), len(row)
        row += prompt
        for tail in tails:
            own = draw(tail)
            places.append([*range(start, start + prompt_length), *range(len(row), len(row) + tail)])
            separate.append(prompt + own)
            answers.append((u, tail))
            row += own
    branches = branches_of([length for length, _ in groups], answers)
    assert branches.positions[0].tolist() == [
        dict(zip(where, range(99), strict=False))[i]
        for i in range(len(row))
        for where in [next(p for p in places if i in p)]
    ]
    with use_branches(model):
        together = model.model(
            input_ids=torch.tensor([row]), position_ids=branches.positions, branches=branches, use_cache=False
        ).last_hidden_state[0]
    weights = torch.randn(16, dtype=torch.float64, generator=generator)
    sum((together[where] @ weights).sin().sum() for where in places).backward()
    mine = [p.grad.clone() for p in model.model.parameters()]
    model.zero_grad()
    for ids, where in zip(separate, places, strict=True):
        alone = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(together[where].detach(), alone.detach(), rtol=1e-10, atol=1e-10)
        (alone @ weights).sin().sum().backward()
    torch.testing.assert_close(  # norms compute in float32
        mine, [p.grad for p in model.model.parameters()], rtol=1e-4, atol=3e-5
    )


@pytest.mark.whole
@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 4), min_size=1, max_size=4)), min_size=1, max_size=4)
)
def test_every_place_has_one_result_and_no_answer_sees_another(groups):
    answers = [(u, tail) for u, (_, tails) in enumerate(groups) for tail in tails]
    where = rectangles_of(branches_of([length for length, _ in groups], answers).pieces)
    total = sum(length + sum(tails) for length, tails in groups)
    assert len(set(where.back.tolist())) == len(where.back) == total
    asked = torch.cat([where.prompts.flatten(), where.answers.flatten()])
    assert asked[where.back].tolist() == list(range(total))
    for b, (u, tail) in enumerate((u, tail) for u, tail in answers if tail):
        prompt = where.prompts[u, : groups[u][0]].tolist()
        for t in range(tail):
            seen = where.keys[b][where.seen[b, 0, t]].tolist()
            assert seen == prompt + where.answers[b, : t + 1].tolist()


def test_only_models_whose_attention_is_plain_can_branch():
    assert can_branch(model_of("llama")) and can_branch(model_of("qwen3"))
    assert not can_branch(GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1, n_positions=8)))
    assert not can_branch(torch.nn.Linear(1, 1))
