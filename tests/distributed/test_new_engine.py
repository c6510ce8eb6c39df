"""Another engine than the shipped one, as docs/new-engine.md makes it, and what a backend must say to it."""

import re
from pathlib import Path

import pytest
import torch

from cotrain.config.policies import frozen, trainable
from cotrain.distributed.local import LocalBackend
from cotrain.inference.contract import as_serving_engine
from cotrain.inference.reference import ReferenceEngine
from tests.helpers import TINY, answers, request
from tests.sentences import refuses

PAGE = Path(__file__).parents[2] / "docs" / "new-engine.md"


@pytest.fixture(scope="module")
def page():
    """The names of the page's program, after its run."""
    torch.set_num_threads(1)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = {"__name__": "new_engine"}
    exec(compile("\n\n".join(blocks).replace('"shipped"', repr(TINY)), str(PAGE), "exec"), names)  # noqa: S102
    return names


def in_place(handles, device):
    return ReferenceEngine({name: handle.model for name, handle in handles.items()})


@torch.no_grad()
def told(engine):
    """What an engine says after the learner's weights were changed strongly and published, and how far its
    log-probabilities are from the learner's."""
    backend = LocalBackend(engine=engine)
    learner = backend.open({"generator": trainable(TINY)}, seed=0)["generator"]
    noise = torch.Generator().manual_seed(1)
    for _, weight in learner.weights():
        weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=noise)
    backend.publish("generator", 1)
    asked = [request(policy="generator", prompt_ids=(5, 6, 7 + task), task=task) for task in range(3)]
    said = answers(backend.engine, asked)
    assert {completion.version for completion in said} == {1}
    believed = learner.logprobs([(a.prompt_ids, c.token_ids) for a, c in zip(asked, said, strict=True)])
    return said, float((torch.cat(believed) - torch.tensor([p for c in said for p in c.logprobs])).abs().max())


@pytest.mark.whole
def test_the_pages_program_runs(page):
    assert page["trainer"].policies.update_counts == {"generator": 1, "verifier": 1}
    assert page["row"]["step"] == 0


@pytest.mark.whole
def test_copies_that_pull_weights_sample_as_the_learners_own_modules(page):
    (shared, _), (copied, gap) = told(in_place), told(page["CopyingEngine"])
    assert copied == shared and gap < 1e-4


def test_copies_that_are_not_told_are_seen(page):
    class Stale(page["CopyingEngine"]):
        def publish(self, policy, version):
            ReferenceEngine.publish(self, policy, version)

    assert told(Stale)[1] > 0.05


def test_an_engine_that_only_trains_is_not_served():
    backend = LocalBackend(engine=in_place)
    backend.open({"generator": trainable(TINY)}, seed=0)
    with refuses("E_ENGINE_WITHOUT_STEP"):
        as_serving_engine(backend.engine).step()


def test_a_handle_refuses_what_its_kind_cannot():
    handles = LocalBackend().open({"generator": trainable(TINY), "reference": frozen(TINY)}, seed=0)
    with refuses("E_POLICY_CANNOT"):
        handles["reference"].update([])
    with refuses("E_POLICY_CANNOT"):
        handles["reference"].follow(handles["generator"], 1)
    assert dict(handles["generator"].weights()).keys() == dict(handles["reference"].weights()).keys()
