from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_makers import random_samples

from cotrain.learner.batching import collate, forward_input_of, input_length, plan_padded, plan_shared
from cotrain.models.shared_prefix import RECTANGLE
from tests.sentences import refuses

IDS = st.lists(st.integers(1, 20), min_size=1, max_size=6).map(tuple)
SEQUENCES = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=8)


def test_plan_by_hand():
    assert plan_padded([3, 9, 4, 4, 1], 9) == [(1,), (2, 3), (0, 4)]
    assert plan_padded([5, 50], 10) == [(1,), (0,)]  # a row over the budget goes alone
    assert plan_padded([], 10) == []
    with refuses("E_MICRO_TOKENS"):
        plan_padded([1], 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_every_row_exactly_once_within_the_budget(widths, budget):
    batches = plan_padded(widths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(widths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(widths[i] for i in batch) <= budget
    assert batches == plan_padded(widths, budget)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([(1,), (2, 3), (4, 5, 6, 7)]), IDS), max_size=20), st.integers(1, 60))
def test_shared_prompts_count_once_in_the_budget(sequences, budget):
    batches = plan_shared(sequences, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(sequences)))
    for batch in batches:
        prompts = [sequences[i][0] for i in batch]
        assert len([p for n, p in enumerate(prompts) if n == 0 or prompts[n - 1] != p]) == len(set(prompts))
        tokens = len(forward_input_of([sequences[i] for i in batch], [1.0] * len(batch), shared=True).input_ids[0])
        assert tokens <= sum(map(len, set(prompts))) + sum(len(sequences[i][1]) - 1 for i in batch)
        rectangle = len(batch) * max(input_length(*sequences[i]) for i in batch)
        assert len(batch) == 1 or (tokens <= budget and rectangle <= RECTANGLE * budget)


def test_a_shared_plan_by_hand():
    """Prompt a with the answers 9 9 and 9 9 9, of which the last token is never an input; b with 9 and 9 8 9."""
    a, b = (1, 2, 3), (4,)
    sequences = [(b, (9,)), (a, (9, 9)), (b, (9, 8, 9)), (a, (9, 9, 9))]
    assert plan_shared(sequences, 100) == [(1, 3, 0, 2)]  # 3 + 1 tokens of a and 1 more, then 1 of b and 2 more
    assert plan_shared(sequences, 6) == [(1, 3, 0), (2,)]
    assert plan_shared(sequences, 5) == [(1, 3), (0, 2)]
    assert plan_shared(sequences, 4) == [(1,), (3,), (0, 2)]
    rows = forward_input_of([sequences[i] for i in (1, 3, 0, 2)], [1.0, 1.0, 1.0, 0.5], shared=True)
    assert rows.input_ids.tolist() == [[1, 2, 3, 9, 9, 4, 9, 8]]
    assert rows.branches.positions.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2]]
    assert rows.column.tolist() == [2, 3, 4, 5, 5, 6, 7]  # the place behind b twice, as it has two temperatures
    assert rows.temperatures.tolist() == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    assert rows.source.tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 6]
    assert rows.targets.tolist() == [9, 9, 9, 9, 9, 9, 9, 8, 9]


@pytest.mark.whole
@settings(max_examples=100, deadline=None)
@given(SEQUENCES)
def test_rows_point_from_each_sampled_token_to_the_one_before_it(sequences):
    rows = forward_input_of(sequences, [1.0] * len(sequences))
    whole = [prompt + tokens for prompt, tokens in sequences]
    expected = [(b, len(p) + t) for b, (p, tokens) in enumerate(sequences) for t in range(len(tokens))]
    assert rows.targets.tolist() == [whole[b][position] for b, position in expected]
    assert rows.input_ids[rows.row, rows.column].tolist() == [whole[b][position - 1] for b, position in expected]
    assert rows.mask.sum(1).tolist() == [len(tokens) for _, tokens in sequences]
    for b, ids in enumerate(whole):
        assert rows.input_ids[b, : len(ids) - 1].tolist() == list(ids[:-1])
        assert not rows.input_ids[b, len(ids) - 1 :].any()
        assert rows.mask[b].tolist() == sorted(rows.mask[b].tolist(), reverse=True)  # padding is on the right
    assert rows.temperatures is None


def test_fields_stand_beside_their_tokens():
    samples = random_samples(reference=True, weight=True, temperature=True)
    rows, batch = collate(samples)
    for b, sample in enumerate(samples):
        t = len(sample.token_ids)
        assert batch.token_ids[b, :t].tolist() == list(sample.token_ids)
        for name in ("sampler_logprobs", "advantages", "reference"):
            assert torch.equal(getattr(batch, name)[b, :t], getattr(sample, name))
            assert not getattr(batch, name)[b, t:].any()
        assert rows.temperatures[rows.row == b].tolist() == pytest.approx([sample.temperature] * t)
    assert batch.weights.tolist() == pytest.approx([s.weight for s in samples])
    assert batch.targets is None


def test_refusals():
    samples = random_samples(2, reference=True)
    with refuses("E_SEQUENCE_EMPTY", names="0 prompt"):
        forward_input_of([((), (1,))], [1.0])
    with refuses("E_SEQUENCE_EMPTY", names="0 sampled"):
        forward_input_of([((1,), ())], [1.0])
    with refuses("E_TEMPERATURE_NOT_LEARNABLE", names="temperature 0"):
        forward_input_of([((1,), (1,))], [0.0])
    with refuses("E_SAMPLES_UNLIKE", names=("2 samples", "reference")):
        collate([samples[0], random_samples(1)[0]])
    with refuses("E_SAMPLE_SHAPE", names=("sample 0", "advantages")):
        collate([replace(samples[0], advantages=torch.zeros(99))])
