"""What a policy is asked where its model is: every verb of the contract, from another process as from this one."""

import asyncio
import inspect

import numpy
import pytest
import torch

from cotrain.algorithms.contract import LossTerm, PolicyClient
from cotrain.algorithms.grpo import GRPO
from cotrain.config.followers import AverageHandle, SnapshotHandle
from cotrain.config.policies import critic, ema, frozen, trainable
from cotrain.core.signals import OUTCOME
from cotrain.distributed import local
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.multi_process import LEARNERS, MultiProcessBackend
from cotrain.distributed.policy_handles import LearnerHandle
from cotrain.distributed.remote_policies import HostedPolicy, LearnerHost, PolicyName, pack, unpack
from cotrain.learner.fsdp import ShardedLearner
from cotrain.learner.learner import TorchLearner
from tests.distributed.processes import Here
from tests.helpers import TINY
from tests.learner.learn_makers import random_samples
from tests.sentences import refuses

POLICIES = {
    "generator": trainable(TINY, lr=1e-3),
    "teacher": ema(TINY, of="generator", rate=0.5),
    "reference": frozen(TINY),
    "critic": critic(TINY),
}
# the methods of a policy, wherever its model is
VERBS = [name for name, one in vars(PolicyClient).items() if inspect.isfunction(one) and name[0] != "_"]
PAIRS = [((1, 2, 3), (4, 5)), ((6,), (7, 8, 9))]


@pytest.fixture(scope="module")
def both():
    """The policies of one process, those of two, and what was asked of these."""
    torch.set_num_threads(1)
    launcher = Here()
    backends = LocalBackend(), MultiProcessBackend(launcher)
    yield *(backend.open(POLICIES, seed=0) for backend in backends), launcher
    asyncio.run(backends[1].close())


def plain(value):
    """With what can be compared in the place of tensors and iterators."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if not str(name).endswith("seconds")}
    if hasattr(value, "metrics"):
        return value.stepped, plain(value.metrics)
    return [plain(one) for one in value] if hasattr(value, "__iter__") and not isinstance(value, str) else value


def test_arithmetic_is_that_of_the_device_where_a_model_is_held(monkeypatch):
    """The command's process is not asked: it may have no GPU."""
    asked = []
    monkeypatch.setattr(local, "has_bfloat16", lambda device: asked.append(device) or True)
    monkeypatch.setattr(torch.nn.Module, "to", lambda module, *_: module)
    policies = {"generator": trainable(TINY), "reference": frozen(TINY, autocast=False)}
    launcher = Silent()
    with pytest.raises(Begun):
        MultiProcessBackend(launcher, "cuda").open(policies, seed=0)
    assert not asked and launcher.settings[0] == policies
    handles = LearnerHost(*launcher.settings).handles
    assert [handle.spec.autocast for handle in handles.values()] == [True, False]
    assert asked == [torch.device("cuda")] and handles["generator"].learner.scorer.autocast


class Begun(Exception):
    pass


class Silent(Here):
    """Keeps what the first host is to be made of, and begins none."""

    def begin(self, what, host, settings):
        self.settings = settings
        raise Begun


@pytest.mark.whole
def test_every_verb_is_answered_from_another_process_as_from_this_one(both):
    local, hosted, launcher = both
    term = LossTerm(name="o", algorithm=GRPO(reward_weights={OUTCOME: 1.0}), samples=random_samples(3))
    given = [(), ((1, (5, 5)),)]

    def asked(handles):
        generator, teacher = handles["generator"], handles["teacher"]
        yield (
            "logprobs",
            plain([one.logprobs(PAIRS, temperature=0.7, context_tokens=given) for one in handles.values()]),
        )
        state, tensors = generator.state(), generator.tensors()
        yield "state", plain(state)
        yield "tensors", plain(tensors)
        yield "reset_optimizer", plain(generator.reset_optimizer())
        yield "reset_weights", plain(generator.reset_weights())
        yield "update", plain(generator.update([term]))
        yield "follow", plain(teacher.follow(generator, 4))
        yield "weights", plain([(name, weight) for one in handles.values() for name, weight in one.weights()])
        assert (generator.version, teacher.version, handles["reference"].version) == (1, 1, 0)
        yield "load", plain(generator.load(state, tensors))
        assert generator.version == 0
        yield "weights", plain(dict(generator.weights()))
        yield "set_scoring_limit", plain(handles["reference"].set_scoring_limit(7))
        yield "scoring_limit", plain([one.scoring_limit() for one in handles.values()])

    answers = [list(asked(handles)) for handles in (local, hosted)]
    assert {verb for verb, _ in answers[0]} == set(VERBS)
    assert {verb for what, verb in launcher.asked if what == LEARNERS} >= set(VERBS)
    for (verb, one), (_, other) in zip(*answers, strict=True):
        assert one == other, verb


@pytest.mark.parametrize("kind", [HostedPolicy, LearnerHost])
def test_each_method_of_a_policy_is_written_out_where_it_is_handed_on(kind):
    missing = [verb for verb in VERBS if not inspect.isfunction(vars(kind).get(verb))]
    assert not missing


def test_a_learner_answers_all_that_it_does_itself():
    done = [verb for verb in VERBS if verb in vars(TorchLearner)]
    assert [verb for verb in done if not inspect.isfunction(vars(LearnerHandle).get(verb))] == []


@pytest.mark.parametrize(
    "kind", [TorchLearner, ShardedLearner, LearnerHandle, AverageHandle, SnapshotHandle, HostedPolicy]
)
def test_who_does_it_takes_what_the_contract_says(kind):
    for verb in VERBS:
        own = vars(kind).get(verb)
        if inspect.isfunction(own):
            asked = inspect.signature(getattr(PolicyClient, verb)).parameters
            assert list(inspect.signature(own).parameters) == list(asked), verb


@pytest.mark.whole
def test_a_refusal_names_the_policy_also_from_another_process(both):
    for handles in both[:2]:
        with refuses("E_POLICY_CANNOT", names=("'reference'", "'frozen'")):
            handles["reference"].update([])
        with refuses("E_POLICY_CANNOT", names=("'generator'", "'trainable'")):
            handles["generator"].follow(handles["reference"], 1)


def test_tensors_cross_as_arrays_and_come_back_with_memory_of_their_own(both):
    ids = (1, 2, 3)
    sent = pack(({"a": torch.ones(2)}, [(ids, ids)], iter([("w", torch.zeros(1))]), both[0]["reference"], "text", None))
    assert isinstance(sent[0]["a"], numpy.ndarray) and sent[1][0][0] is ids
    assert sent[2] == [("w", numpy.zeros(1))] and sent[3] == PolicyName("reference") and sent[4:] == ("text", None)
    sent[0]["a"].setflags(write=False)  # as what comes out of Ray's store
    weights, pairs, named, start, *_ = unpack(sent)
    weights["a"].add_(1.0)
    assert sent[0]["a"].tolist() == [1.0, 1.0] and weights["a"].tolist() == [2.0, 2.0]
    assert pairs == [(ids, ids)] and named[0][1].tolist() == [0.0] and start == PolicyName("reference")
