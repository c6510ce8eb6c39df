"""Defaults that decide what a run learns: where a paper has them, its numbers. Changing one is a change of results."""

import inspect
from dataclasses import MISSING, fields

import pytest

from cotrain.algorithms.class_balance import ClassBalance
from cotrain.algorithms.functional.advantages import group_mean_std, reward_to_go, whiten
from cotrain.algorithms.functional.values import gae
from cotrain.algorithms.policy_gradient import PPO_CLIP, KLPenalty, PPOClip
from cotrain.algorithms.ppo import PPO, ValueRegression
from cotrain.algorithms.running_mean import RunningMean
from cotrain.algorithms.sft import SFT
from cotrain.learner.learner import TorchLearner
from cotrain.learner.optim import adamw
from cotrain.models.lora import Lora
from cotrain.recipes.prime.implicit_prm import ImplicitPrm, Prime

PINNED = [
    (PPO, {"gamma": 1.0, "lam": 0.95, "whiten": True, "entropy": 0.0, "loss": PPO_CLIP}),
    (ValueRegression, {"gamma": 1.0, "lam": 1.0}),
    (Prime, {"process_weight": 5.0, "outcome_weight": 5.0, "keep": (0.2, 0.8), "max_return_norm": True}),
    (ImplicitPrm, {"beta": 0.05}),
    (PPOClip, {"low": 0.2, "high": 0.2}),
    (KLPenalty, {"weight": 0.001}),
    (ClassBalance, {"ema": 0.8, "power": 0.5}),
    (RunningMean, {"decay": 0.95}),
    (SFT, {"at_least": 1.0}),
    (TorchLearner, {"clip_norm": 1.0, "warmup": 0, "weight_decay": 0.0, "micro_tokens": 16384, "autocast": False}),
    (Lora, {"rank": 16, "alpha": 32}),
    (adamw, {"betas": (0.9, 0.95), "eps": 1e-8}),
    (group_mean_std, {"eps": 1e-6}),
    (whiten, {"eps": 1e-6}),
    (reward_to_go, {"gamma": 1.0}),
    (gae, {"gamma": 1.0, "lam": 1.0}),
]


@pytest.mark.parametrize(("of", "expected"), PINNED, ids=lambda value: getattr(value, "__name__", ""))
def test_defaults(of, expected):
    if hasattr(of, "__dataclass_fields__"):
        found = {f.name: f.default for f in fields(of) if f.default is not MISSING}
    else:
        found = {name: p.default for name, p in inspect.signature(of).parameters.items()}
    assert {name: found[name] for name in expected} == expected
