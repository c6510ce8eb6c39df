"""What was given between sampled tokens: context of every forward pass, and of no number."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from learn_makers import VOCABULARY, tiny_model, trace

from cotrain.algorithms.contract import Batch, Sample, split_context, with_context
from cotrain.algorithms.grpo import ReinforcePP
from cotrain.algorithms.samples import sample_of
from cotrain.core.signals import OUTCOME
from cotrain.core.types import Reward, TurnRange
from cotrain.learner.batching import collate
from cotrain.learner.logprobs import Scorer


def parts(*spans):
    return tuple(TurnRange(start=start, end=end, finish="stop") for start, end in spans)


def test_by_hand():
    whole = replace(
        trace(length=9),
        token_ids=(1, 2, 3, 90, 91, 4, 5, 92, 6),
        logprobs=(-1.0, -2.0, -3.0, 0.0, 0.0, -4.0, -5.0, 0.0, -6.0),
        turns=parts((0, 3), (5, 7), (8, 9)),
        rewards=(
            Reward(name="a", value=1.0),
            Reward(name="b", value=2.0, tokens=(5, 7)),
            Reward(name="c", value=3.0, tokens=(2, 6)),
        ),
    )
    alone, given = split_context(whole)
    assert alone.token_ids == (1, 2, 3, 4, 5, 6) and alone.logprobs == (-1.0, -2.0, -3.0, -4.0, -5.0, -6.0)
    assert given == ((3, (90, 91)), (5, (92,)))
    assert [signal.tokens for signal in alone.rewards] == [None, (3, 5), (2, 4)]
    assert with_context(alone.token_ids, given) == (whole.token_ids, [0, 1, 2, 5, 6, 8])
    assert split_context(trace()) == (trace(), ())


def test_turns_side_by_side_have_nothing_between_them():
    alone, given = split_context(replace(trace(length=4), turns=parts((0, 2), (2, 4))))
    assert given == () and alone.token_ids == trace(length=4).token_ids


def samples_with_given(count, seed=0):
    rng, made = random.Random(seed), []
    for i in range(count):
        tokens = tuple(rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 9)))
        places = sorted(rng.sample(range(1, len(tokens)), min(len(tokens) - 1, i % 3)))
        given = tuple((k, tuple(rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 5)))) for k in places)
        numbers = torch.zeros(len(tokens))
        prompt = (1, 2, 3) if i % 2 else (4, 5)
        made.append(
            Sample(
                key=str(i),
                prompt_ids=prompt,
                token_ids=tokens,
                sampler_logprobs=numbers,
                advantages=numbers,
                context_tokens=given,
            )
        )
    return sorted(made, key=lambda sample: sample.prompt_ids)


@pytest.mark.parametrize("shared", [False, True])
def test_log_probabilities_and_gradients_equal_a_forward_pass_over_everything(shared):
    model, samples = tiny_model(), samples_with_given(12)
    rows, batch = collate(samples, shared=shared)
    assert len(rows.targets) == batch.mask.sum() == sum(len(s.token_ids) for s in samples)
    scorer = Scorer(model)
    predictions, _ = scorer.predict(rows)
    expected = []
    for sample in samples:
        ids, places = with_context(sample.token_ids, sample.context_tokens)
        whole = torch.tensor([sample.prompt_ids + ids])
        table = model(input_ids=whole).logits[0].log_softmax(-1)[len(sample.prompt_ids) - 1 : -1]
        expected.append(table[places].gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0])
    for row, values in zip(predictions, expected, strict=True):
        torch.testing.assert_close(row[: len(values)], values, rtol=1e-9, atol=1e-9)
    gradients = []
    for loss in (predictions.sum(), torch.cat(expected).sum()):
        model.zero_grad()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)  # norms compute in float32
    pairs, given = [(s.prompt_ids, s.token_ids) for s in samples], [s.context_tokens for s in samples]
    for micro_tokens in (1, 40, 10_000):
        for found, values in zip(
            Scorer(model, micro_tokens=micro_tokens).logprobs(pairs, context_tokens=given), expected, strict=True
        ):
            torch.testing.assert_close(found.double(), values.detach(), rtol=1e-5, atol=1e-5)


def test_credit_and_its_totals_see_the_sampled_tokens_alone():
    """Two answers of 3 and 6 sampled tokens, one with a tool between: the advantages of a plain group of these
    lengths."""
    turns = replace(trace(length=8, signals=[("outcome", 1.0)]), turns=parts((0, 2), (7, 8)))
    plain = trace(length=6, call=1, signals=[("outcome", 0.0)])
    told = tuple(sample_of(t, context_tokens=g) for t, g in map(split_context, (turns, plain)))
    credit, _ = ReinforcePP(reward_weights={OUTCOME: 1.0}).credit(Batch(samples=told), {})
    bare = (sample_of(trace(length=3, signals=[("outcome", 1.0)])), sample_of(plain))
    expected, _ = ReinforcePP(reward_weights={OUTCOME: 1.0}).credit(Batch(samples=bare), {})
    assert [s.advantages.tolist() for s in credit.samples] == [s.advantages.tolist() for s in expected.samples]
    assert credit.samples[0].context_tokens == ((2, turns.token_ids[2:7]),) and credit.metrics == expected.metrics
