"""Scoring policies beside speaking ones: each prompt's last value, in the order of addresses, whatever the batch."""

import asyncio

import pytest
import torch

from cotrain.core.errors import UnknownName
from cotrain.core.types import Sampling
from cotrain.inference import scoring
from cotrain.inference.local import LocalEngine
from cotrain.models.heads import ValueModel
from tests.helpers import answers, request, tiny_model
from tests.sentences import refuses


def scorer():
    model = ValueModel(tiny_model().model)
    torch.manual_seed(3)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


PROMPTS = [(5,), (7, 8, 9), (3, 4), (7, 8, 9), (10, 11, 12, 13, 14)]


@torch.no_grad()
def test_scores_are_those_of_each_prompt_alone(monkeypatch):
    model = scorer()
    expected = [float(model(input_ids=torch.tensor([p]))[0, -1]) for p in PROMPTS]
    for tokens in (10_000, 6):
        monkeypatch.setattr(scoring, "BATCH_TOKENS", tokens)
        engine = LocalEngine({"speaker": tiny_model()}, scorers={"rm": model})
        asked = [request(policy="rm", prompt_ids=p, task=i, stop_ids=(0,)) for i, p in enumerate(PROMPTS)]
        found = answers(engine, [*asked, request(policy="speaker", task=9, sampling=Sampling(max_tokens=3))])
        assert [c.score for c in found[:-1]] == pytest.approx(expected, abs=1e-5)
        assert all(c.token_ids == asked[0].stop_ids[:1] and c.finish == "stop" for c in found[:-1])
        assert found[-1].score is None and len(found[-1].token_ids) > 0
        counts = engine.counts()
        assert counts["rm/prompt_tokens"] == 14 and counts["rm/prefill_tokens"] == 11  # one prompt stands twice


def test_versions_and_refusals():
    engine = LocalEngine({}, scorers={"rm": scorer()})
    engine.publish("rm", 4)
    assert answers(engine, [request(policy="rm", stop_ids=(0,))])[0].version == 4
    with refuses("E_PROMPT_TOO_LONG", names="128"):
        answers(engine, [request(policy="rm", prompt_ids=(3,) * 129)])
    with pytest.raises(UnknownName):
        asyncio.run(engine.sample(request(policy="other")))
