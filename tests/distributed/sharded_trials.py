"""What learners in shards are tried on (``test_sharded.py``): each trial gives figures and weights, on any number of
ranks or, without a mesh, with the plain learner."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.distributed.device_mesh import init_device_mesh

from cotrain.algorithms.contract import LossTerm
from cotrain.algorithms.grpo import GRPO
from cotrain.algorithms.policy_gradient import KLPenalty, PPOClip
from cotrain.algorithms.policy_loss import ScoreFunction
from cotrain.algorithms.ppo import ValueRegression
from cotrain.algorithms.sft import SFT
from cotrain.core.signals import OUTCOME
from cotrain.distributed.ranks import RankHost
from cotrain.learner.fsdp import Sharded, ShardedLearner
from cotrain.learner.learner import TorchLearner
from cotrain.models.adapters import AdapterBase
from cotrain.models.from_scratch import new_model
from cotrain.models.heads import ValueModel
from cotrain.models.nanochat_gpt import NanoChatGPTConfig
from tests.helpers import TINY
from tests.learner.learn_makers import random_samples, tiny_model

ALGORITHM = GRPO(reward_weights={OUTCOME: 1.0}, kl=KLPenalty("reference", 0.05), entropy=0.01, loss=PPOClip(0.2, 0.28))
PLAIN = GRPO(reward_weights={OUTCOME: 1.0}, loss=ScoreFunction())  # where samples are far from what the model would say
SETTINGS = {"lr": 1e-2, "clip_norm": 0.5, "micro_tokens": 24, "weight_decay": 0.01}


def learner(mesh, model, **settings):
    settings = {**SETTINGS, **settings}
    return TorchLearner(model, **settings) if mesh is None else ShardedLearner(Sharded(model, mesh), **settings)


def terms(seed, count=7, two=False, algorithm=ALGORITHM):
    made = [LossTerm(name="gen", algorithm=algorithm, samples=samples(seed, count))]
    return [*made, LossTerm(name="gold", algorithm=SFT(), samples=samples(seed + 50, 5), weight=0.5)] if two else made


def samples(seed, count=7):
    return random_samples(count, seed=seed, reference=True, weight=True, temperature=True)


def told(learners, reports):
    """What every rank must agree in."""
    pairs = [(s.prompt_ids, s.token_ids) for s in samples(99, 9)]
    return {
        "tensors": [{name: t.clone() for name, t in one.tensors().items()} for one in learners],
        "weights": [{name: t.clone() for name, t in one.weights()} for one in learners],
        "metrics": [
            {k: v for k, v in r.metrics.items() if not k.endswith("seconds")} | {"stepped": r.stepped} for r in reports
        ],
        "logprobs": [p for one in learners for p in one.logprobs(pairs, temperature=0.7)],
    }


def full(mesh, *, dtype=torch.float64, tie=True, two=False, **settings):
    one = learner(mesh, tiny_model(dtype, tie=tie), **settings)
    return told([one], [one.update(terms(seed, two=two)) for seed in range(3)])


def fewer(mesh):
    """Fewer micro-batches than ranks, and a number that the ranks do not divide."""
    return full(mesh, micro_tokens=10_000) | {"odd": full(mesh, micro_tokens=40)["metrics"]}


def value(mesh):
    """A critic, whose head has one row: a rank without any of it. float32, as its head is."""
    one = learner(mesh, ValueModel(tiny_model(torch.float32).model), head="value", clip_norm=None)
    algorithm, reports = ValueRegression(reward_weights={OUTCOME: 1.0}, values=None), []
    for seed in range(3):
        aimed = tuple(replace(s, targets=s.advantages * 0 + len(s.token_ids) / 6) for s in samples(seed))
        reports.append(one.update([LossTerm(name="critic", algorithm=algorithm, samples=aimed)]))
    return told([one], reports)


def nanochat(mesh):
    """Parameters outside of layers that are single numbers, fewer than ranks; value embeddings inside of layers."""
    config = tiny_model().config
    sizes = {"vocab_size": config.vocab_size, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = new_model(NanoChatGPTConfig(**sizes, num_hidden_layers=3, max_position_embeddings=512), seed=0)
    with torch.no_grad():
        model.model.smear_lambda.fill_(0.5)
    one = learner(mesh, model.to(torch.float64))
    return told([one], [one.update(terms(seed)) for seed in range(3)])


def adapters(mesh, *, dtype=torch.float64):
    """Two on one base, by turns; and the base itself between them."""
    base = AdapterBase(TINY, dtype)
    for policy in ("a", "b"):
        base.add(policy, rank=4, alpha=8, targets="all-linear", seed=0)
    model = base.module.to(dtype)
    sharded = None if mesh is None else Sharded(model, mesh)
    base.reread_weights()
    learners = []
    for policy in ("a", "b"):
        settings = {**SETTINGS, "activate": lambda policy=policy: base.activate(policy)}
        learners.append(TorchLearner(model, **settings) if mesh is None else ShardedLearner(sharded, **settings))
    reports = [one.update(terms(seed, two=seed == 1, algorithm=PLAIN)) for seed in range(2) for one in learners]
    return told(learners, reports)


def refused(mesh):
    """A gradient that is not finite, seen on the one rank that computes it; then a good one."""
    one = learner(mesh, tiny_model())
    bad = samples(1)
    longest = max(bad, key=lambda s: len(s.prompt_ids) + len(s.token_ids))
    longest.advantages.fill_(float("nan"))
    return told([one], [one.update([LossTerm(name="gen", algorithm=ALGORITHM, samples=bad)]), one.update(terms(2))])


def loaded(mesh, *, saved):
    """Goes on from ``tensors`` and ``state`` of another number of ranks."""
    one = learner(mesh, tiny_model(seed=5))
    one.load(*saved)
    return told([one], [one.update(terms(7))])


def kept(mesh, *, saved):
    """The same, and what it would save then."""
    one = learner(mesh, tiny_model(seed=5))
    one.load(*saved)
    return told([one], [])


def shares(mesh, *, critic):
    """What each rank would write, and what all of it is. A critic's head has one row, and a weight with moments."""
    if critic:
        one = learner(mesh, ValueModel(tiny_model(torch.float32).model), head="value", clip_norm=None)
        aimed = tuple(replace(s, targets=s.advantages * 0 + 1.0) for s in samples(0))
        algorithm = ValueRegression(reward_weights={OUTCOME: 1.0}, values=None)
        one.update([LossTerm(name="critic", algorithm=algorithm, samples=aimed)])
    else:
        one = learner(mesh, tiny_model())
        one.update(terms(0))
    whole = {name: tensor.clone() for name, tensor in one.tensors().items()}
    return {"metrics": [], "logprobs": [], "whole": whole, "share": one.share()}


TRIALS = {
    function.__name__: function for function in (full, fewer, value, nanochat, adapters, refused, loaded, kept, shares)
}


TOLD = ("metrics", "logprobs", "share")  # by ranks behind the first


class Trial(RankHost):
    """A rank that tries one of the above."""

    def try_out(self, name, settings):
        found = TRIALS[name](init_device_mesh("cpu", (self._world,)), **settings)
        return found if self._rank == 0 else {key: found[key] for key in TOLD if key in found}
