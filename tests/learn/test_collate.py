from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_makers import random_samples

from cotrain.core.errors import ConfigError
from cotrain.learn.collate import collate, plan, rows_of

IDS = st.lists(st.integers(1, 20), min_size=1, max_size=6).map(tuple)
SEQUENCES = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=8)


def test_plan_by_hand():
    assert plan([3, 9, 4, 4, 1], 9) == [(1,), (2, 3), (0, 4)]
    assert plan([5, 50], 10) == [(1,), (0,)]  # a row over the budget goes alone
    assert plan([], 10) == []
    with pytest.raises(ConfigError, match="micro_tokens"):
        plan([1], 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_every_row_exactly_once_within_the_budget(widths, budget):
    batches = plan(widths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(widths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(widths[i] for i in batch) <= budget
    assert batches == plan(widths, budget)


@settings(max_examples=100, deadline=None)
@given(SEQUENCES)
def test_rows_point_from_each_sampled_token_to_the_one_before_it(sequences):
    rows = rows_of(sequences, [1.0] * len(sequences))
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
        for name in ("behaviour", "advantages", "reference"):
            assert torch.equal(getattr(batch, name)[b, :t], getattr(sample, name))
            assert not getattr(batch, name)[b, t:].any()
        assert rows.temperatures[rows.row == b].tolist() == pytest.approx([sample.temperature] * t)
    assert batch.weights.tolist() == pytest.approx([s.weight for s in samples])
    assert batch.targets is None


def test_refusals():
    samples = random_samples(2, reference=True)
    with pytest.raises(ConfigError, match="0 prompt"):
        rows_of([((), (1,))], [1.0])
    with pytest.raises(ConfigError, match="0 sampled"):
        rows_of([((1,), ())], [1.0])
    with pytest.raises(ConfigError, match="temperature 0"):
        rows_of([((1,), (1,))], [0.0])
    with pytest.raises(ConfigError, match="1 of 2 samples have reference"):
        collate([samples[0], random_samples(1)[0]])
    with pytest.raises(ConfigError, match="sample 0: advantages has shape"):
        collate([replace(samples[0], advantages=torch.zeros(99))])
