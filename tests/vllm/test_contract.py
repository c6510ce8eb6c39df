"""vLLM behind the engine contract: log-probabilities of the model, stops, order, refusals. Its draws are its own."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from cotrain.core.types import Sampling
from cotrain.inference.reference import complete_request
from cotrain.learner.logprobs import Scorer
from cotrain.models.load import load_model
from tests.helpers import request
from tests.sentences import refuses
from tests.vllm import inside


@pytest.fixture(scope="module")
def engine(model, begin):
    return begin(model, {"a": None, "b": None})


@pytest.fixture(scope="module")
def learner(model):
    torch.set_num_threads(1)
    return load_model(model)[0]


def mixed(count=12, tokens=24, **changes):
    return [
        request(
            policy="ab"[i % 2],
            prompt_ids=tuple(range(10, 20 + i // 2)),
            sampling=Sampling(max_tokens=tokens - i % 5, temperature=(0.0, 1.0, 0.7)[i % 3]),
            stop_ids=(5, 17),
            task=i,
            **changes,
        )
        for i in range(count)
    ]


def test_log_probabilities_are_those_of_the_model(engine, learner):
    requests = mixed()
    for asked, said in zip(requests, engine.answers(requests), strict=True):
        temperature = asked.sampling.temperature or 1.0
        expected = Scorer(learner).logprobs([(asked.prompt_ids, said.token_ids)], temperature=temperature)[0]
        assert said.logprobs == pytest.approx(expected.tolist(), abs=2e-4)
        assert said.policy == asked.policy and said.version == 0
        stopped = said.token_ids[-1] in asked.stop_ids
        assert said.finish == ("stop" if stopped else "length")
        assert not set(said.token_ids[:-1]) & set(asked.stop_ids)
        assert stopped or len(said.token_ids) == asked.sampling.max_tokens


def test_greedy_answers_are_those_of_the_reference(engine, learner):
    requests = [replace(asked, sampling=Sampling(max_tokens=12, temperature=0.0)) for asked in mixed(4)]
    for asked, said in zip(requests, engine.answers(requests), strict=True):
        assert said.token_ids == complete_request(learner, asked).token_ids


def test_top_p_is_the_references(engine, learner):
    """A first token is drawn among the likeliest alone, and told with what it has there."""
    asked = replace(mixed(1)[0], sampling=Sampling(max_tokens=1, top_p=0.5))
    with torch.no_grad():
        logp = learner(input_ids=torch.tensor([asked.prompt_ids])).logits[0, -1].log_softmax(-1)
    ranked = logp.exp().sort(descending=True)
    kept = int((ranked.values.cumsum(0) - ranked.values < 0.5).sum())
    mass = float(ranked.values[:kept].sum())
    for said in engine.answers([replace(asked, seed=seed) for seed in range(16)]):
        assert said.token_ids[0] in ranked.indices[:kept].tolist()
        assert said.logprobs[0] == pytest.approx(float(logp[said.token_ids[0]]) - math.log(mass), abs=2e-4)


def test_draws_have_the_models_frequencies(engine, learner):
    asked = replace(mixed(1)[0], sampling=Sampling(max_tokens=1))
    with torch.no_grad():
        p = learner(input_ids=torch.tensor([asked.prompt_ids])).logits[0, -1].softmax(-1)
    count = 400
    drawn = Counter(said.token_ids[0] for said in engine.answers([replace(asked, seed=7 + s) for s in range(count)]))
    for token in p.topk(3).indices.tolist():
        deviation = math.sqrt(count * float(p[token] * (1 - p[token]))) + 1
        assert abs(drawn[token] - count * float(p[token])) < 4 * deviation


def test_order_of_arrival_does_not_matter_and_the_same_work_gives_the_same_bits(engine):
    requests = mixed()
    first = engine.answers(requests)
    assert engine.answers(requests[::-1])[::-1] == first
    assert engine.answers(requests) == first


def test_requests_that_enter_later_repeat_too(engine, learner):
    chains = [mixed()[i::4] for i in range(4)]
    found = engine.call(inside.entered, chains)
    assert engine.call(inside.entered, chains[::-1])[::-1] == found
    for chain, said in zip(chains, found, strict=True):
        pairs = [(asked.prompt_ids, one.token_ids) for asked, one in zip(chain, said, strict=True)]
        for asked, one, pair in zip(chain, said, pairs, strict=True):
            believed = Scorer(learner).logprobs([pair], temperature=asked.sampling.temperature or 1.0)[0]
            assert one.logprobs == pytest.approx(believed.tolist(), abs=2e-4)


def test_a_stop_string_ends_an_answer_with_the_token_that_completes_it(engine):
    asked = replace(mixed(1)[0], sampling=Sampling(max_tokens=20, temperature=0.0), stop_ids=())
    whole = engine.answers([asked])[0]
    text = inside.as_letters(whole.token_ids)
    stop = text[4:6]
    cut = engine.call(inside.stopped_by_text, asked, stop)
    end = text.index(stop) + 2
    assert cut.token_ids == whole.token_ids[:end] and cut.finish == "stop"
    assert cut.logprobs == pytest.approx(whole.logprobs[:end], abs=2e-4)


def test_cancelled_rows_are_given_up_and_nothing_is_published_while_rows_run(engine):
    requests = mixed(6)
    requests = [
        replace(r, stop_ids=(), sampling=Sampling(max_tokens=3 if i == 0 else 60)) for i, r in enumerate(requests)
    ]
    found = engine.call(inside.begun_and_cancelled, requests, "a")
    assert len(found["first"].token_ids) == 3
    assert "published while 5 rows were running" in found["refused"]
    assert not found["left"] and not found["advanced"]
    assert engine.answers(mixed())  # it goes on


def test_what_it_refuses(engine):
    one = mixed(1)[0]
    with refuses("E_UNKNOWN_POLICY", names="'c'"):
        engine.answers([replace(one, policy="c")])
    for changed, kind, words in (
        ({"prompt_ids": ()}, "ConfigError", "the prompt is empty"),
        ({"sampling": Sampling(max_tokens=engine.made)}, "TooLong", "exceed the context"),
        ({"sampling": Sampling(max_tokens=4, temperature=0.001)}, "ConfigError", "samples at 0, or from 0.01 on"),
        ({"prompt_ids": (10**7,)}, "ConfigError", "outside of the vocabulary"),
    ):
        found, said = engine.call(inside.raised, replace(one, **changed))
        assert (found, words in said) == (kind, True), said


def test_work_is_counted(engine):
    before = engine.call(inside.counts)
    said = engine.answers(mixed())
    after = engine.call(inside.counts)
    for policy in "ab":
        own = [one for one in said if one.policy == policy]
        assert after[f"{policy}/requests"] - before[f"{policy}/requests"] == len(own)
        tokens = sum(len(one.token_ids) for one in own)
        assert after[f"{policy}/sampled_tokens"] - before[f"{policy}/sampled_tokens"] == tokens
        assert after[f"{policy}/seconds"] > before[f"{policy}/seconds"]
