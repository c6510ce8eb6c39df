"""What an update consists of: totals of the whole, whoever computes which part."""

from dataclasses import replace

import pytest
import torch
from learn_makers import random_samples, tiny_model
from test_shared_policy import SEEN, shown_gradient

from cotrain.algorithms.contract import LossTerm
from cotrain.algorithms.grpo import GRPO
from cotrain.core.signals import OUTCOME
from cotrain.learner.batching import plan_update
from cotrain.learner.learner import TorchLearner


def learner():
    return TorchLearner(
        tiny_model(), lr=1e-2, clip_norm=None, optimizer=shown_gradient, micro_tokens=16, term_norms=True
    )


def terms():
    algorithm = GRPO(reward_weights={OUTCOME: 1.0})
    samples = {"solver": random_samples(6, seed=1), "verifier": random_samples(9, seed=2), "silent": ()}
    return [LossTerm(name=name, algorithm=algorithm, samples=found) for name, found in samples.items()]


@pytest.mark.parametrize("shared", [False, True])
def test_a_plan_holds_each_sample_once_and_the_totals_of_the_term(shared):
    plan = plan_update(terms(), micro_tokens=16, shared=shared)
    assert [planned.term.name for planned in plan] == ["solver", "verifier"]
    for planned in plan:
        samples = planned.term.samples
        assert sorted(i for batch in planned.batches for i in batch) == list(range(len(samples)))
        assert len(planned.batches) > 1
        assert planned.totals.sequences == len(samples)
        assert planned.totals.tokens == sum(len(s.token_ids) for s in samples)


def test_parts_of_a_plan_add_up_to_the_whole():
    """Two learners with every second micro-batch each: gradients, losses and inner products are sums."""
    whole = learner()
    plan = plan_update(terms(), micro_tokens=16, shared=whole.scorer.shared)
    expected = whole.apply_plan(plan).metrics
    gradient = SEEN.pop()
    reports, parts = [], []
    for rank in range(2):
        mine = [replace(planned, batches=planned.batches[rank::2]) for planned in plan]
        reports.append(learner().apply_plan(mine).metrics)
        parts.append(SEEN.pop())
    torch.testing.assert_close(sum(parts), gradient, rtol=1e-5, atol=1e-7)
    for name in ("solver/loss", "verifier/loss"):
        assert sum(report[name] for report in reports) == pytest.approx(expected[name], rel=1e-5)
    assert reports[0]["solver/tokens"] == reports[1]["solver/tokens"] == expected["solver/tokens"]


def test_a_learner_of_shards_gives_norms_and_cosines_by_one_method():
    """Weights cut in two by name: the inner products of both halves add up to those of the whole."""
    whole = learner()
    plan = plan_update(terms(), micro_tokens=16, shared=whole.scorer.shared)
    found = {}

    class Half(TorchLearner):
        def gradient_products(self, sums):
            names, kept = list(self._trained), self._trained
            for half in (0, 1):
                self._trained = {n: kept[n] for n in names[half::2]}
                found[half] = super().gradient_products([one[half::2] for one in sums])
            self._trained = kept
            return found[0] + found[1]

    expected = whole.apply_plan(plan).metrics
    halves = Half(tiny_model(), lr=1e-2, clip_norm=None, optimizer=shown_gradient, micro_tokens=16, term_norms=True)
    metrics = halves.apply_plan(plan).metrics
    for name in ("solver/grad_norm", "verifier/grad_norm", "verifier/grad_share", "cosine/solver/verifier"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-12)
    assert found[0].abs().sum() > 0 and found[1].abs().sum() > 0
    del SEEN[:]
