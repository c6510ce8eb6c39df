"""Memory that runs out at the n-th pass, for every n: the update, or the scores, are those of enough memory."""

import pytest
import torch
from learn_makers import random_samples, tiny_model

from cotrain.algorithms.contract import LossTerm
from cotrain.algorithms.grpo import GRPO
from cotrain.algorithms.policy_gradient import KLPenalty, PPOClip
from cotrain.core.signals import OUTCOME
from cotrain.learner.batching import plan_update
from cotrain.learner.learner import TorchLearner
from cotrain.learner.logprobs import Scorer
from cotrain.learner.optim import adamw
from cotrain.models.memory import out_of_memory
from tests.sentences import refuses

ALGORITHM = GRPO(reward_weights={OUTCOME: 1.0}, kl=KLPenalty("reference", 0.05), entropy=0.01, loss=PPOClip(0.2, 0.28))
ERRORS = (
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
    ),
)


class Short:
    """Passes of the first layer that fail: the ``n``-th and ``times - 1`` after it, forward or backward."""

    def __init__(self, model, way, n, times=1, error=ERRORS[0]):
        self.way, self.n, self.times, self.error = way, n, times, error
        self.count = 0
        model.model.layers[0].register_forward_hook(self._forward)

    def _pass(self):
        self.count += 1
        if self.n < self.count <= self.n + self.times:
            raise self.error

    def _forward(self, layer, given, made):
        hidden = made if isinstance(made, torch.Tensor) else made[0]
        if self.way == "forward":
            self._pass()
        elif hidden.requires_grad:
            hidden.register_hook(lambda gradient: self._pass())


def terms(seed=0):
    made = [random_samples(7, seed=s, reference=True, weight=True, temperature=True) for s in (seed, seed + 1)]
    return [LossTerm(name=name, algorithm=ALGORITHM, samples=made[i], weight=1.0 + i) for i, name in enumerate("ab")]


def learner_of(model, micro_tokens=24, **settings):
    return TorchLearner(model, lr=1e-2, micro_tokens=micro_tokens, optimizer=adamw, **settings)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_these_errors_are_want_of_memory_and_no_others():
    assert all(map(out_of_memory, ERRORS))
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) and not out_of_memory(
        KeyError()
    )


@pytest.mark.whole
@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_update_whose_memory_runs_out_at_any_pass_equals_the_undivided_one(way, dtype):
    whole = tiny_model(dtype)
    learner_of(whole).update(terms())
    peace = tiny_model(dtype)
    learner = learner_of(peace)
    counted = Short(peace, way, n=10**9)
    learner.update(terms())
    assert counted.count > 3 and torch.equal(weights(peace), weights(whole))
    for n in range(counted.count):
        model = tiny_model(dtype)
        learner = learner_of(model)
        Short(model, way, n, error=ERRORS[n % 3])
        report = learner.update(terms())
        assert report.stepped and learner.version == 1
        assert (report.metrics["out_of_memory"], report.metrics["micro_tokens"]) == (1.0, 12.0)
        assert (weights(model) - weights(whole)).abs().max() < 1e-6, n
        assert "out_of_memory" not in learner.update(terms(5)).metrics  # the smaller size is kept, and told once


def test_memory_that_runs_out_again_is_divided_again():
    whole, model = tiny_model(), tiny_model()
    learner_of(whole).update(terms())
    learner = learner_of(model)
    Short(model, "backward", n=2, times=3)
    report = learner.update(terms())
    assert (report.metrics["out_of_memory"], report.metrics["micro_tokens"]) == (3.0, 3.0)
    assert (weights(model) - weights(whole)).abs().max() < 1e-8  # norms compute in float32


def test_a_learner_that_is_loaded_goes_on_in_the_smaller_batches_to_the_same_bits():
    """In float32, where the size shows in the bits."""
    model, other = tiny_model(torch.float32), tiny_model(torch.float32)
    learner, loaded = learner_of(model), learner_of(other)
    assert "micro_tokens" not in learner.state()
    early = learner.state(), learner.tensors()
    Short(model, "forward", n=1, times=2)
    learner.update(terms())
    assert learner.state()["micro_tokens"] == 6
    loaded.load(learner.state(), learner.tensors())
    for made in (learner, loaded):
        made.update(terms(3))
    assert torch.equal(weights(model), weights(other))
    loaded.load(*early)  # of a time when there was enough
    assert "micro_tokens" not in loaded.state()


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("n", [0, 1, 6, 21])
def test_memory_that_runs_out_for_the_moments_changes_nothing(n, offload, monkeypatch):
    """At the ``n``-th of them, of several groups; in float32, where the size of micro-batches shows in the bits."""
    model, whole = tiny_model(torch.float32), tiny_model(torch.float32)
    learner, real, before, seen = learner_of(model, offload=offload), torch.zeros_like, weights(model), []

    def zeros_like(tensor, **options):
        if isinstance(tensor, torch.nn.Parameter):
            seen.append(tensor)
            if len(seen) == n + 1:
                raise ERRORS[0]
        return real(tensor, **options)

    monkeypatch.setattr(torch, "zeros_like", zeros_like)
    plan = plan_update(terms(), micro_tokens=learner.scorer.micro_tokens, shared=learner.scorer.shared)
    with pytest.raises(type(ERRORS[0])):
        learner.apply_plan(plan)
    assert torch.equal(weights(model), before) and learner.version == 0 and not learner.state()["optimizer"]
    seen.clear()
    report = learner.update(terms())  # memory runs out once more, and the update is repeated in smaller micro-batches
    assert report.stepped and report.metrics["out_of_memory"] == 1.0
    undisturbed = learner_of(whole, micro_tokens=learner.scorer.micro_tokens)
    undisturbed.update(terms())
    mine, wanted = learner.tensors(), undisturbed.tensors()
    assert mine.keys() == wanted.keys() and all(torch.equal(mine[name], wanted[name]) for name in wanted)


def test_one_sequence_that_does_not_fit_is_said_and_nothing_has_changed():
    model = tiny_model()
    before = weights(model)
    learner = learner_of(model)
    Short(model, "backward", n=0, times=10**9)
    with refuses("E_MEMORY_FOR_SEQUENCE", names="cpu"):
        learner.update(terms())
    assert torch.equal(weights(model), before) and learner.version == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_another_error_goes_through():
    model = tiny_model()
    learner, scorer = learner_of(model), Scorer(model)
    Short(model, "forward", n=0, times=2, error=RuntimeError("another"))
    with pytest.raises(RuntimeError, match="another"):
        learner.update(terms())
    with pytest.raises(RuntimeError, match="another"):
        scorer.logprobs([((1, 2), (3,))])


def test_scores_are_the_same_where_memory_runs_out():
    pairs = [(s.prompt_ids, s.token_ids) for s in random_samples(9)]
    expected = Scorer(tiny_model(), micro_tokens=60).logprobs(pairs)
    for n in range(2):
        model = tiny_model()
        scorer = Scorer(model, micro_tokens=60)
        Short(model, "forward", n, times=n + 1)
        found = scorer.logprobs(pairs)
        assert scorer.oom_count == n + 1 and scorer.micro_tokens < 60
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
