import pytest
import torch

from cotrain.algorithms.functional.advantages import reward_to_go
from cotrain.algorithms.functional.values import gae, value_loss


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_gae_by_hand():
    rewards, values = f64(0, 0, 1), f64(0.5, 0.25, 0.75)
    # γ 0.5: δ = 0 + 0.125 − 0.5 = −0.375; 0 + 0.375 − 0.25 = 0.125; 1 − 0.75 = 0.25; γλ = 0.25
    advantages, returns = gae(rewards, values, gamma=0.5, lam=0.5)
    assert advantages.tolist() == [-0.375 + 0.25 * (0.125 + 0.25 * 0.25), 0.125 + 0.25 * 0.25, 0.25]
    torch.testing.assert_close(returns, advantages + values)


def test_lambda_one_is_reward_to_go_and_lambda_zero_the_one_step_error():
    torch.manual_seed(0)
    rewards, values = torch.randn(6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    torch.testing.assert_close(gae(rewards, values, gamma=0.9)[1], reward_to_go(rewards, 0.9))
    one_step = rewards + 0.9 * torch.cat([values[1:], f64(0)]) - values
    torch.testing.assert_close(gae(rewards, values, gamma=0.9, lam=0.0)[0], one_step)


def test_value_loss_by_hand():
    values, returns, old = f64(1.0, 3.0), f64(0.0, 4.0), f64(0.5, 1.0)
    assert value_loss(values, returns).tolist() == [0.5, 0.5]
    # clipped to old ± 0.2: 0.7 and 1.2; the larger error of the two counts
    assert value_loss(values, returns, old=old, clip=0.2).tolist() == pytest.approx([0.5, 0.5 * 2.8**2])


def test_clipped_value_has_no_gradient_past_the_bound():
    values = f64(1.0, 3.0).requires_grad_()
    value_loss(values, f64(0.0, 4.0), old=f64(0.5, 1.0), clip=0.2).sum().backward()
    assert values.grad.tolist() == [1.0, 0.0]


def test_refusals():
    with pytest.raises(ValueError, match="old values"):
        value_loss(f64(1), f64(1), clip=0.2)
    with pytest.raises(ValueError, match="λ 2"):
        gae(f64(1), f64(1), lam=2)
    with pytest.raises(ValueError, match="one shape"):
        gae(f64(1, 2), f64(1))
