"""Two objectives on one policy: what one optimiser step sums up, and what is logged of their gradients."""

import math

import pytest
import torch
from learn_makers import VOCABULARY, plain_logprobs, random_samples, tiny_model

from cotrain.algorithms.contract import LossTerm, Sample
from cotrain.algorithms.grpo import GRPO
from cotrain.algorithms.policy_gradient import PPOClip
from cotrain.core.signals import OUTCOME
from cotrain.learner.learner import TorchLearner

ALGORITHM = GRPO(reward_weights={OUTCOME: 1.0}, loss=PPOClip(0.2, 0.28))
SEEN: list[torch.Tensor] = []  # the gradients of all updates, newest last


class shown_gradient:
    """An optimiser whose step adds the gradient to ``SEEN`` and leaves the weights as they are."""

    def __init__(self, model, lr, weight_decay):
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self, multiplier):
        SEEN.append(torch.cat([p.grad.flatten() for p in self.parameters]))


def updated(model, terms, **settings):
    """The gradient of one update and its metrics."""
    learner = TorchLearner(model, lr=1e-2, clip_norm=None, optimizer=shown_gradient, **settings)
    metrics = learner.update(
        [LossTerm(name=name, algorithm=ALGORITHM, samples=samples) for name, samples in terms]
    ).metrics
    return SEEN.pop(), metrics


def by_hand(model, *batches):
    """Σ over batches of ∇(−Σ_t min(r A, clip(r) A) / tokens of this batch), one sequence at a time."""
    loss = 0.0
    for samples in batches:
        tokens = sum(len(s.token_ids) for s in samples)
        for s in samples:
            ratio = (plain_logprobs(model, s) - s.sampler_logprobs).exp()
            loss = loss - torch.minimum(ratio * s.advantages, ratio.clamp(0.8, 1.28) * s.advantages).sum() / tokens
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.whole
@pytest.mark.parametrize("micro_tokens", [8, 10_000])
def test_an_update_is_the_sum_of_terms_each_normalised_by_its_own_tokens(micro_tokens):
    solving, judging = random_samples(2, seed=1), random_samples(9, seed=2)
    found, metrics = updated(tiny_model(), [("solver", solving), ("verifier", judging)], micro_tokens=micro_tokens)
    torch.testing.assert_close(found, by_hand(tiny_model(), solving, judging), rtol=0, atol=1e-6)
    assert not torch.allclose(found, 2 * by_hand(tiny_model(), solving + judging), atol=1e-3)  # as one batch
    apart = [by_hand(tiny_model(), samples) for samples in (solving, judging)]
    norms = [part.norm().item() for part in apart]
    assert [metrics[f"{name}/grad_norm"] for name in ("solver", "verifier")] == pytest.approx(norms, rel=1e-5)
    assert metrics["verifier/grad_share"] == pytest.approx(norms[1] / sum(norms), rel=1e-5)
    cosine = torch.nn.functional.cosine_similarity(*apart, dim=0).item()
    assert metrics["cosine/solver/verifier"] == pytest.approx(cosine, rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(found.norm().item(), rel=1e-6)


def test_norms_shares_and_cosine_of_a_case_that_is_known():
    # Only the head learns and it is zero, so p = 1/V, and a token y with advantage A after hidden state h has the
    # gradient −A (e_y − p) hᵀ: its norm is |A| |h| √(1 − 1/V), and (e_x − p)·(e_y − p) = −1/V for x ≠ y.
    model = tiny_model(tie=False).requires_grad_(False)
    model.lm_head.weight.requires_grad_(True).data.zero_()
    prompt = (1, 2, 3)
    hidden = model.model(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1].norm().item()
    unit = hidden * math.sqrt(1 - 1 / VOCABULARY)

    def one(token, advantage):
        sampler_logprobs = torch.tensor([-math.log(VOCABULARY)])
        return (
            Sample(
                key="0",
                prompt_ids=prompt,
                token_ids=(token,),
                sampler_logprobs=sampler_logprobs,
                advantages=torch.tensor([advantage]),
            ),
        )

    _, m = updated(model, [("solver", one(5, 1.0)), ("verifier", one(7, -3.0)), ("meta", one(5, 2.0))])
    assert [m[f"{n}/grad_norm"] for n in ("solver", "verifier", "meta")] == pytest.approx(
        [unit, 3 * unit, 2 * unit], rel=1e-5
    )
    assert [m[f"{n}/grad_share"] for n in ("solver", "verifier", "meta")] == pytest.approx(
        [1 / 6, 3 / 6, 2 / 6], rel=1e-5
    )
    cosine = 1 / (VOCABULARY - 1)  # (−1/V) / (1 − 1/V), and the advantages have opposite signs
    assert m["cosine/solver/verifier"] == pytest.approx(cosine, rel=1e-5)
    assert m["cosine/verifier/meta"] == pytest.approx(cosine, rel=1e-5)
    assert m["cosine/solver/meta"] == pytest.approx(1.0, rel=1e-6)
    total = unit * math.sqrt(9 + 9 + 2 * 9 * cosine)  # solver and meta are one vector of length 3
    assert m["grad_norm"] == pytest.approx(total, rel=1e-5)


def test_opposed_objectives_cancel():
    samples = random_samples(3, seed=4)
    twice = tuple(
        Sample(
            key=s.key,
            prompt_ids=s.prompt_ids,
            token_ids=s.token_ids,
            sampler_logprobs=plain_logprobs(tiny_model(), s).detach().float(),
            advantages=sign * s.advantages,
        )
        for sign in (1.0, -1.0)
        for s in samples
    )
    found, m = updated(tiny_model(), [("solver", twice[:3]), ("verifier", twice[3:])])
    assert m["cosine/solver/verifier"] == pytest.approx(-1.0, abs=1e-6)
    assert m["grad_norm"] == pytest.approx(0.0, abs=1e-6 * m["solver/grad_norm"])
    assert found.abs().max() <= 1e-6 * m["solver/grad_norm"]


def test_one_objective_alone_is_compared_with_nothing():
    _, m = updated(tiny_model(), [("solver", random_samples(2)), ("verifier", ())])
    assert not [key for key in m if "cosine" in key or "share" in key or key == "solver/grad_norm"]
