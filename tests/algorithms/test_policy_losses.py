import math

import pytest
import torch

from cotrain.algorithms.functional.policy_losses import (
    clipped_ratio_loss,
    reinforce_loss,
    sequence_log_ratio,
    shaped_loss,
    token_log_ratio,
    truncated_importance,
)


def f64(*values):
    return torch.tensor([values], dtype=torch.float64)


def test_reinforce_has_gradient_minus_advantage():
    logprobs, advantages = f64(-1.0, -2.0).requires_grad_(), f64(3.0, -4.0).requires_grad_()
    losses = reinforce_loss(logprobs, advantages)
    assert losses.tolist() == [[3.0, -8.0]]
    losses.sum().backward()
    assert logprobs.grad.tolist() == [[-3.0, 4.0]]
    assert advantages.grad is None


def test_clipped_ratio_by_hand():
    ratios = [1.0, 1.3, 1.3, 0.5, 0.5]
    advantages = f64(2.0, 2.0, -2.0, 2.0, -2.0)
    log_ratio = torch.tensor([[math.log(r) for r in ratios]], dtype=torch.float64).requires_grad_()
    losses, clipped = clipped_ratio_loss(log_ratio, advantages, low=0.2, high=0.28)
    # A > 0 is bounded above at 1.28, A < 0 below at 0.8
    assert losses[0].tolist() == pytest.approx([-2.0, -2.56, 2.6, -1.0, 1.6])
    assert clipped[0].tolist() == [0, 1, 0, 0, 1]
    losses.sum().backward()
    assert log_ratio.grad[0].tolist() == pytest.approx([-2.0, 0.0, 2.6, -1.0, 0.0])


def test_on_policy_gradient_equals_reinforce():
    torch.manual_seed(0)
    logprobs = torch.randn(2, 3, dtype=torch.float64).requires_grad_()
    advantages = torch.randn(2, 3, dtype=torch.float64)
    losses, _ = clipped_ratio_loss(token_log_ratio(logprobs, logprobs.detach()), advantages, low=0.2, high=0.2)
    (clipped_gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    (plain_gradient,) = torch.autograd.grad(reinforce_loss(logprobs, advantages).sum(), logprobs)
    torch.testing.assert_close(clipped_gradient, plain_gradient, rtol=1e-14, atol=0)


def test_sequence_ratio_is_the_geometric_mean_over_the_mask():
    logprobs = torch.tensor([[-1.0, -2.0, 7.0], [-1.0, -1.0, -1.0]], dtype=torch.float64).requires_grad_()
    old = torch.tensor([[-1.5, -2.1, 0.0], [-1.0, -1.3, -1.0]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    result = sequence_log_ratio(logprobs, old, mask)
    assert result[0].tolist() == pytest.approx([0.3, 0.3, 0.3])
    assert result[1].tolist() == pytest.approx([0.1, 0.1, 0.1])
    result[0, 0].backward()
    assert logprobs.grad.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]


def test_truncated_importance_by_hand_and_without_gradient():
    current = torch.tensor([[math.log(0.5), math.log(0.9)]], dtype=torch.float64).requires_grad_()
    sampler_logprobs = torch.tensor([[math.log(0.1), math.log(0.6)]], dtype=torch.float64)
    weights = truncated_importance(current, sampler_logprobs, cap=2.0)
    assert weights[0].tolist() == pytest.approx([2.0, 1.5])
    assert not weights.requires_grad


def test_gradients_against_finite_differences():
    torch.manual_seed(0)
    logprobs = torch.randn(2, 3, dtype=torch.float64).requires_grad_()
    old = logprobs.detach() + 0.05 * torch.randn(2, 3, dtype=torch.float64)
    advantages, mask = torch.randn(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)

    def token(x):
        return clipped_ratio_loss(token_log_ratio(x, old), advantages, low=0.2, high=0.2)[0]

    def sequence(x):
        return clipped_ratio_loss(sequence_log_ratio(x, old, mask), advantages, low=0.2, high=0.2)[0]

    assert torch.autograd.gradcheck(token, (logprobs,))
    assert torch.autograd.gradcheck(sequence, (logprobs,))


def test_refuses_bounds_and_shapes_that_make_no_sense():
    one = f64(0.0)
    with pytest.raises(ValueError, match="low"):
        clipped_ratio_loss(one, one, low=1.5, high=0.2)
    with pytest.raises(ValueError, match="cap"):
        truncated_importance(one, one, cap=0.0)
    with pytest.raises(ValueError, match="one shape"):
        reinforce_loss(one, f64(0.0, 0.0))


def test_shaped_by_hand():
    logprobs = f64(math.log(0.1), math.log(0.9)).requires_grad_()
    losses = shaped_loss(logprobs, f64(1.0, -2.0), gamma=0.1)
    assert losses.tolist() == [pytest.approx([-0.5, 2 * 0.9])]  # 0.1/0.2 and 0.9/1.0
    losses.sum().backward()
    assert logprobs.grad.tolist() == [pytest.approx([-0.25, 2 * 0.09])]  # γπ/(π + γ)²: 0.01/0.04 and 0.09/1
    with pytest.raises(ValueError, match="gamma"):
        shaped_loss(logprobs, f64(1.0, -2.0), gamma=0.0)
