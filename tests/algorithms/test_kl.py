import math

import pytest
import torch

from cotrain.algorithms.functional.policy_losses import kl_estimate

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def test_by_hand():
    logprobs = torch.tensor([[math.log(0.5)]], dtype=torch.float64)
    reference = torch.tensor([[math.log(0.25)]], dtype=torch.float64)
    assert kl_estimate(logprobs, reference, "k1").item() == pytest.approx(math.log(2))
    assert kl_estimate(logprobs, reference, "k2").item() == pytest.approx(0.5 * math.log(2) ** 2)
    assert kl_estimate(logprobs, reference, "k3").item() == pytest.approx(0.5 - 1 + math.log(2))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_expectation_is_the_kl(estimator):
    estimates = kl_estimate(POLICY.log(), REFERENCE.log(), estimator)
    truth = (POLICY * (POLICY / REFERENCE).log()).sum()
    assert (POLICY * estimates).sum().item() == pytest.approx(truth.item())


def test_k3_is_never_negative_and_zero_where_equal():
    values = kl_estimate(POLICY.log(), REFERENCE.log(), "k3")
    assert (values >= 0).all()
    assert values[1].item() == 0.0


def expected_gradient(estimator):
    """Gradient of E_π[estimate] with the samples held fixed, over the logits of π."""
    logits = POLICY.log().requires_grad_()
    estimates = kl_estimate(logits.log_softmax(-1), REFERENCE.log(), estimator)
    return torch.autograd.grad((POLICY * estimates).sum(), logits)[0]


def true_gradient(reverse):
    logits = POLICY.log().requires_grad_()
    logp, logq = logits.log_softmax(-1), REFERENCE.log()
    kl = (REFERENCE * (logq - logp)).sum() if reverse else (logp.exp() * (logp - logq)).sum()
    return torch.autograd.grad(kl, logits)[0]


def test_what_the_docstring_says_of_gradients():
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros_like(POLICY), rtol=0, atol=1e-12)
    torch.testing.assert_close(expected_gradient("k2"), true_gradient(reverse=False), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(expected_gradient("k3"), true_gradient(reverse=True), rtol=1e-10, atol=1e-12)


def test_unknown_estimator():
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(POLICY, REFERENCE, "k4")
