"""Reward models: the pairwise loss through its slopes equals the loss on pairs, and labels are read as they should
be."""

from dataclasses import replace

import pytest
import torch
from learn_makers import credit, sampled, tiny_model
from torch.nn import functional as F

from cotrain.algorithms.contract import BatchTotals, LossTerm
from cotrain.algorithms.reward_model import Pairwise, Pointwise
from cotrain.learner.batching import collate
from cotrain.learner.learner import TorchLearner
from cotrain.models.heads import ValueModel
from tests.sentences import refuses


def rated(score, label=None, group="g", call=0, prompt=(1, 2)):
    made = sampled(length=1, group=group, call=call, prompt=prompt, signals=[] if label is None else [("label", label)])
    return replace(made, score=score)


def test_slopes_of_one_pair_by_hand():
    # margin 2 − 0.5 = 1.5: ∂/∂s⁺ = −σ(−1.5), and the same with the other sign for s⁻
    found = credit(Pairwise(), [rated(2.0, 1.0), rated(0.5, 0.0, call=1), rated(9.0, call=2)])
    slope = torch.sigmoid(torch.tensor(-1.5)).item()
    assert [s.advantages.tolist() for s in found.samples] == [[pytest.approx(-slope)], [pytest.approx(slope)]]
    assert found.metrics["pair_loss"] == pytest.approx(-F.logsigmoid(torch.tensor(1.5)).item())
    assert (found.metrics["pair_accuracy"], found.metrics["pairs"]) == (1.0, 1.0)
    assert found.dropped == {"no label": 1}


def test_every_pair_of_different_labels_counts_and_every_group_the_same():
    traces = [rated(0.0, 1.0, "a", 0), rated(0.0, 0.0, "a", 1), rated(0.0, 0.0, "a", 2)]  # two pairs
    traces += [rated(0.0, 1.0, "b", 3), rated(0.0, 0.0, "b", 4)]  # one pair
    traces += [rated(0.0, 1.0, "c", 5), rated(0.0, 1.0, "c", 6)]  # none
    found = credit(Pairwise(), traces)
    slopes = [s.advantages.item() for s in found.samples]
    assert slopes == pytest.approx([-0.25, 0.125, 0.125, -0.25, 0.25])
    assert found.dropped == {"no pair": 2} and found.metrics["pair_accuracy"] == 0.5


def model_and_learner():
    """A reward model on a random body, with a head that is not zero."""
    model = ValueModel(tiny_model(torch.float32).model)
    torch.manual_seed(1)
    with torch.no_grad():
        model.head.weight.copy_(torch.randn_like(model.head.weight))
    return model, TorchLearner(model, lr=1e-3, head="reward", clip_norm=None, micro_tokens=4)  # each on its own


PROMPTS = [(1, 2, 3), (4, 5), (6, 7, 8, 9), (2, 2), (3, 1, 1)]


def scores(model):
    return torch.stack([model(input_ids=torch.tensor([prompt]))[0, -1] for prompt in PROMPTS])


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("anchor", [0.0, 0.3])
def test_the_update_is_that_of_the_pairwise_loss(anchor, monkeypatch):
    model, learner = model_and_learner()
    labels = [1.0, 0.0, 1.0, 0.0, 0.0]
    groups = ["a", "a", "b", "b", "b"]
    found = scores(model)
    pairs = [[(0, 1)], [(2, 3), (2, 4)]]
    loss = sum(sum(-F.logsigmoid(found[i] - found[j]) for i, j in group) / len(group) for group in pairs) / 2
    loss = loss + anchor * F.binary_cross_entropy_with_logits(found, torch.tensor(labels))
    expected = gradients(model, loss)

    algorithm = Pairwise(anchor=anchor)
    values = scores(model).detach().tolist()
    traces = [rated(values[i], labels[i], groups[i], call=i, prompt=PROMPTS[i]) for i in range(len(PROMPTS))]
    seen = {}
    monkeypatch.setattr(
        learner._optimizer,
        "step",
        lambda multiplier: seen.update({name: p.grad.clone() for name, p in model.named_parameters()}),
    )
    learner.update([LossTerm(name="rm", algorithm=algorithm, samples=credit(algorithm, traces).samples)])
    for name, gradient in expected.items():
        assert torch.allclose(seen[name], gradient, rtol=1e-4, atol=1e-6), name


def test_pointwise_learns_its_labels():
    model, _ = model_and_learner()
    learner = TorchLearner(model, lr=1e-2, head="reward")
    algorithm, labels = Pointwise(), [1.0, 0.0, 1.0, 0.0, 1.0]
    for _ in range(40):
        values = scores(model).detach().tolist()
        traces = [rated(values[i], labels[i], call=i, prompt=PROMPTS[i]) for i in range(5)]
        report = learner.update([LossTerm(name="rm", algorithm=algorithm, samples=credit(algorithm, traces).samples)])
    assert report.metrics["rm/accuracy"] == 1.0 and report.metrics["rm/loss"] < 0.2


@pytest.mark.parametrize("algorithm", [Pairwise(), Pointwise()])
def test_the_drift_of_scores_by_hand(algorithm):
    """Of 1 and 4: mean 2.5, spread 1.5; of none nothing is said."""
    found = credit(algorithm, [rated(1.0, 1.0), rated(4.0, 0.0, call=1)]).metrics
    assert (found["score_mean"], found["score_std"]) == (2.5, 1.5)
    assert "score_mean" not in credit(algorithm, [rated(1.0)]).metrics


def test_pointwise_accuracy_by_hand():
    """Right where the score is on the label's side of 0: 0.5 and -0.5 are, 2 for a label of 0 is not."""
    algorithm = Pointwise()
    made = [rated(0.0, label, call=i) for i, label in enumerate((1.0, 0.0, 0.0))]
    batch = collate(credit(algorithm, made).samples)[1]
    loss = algorithm.loss_of(torch.tensor([[0.5], [-0.5], [2.0]]), None, batch, BatchTotals(tokens=3.0, sequences=3.0))
    assert (float(loss.sums["accuracy"]), float(loss.sums["score"])) == (2.0, 2.0)


def test_a_role_that_speaks_has_no_score():
    with refuses("E_ROLE_SPEAKS"):
        credit(Pointwise(), [sampled(length=1, signals=[("label", 1.0)])])
