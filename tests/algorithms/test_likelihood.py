import math

import pytest
import torch

from cotrain.algorithms.functional.likelihood import binary_cross_entropy, cross_entropy, outcome_cross_entropy


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_cross_entropy_and_binary_cross_entropy_by_hand():
    assert cross_entropy(f64(-1.5, -0.5)).tolist() == [1.5, 0.5]
    x = math.log(3)  # σ = 3/4
    assert binary_cross_entropy(f64(x, x, x), f64(1, 0, 0.5)).tolist() == pytest.approx(
        [math.log(4 / 3), math.log(4), 0.5 * math.log(4 / 3) + 0.5 * math.log(4)]
    )


def test_outcome_cross_entropy_by_hand():
    logprobs = torch.tensor([[2.0, 1.0, 50.0], [0.0, 0.0, 0.0]], dtype=torch.float64).requires_grad_()
    reference = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    losses = outcome_cross_entropy(logprobs, reference, mask, f64(1, 0), beta=0.5)
    # Σ log-ratio: 2 and −3; times β: 1 and −1.5
    assert losses.tolist() == pytest.approx([math.log(1 + math.exp(-1)), math.log(1 + math.exp(-1.5))])
    losses[0].backward()
    slope = -0.5 / (1 + math.exp(1))  # β (σ(1) − 1)
    assert logprobs.grad[0].tolist() == pytest.approx([slope, slope, 0.0])


def test_implicit_reward_starts_at_chance_when_policy_is_the_reference():
    same = torch.randn(2, 3, dtype=torch.float64)
    losses = outcome_cross_entropy(same, same, torch.ones_like(same), f64(1, 0), beta=0.05)
    assert losses.tolist() == pytest.approx([math.log(2)] * 2)


def test_refusals():
    with pytest.raises(ValueError, match=r"outcomes \[B\]"):
        outcome_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(3), beta=1.0)
