"""Memory that runs out at the n-th forward pass of an engine, for every n: the answers are those of enough memory."""

from dataclasses import replace

import pytest
import torch

from cotrain.core.types import Sampling
from cotrain.inference import scoring
from cotrain.inference.local import LocalEngine
from cotrain.models.heads import ValueModel
from tests.helpers import CharRenderer, answers, mixed_requests, request, tiny_model
from tests.sentences import refuses


def short(model, n, times=1):
    """Let the n-th pass of a layer fail, and ``times - 1`` after it; returns the list of passes."""
    passes = []

    def fail(*_):
        passes.append(len(passes))
        if n <= passes[-1] < n + times:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    model.model.layers[1].register_forward_pre_hook(fail)
    return passes


def same(found, expected):
    assert [(c.token_ids, c.finish) for c in found] == [(c.token_ids, c.finish) for c in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("static", [False, True])
def test_answers_are_the_same_where_memory_runs_out(static):
    requests = mixed_requests(["a"], 12)
    model = tiny_model()
    engine = LocalEngine({"a": model}, static=static)
    passes = short(model, n=10**9)
    expected = answers(engine, requests)
    for n in range(0, len(passes), 7):
        model = tiny_model()
        engine = LocalEngine({"a": model}, static=static)
        short(model, n)
        same(answers(engine, requests), expected)
        counts = engine.counts()
        assert counts["a/out_of_memory"] == 1 and counts["a/requests"] == 12


def test_rows_begin_again_half_as_many_at_a_time_and_stop_strings_are_found_anew():
    decode = CharRenderer().decode
    sampling = Sampling(max_tokens=30, stop=("a", "e", "B"))
    requests = [request(prompt_ids=(3, 4, 5 + i), sampling=sampling, task=i) for i in range(8)]
    requests = [replace(r, decode=decode) for r in requests]
    expected = answers(LocalEngine({"a": tiny_model()}), requests)
    assert any(c.finish == "stop" for c in expected)
    model = tiny_model()
    engine = LocalEngine({"a": model})
    short(model, n=3, times=2)
    same(answers(engine, requests), expected)
    assert engine.counts()["a/out_of_memory"] == 2 and engine._schedulers["a"].at_once == 2


def test_one_answer_that_does_not_fit_is_said():
    model = tiny_model()
    engine = LocalEngine({"a": model})
    short(model, n=0, times=10**9)
    with refuses("E_MEMORY_FOR_ANSWER", names=("'a'", "cpu", "3 tokens")):
        answers(engine, [request(task=i) for i in range(3)])


def test_another_error_goes_through():
    model = tiny_model()
    engine = LocalEngine({"a": model})

    def fail(*_):
        raise RuntimeError("another")

    model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="another"):
        answers(engine, [request()])


def test_scores_are_the_same_where_memory_runs_out(monkeypatch):
    prompts = [(5,), (7, 8, 9), (3, 4), (10, 11, 12, 13, 14), (2, 3, 4)]
    asked = [request(policy="rm", prompt_ids=p, task=i, stop_ids=(0,)) for i, p in enumerate(prompts)]
    monkeypatch.setattr(scoring, "BATCH_TOKENS", 1000)

    def engine():
        torch.manual_seed(3)
        model = ValueModel(tiny_model().model)
        torch.nn.init.normal_(model.head.weight)
        return LocalEngine({}, scorers={"rm": model.eval()}), model

    whole, _ = engine()
    expected = [c.score for c in answers(whole, asked)]
    divided, model = engine()
    left = [2]

    def fail(*_):
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError

    model.body.layers[0].register_forward_pre_hook(fail)
    assert [c.score for c in answers(divided, asked)] == pytest.approx(expected, abs=1e-5)
    assert divided.counts()["rm/out_of_memory"] == 2
    left[0] = 10**9
    with refuses("E_MEMORY_FOR_PROMPT", names="5 tokens"):
        answers(divided, asked)
