"""What a step learns from is what was sampled: recorded log-probabilities are those of a forward pass with the weights
before the update, advantages of a group add up to 0, and no sample is empty."""

import itertools

import pytest
import torch

from cotrain.algorithms.contract import Sample
from cotrain.config.registry import find_recipe
from cotrain.learner.learner import TorchLearner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY

SIZE = {"model": TINY, "tasks": EASY, "steps": 3, "tasks_per_step": 3, "evaluation_tasks": 1}
OPTIONS = {"alphaproof": {}, "dpo": {}, "grpo": {"group_size": 4}, "spin": {"iteration": 1, "mixed": False}}
GIVEN = ("dpo",)  # nobody samples the replies


def forward_logprobs(model: torch.nn.Module, sample: Sample) -> torch.Tensor:
    """log π of each sampled token, with what was given between them as context."""
    given, ids, places = dict(sample.context_tokens), list(sample.prompt_ids), []
    for index, token in enumerate(sample.token_ids):
        ids += given.get(index, ())
        places.append(len(ids) - 1)  # these logits predict the token
        ids.append(token)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double() / sample.temperature
    chosen = torch.tensor(sample.token_ids)[:, None]
    return logits[places].log_softmax(-1).gather(1, chosen)[:, 0]


def check_sample(model: torch.nn.Module, sample: Sample) -> int:
    """1 for a sample of recorded log-probabilities, all of which are right, and 0 for one of a program's."""
    assert sample.token_ids and len(sample.sampler_logprobs) == len(sample.token_ids)
    if not sample.sampler_logprobs.any():
        return 0
    torch.testing.assert_close(sample.sampler_logprobs.double(), forward_logprobs(model, sample), atol=1e-4, rtol=0)
    return 1


@pytest.mark.whole
@pytest.mark.parametrize("name", OPTIONS)
def test_recorded_logprobs_are_those_of_a_forward_pass(name, monkeypatch):
    checked, update = [], TorchLearner.update

    def check(self, terms):
        self._activate()
        samples = [sample for term in terms for sample in term.samples]
        checked.append(sum(check_sample(self.model, sample) for sample in samples))
        by_group = itertools.groupby(sorted(samples, key=lambda sample: sample.group), key=lambda sample: sample.group)
        if name == "grpo":
            for _, members in by_group:
                worths = [float(sample.advantages[0]) for sample in members]
                assert abs(sum(worths)) < 1e-4 and any(worths)
        return update(self, terms)

    monkeypatch.setattr(TorchLearner, "update", check)
    trainer = CoTrainer(find_recipe(name)(**SIZE, **OPTIONS[name]))
    for _ in range(3):
        trainer.step()
    assert checked and (sum(checked) == 0) == (name in GIVEN)
