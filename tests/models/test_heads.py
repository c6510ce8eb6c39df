import pytest
import torch

from cotrain.core.errors import ModelError
from cotrain.models.heads import value_model
from cotrain.models.load import load_model


def test_a_fresh_critic_says_zero_and_learns(directory):
    critic = value_model(directory)
    ids = torch.tensor([[1, 9, 8, 7], [1, 5, 6, 7]])
    values = critic(ids)
    assert values.shape == (2, 4) and values.dtype == torch.float32 and not values.any()
    (values - 1).pow(2).sum().backward()
    assert critic.head.weight.grad.abs().sum() > 0 and critic.head.bias.grad.item() == pytest.approx(-16.0)


def test_the_body_is_the_policys(directory):
    policy, _ = load_model(directory)
    critic = value_model(directory)
    ids = torch.tensor([[1, 9, 8, 7]])
    assert torch.equal(critic.body(ids).last_hidden_state, policy.model(ids).last_hidden_state)
    assert not any("lm_head" in name for name, _ in critic.named_parameters())


def test_values_do_not_see_the_future_and_depend_on_the_seed(directory):
    one, same, other = value_model(directory, 1, 0.1), value_model(directory, 1, 0.1), value_model(directory, 2, 0.1)
    short, long = torch.tensor([[1, 9, 8]]), torch.tensor([[1, 9, 8, 7]])
    assert torch.allclose(one(short), one(long)[:, :3], atol=1e-6)
    assert torch.equal(one(long), same(long)) and not torch.equal(one(long), other(long))


def test_missing_model(tmp_path):
    with pytest.raises(ModelError, match="no such directory"):
        value_model(tmp_path / "nothing")
