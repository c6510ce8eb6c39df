"""Samples without any advantage are not computed where nothing else is learned from them, and change nothing: the
gradient is that of the whole computation, up to rounding."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from learn_makers import random_samples, tiny_model
from test_shared_policy import SEEN, shown_gradient

from cotrain.algorithms.contract import LossTerm
from cotrain.algorithms.grpo import ALGORITHMS, GRPO
from cotrain.algorithms.policy_gradient import PPO_CLIP, KLPenalty, PolicyGradient, PPOClip
from cotrain.algorithms.policy_loss import GSPOClip, ScoreFunction, Shaped
from cotrain.algorithms.ppo import PPO, ValueRegression
from cotrain.core.signals import OUTCOME
from cotrain.learner.batching import computed_samples, plan_update
from cotrain.learner.learner import TorchLearner
from cotrain.recipes.prime.implicit_prm import Prime

FLAT = (0, 2, 3, 7, 8)


@dataclass(frozen=True, kw_only=True)
class Whole(PolicyGradient):
    """Computes everything."""

    def needs(self):
        return replace(super().needs(), zero_advantage_has_gradient=True)


def mixed_samples(count=9, flat=FLAT):
    """Of which some have no advantage, and one has one at a single token."""
    samples = list(random_samples(count, seed=3, weight=True))
    for i in flat:
        samples[i] = replace(samples[i], advantages=torch.zeros_like(samples[i].advantages))
    if 1 not in flat:
        samples[1] = replace(samples[1], advantages=torch.zeros_like(samples[1].advantages))
        samples[1].advantages[-1] = -0.5
    return tuple(replace(s, off_policy=i % 2 == 0) for i, s in enumerate(samples))


def gradient_of(algorithm, samples, **settings):
    learner = TorchLearner(tiny_model(), lr=1e-2, clip_norm=None, optimizer=shown_gradient, micro_tokens=12, **settings)
    metrics = learner.update([LossTerm(name="solver", algorithm=algorithm, samples=samples)]).metrics
    return SEEN.pop(), metrics


LOSSES = [
    PPOClip(0.2, 0.28),
    GSPOClip(1e-3, 2e-3),
    ScoreFunction(),
    ScoreFunction(cap=2.0),
    Shaped(0.1, PPO_CLIP),
]


@pytest.mark.whole
@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
@pytest.mark.parametrize("bounds", [None, (0.5, 2.0)])
def test_the_gradient_is_that_of_the_whole_computation(loss, normalise, bounds):
    samples = tuple(replace(sample, bounds=bounds) for sample in mixed_samples())
    settings = {"loss": loss, "normalise": normalise, "constant": 5.0 if normalise == "constant" else None}
    found, metrics = gradient_of(PolicyGradient(reward_weights={OUTCOME: 1.0}, **settings), samples)
    expected, whole = gradient_of(Whole(reward_weights={OUTCOME: 1.0}, **settings), samples)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert metrics["solver/loss"] == pytest.approx(whole["solver/loss"], abs=1e-12)
    for name in ("tokens", "samples"):
        assert metrics[f"solver/{name}"] == whole[f"solver/{name}"]
    assert metrics["solver/flat_tokens"] == sum(len(samples[i].token_ids) for i in FLAT)
    assert "solver/flat_tokens" not in whole


def test_means_are_of_the_tokens_that_are_computed():
    samples = mixed_samples()
    rest = tuple(sample for i, sample in enumerate(samples) if i not in FLAT)
    _, metrics = gradient_of(GRPO(reward_weights={OUTCOME: 1.0}), samples)
    _, alone = gradient_of(GRPO(reward_weights={OUTCOME: 1.0}), rest)
    for name in ("surprisal", "ratio", "clip_fraction", "sampler_trainer_diff"):
        assert metrics[f"solver/{name}"] == pytest.approx(alone[f"solver/{name}"])


@pytest.mark.parametrize("shared", [False, True])
def test_a_plan_has_no_pass_for_them(shared):
    samples = mixed_samples()
    term = LossTerm(name="solver", algorithm=GRPO(reward_weights={OUTCOME: 1.0}), samples=samples)
    (planned,) = plan_update([term], micro_tokens=12, shared=shared)
    assert sorted(i for batch in planned.batches for i in batch) == [i for i in range(9) if i not in FLAT]
    assert planned.totals.sequences == 9
    assert planned.totals.tokens == sum(len(s.token_ids) for s in samples)
    nan = replace(samples[0], advantages=samples[0].advantages * float("nan"))
    assert 0 in computed_samples(replace(term, samples=(nan, *samples[1:])))  # for the update to refuse


def test_a_step_without_any_advantage_is_the_same_step():
    """Moments decay, and weights move by them."""
    steps = {}
    for kind in (PolicyGradient, Whole):
        learner = TorchLearner(tiny_model(), lr=1e-2)
        for flat in (FLAT, range(9)):
            samples = mixed_samples(flat=flat)
            report = learner.update(
                [LossTerm(name="a", algorithm=kind(reward_weights={OUTCOME: 1.0}), samples=samples)]
            )
            assert report.stepped
        steps[kind] = learner.tensors()
    for name, tensor in steps[PolicyGradient].items():
        torch.testing.assert_close(tensor, steps[Whole][name], rtol=1e-7, atol=1e-9)


def test_what_other_terms_read_is_computed():
    """KL, entropy, values, and a loss of which nobody knows what it does."""
    samples = mixed_samples()
    rewards = {OUTCOME: 1.0}
    computes = {
        True: [
            *(make(reward_weights=rewards) for make in ALGORITHMS.values()),
            *(GRPO(reward_weights=rewards, loss=loss) for loss in LOSSES),
            GRPO(reward_weights=rewards, kl=KLPenalty("reference", 0.0)),
            PPO(reward_weights=rewards),
            Prime(),
        ],
        False: [
            GRPO(reward_weights=rewards, kl=KLPenalty("reference", 0.01)),
            GRPO(reward_weights=rewards, entropy=0.01),
            GRPO(reward_weights=rewards, loss=partial(PPOClip.__call__, PPO_CLIP)),
            GRPO(reward_weights=rewards, loss=Shaped(0.1, partial(PPOClip.__call__, PPO_CLIP))),
            PPO(reward_weights=rewards, kl=KLPenalty("reference", 0.01)),
            Prime(kl=KLPenalty("reference", 0.01)),
            ValueRegression(reward_weights=rewards),
        ],
    }
    for fewer, algorithms in computes.items():
        for algorithm in algorithms:
            chosen = computed_samples(LossTerm(name="a", algorithm=algorithm, samples=samples))
            assert (len(chosen) == 9 - len(FLAT)) == fewer, algorithm
