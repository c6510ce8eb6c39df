import math

import pytest
import torch
from torch import nn

from cotrain.learner.optim import (
    Optimizer,
    adamw,
    has_bfloat16,
    load_optimizer_tensors,
    lr_multiplier,
    optimizer_tensors,
)
from cotrain.pretraining.muon import Float32Muon, muon
from tests.sentences import refuses


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.25), (1, 0.5), (3, 1.0), (5, 1.0), (6, 1.0), (7, 0.75), (9, 0.25), (10, 0.0), (99, 0.0)],
)
def test_linear_schedule_by_hand(step, expected):
    assert lr_multiplier(step, 10, warmup=4, decay_fraction=0.4) == pytest.approx(expected)


def test_shapes_of_decay_by_hand():
    assert lr_multiplier(1, 4, shape="cosine") == pytest.approx(0.5 * (1 + math.sqrt(0.5)))
    assert lr_multiplier(2, 4, shape="cosine") == pytest.approx(0.5)
    assert lr_multiplier(1, 4, shape="wsd") == pytest.approx(0.5)  # 1 − sqrt(1/4)
    assert [lr_multiplier(i, 3, decay_fraction=0.0) for i in range(4)] == [1.0, 1.0, 1.0, 0.0]
    assert lr_multiplier(0, 2, warmup=5) == 0.2, "a warm-up longer than the run leaves no room for decay"


def test_bfloat16_is_asked_of_the_device_itself_and_emulation_does_not_count(monkeypatch):
    cards = {"cuda:0": (7, 5), "cuda:1": (8, 0), "cuda:2": (9, 0), "cuda": (7, 5)}
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)  # as a T4 says
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: cards[str(device)])
    found = {name for name in cards if has_bfloat16(torch.device(name))}
    assert found == {"cuda:1", "cuda:2"}


def test_schedule_refuses_nonsense():
    with refuses("E_UNKNOWN_SCHEDULE_SHAPE", names="'linear'"):
        lr_multiplier(0, 10, shape="linaer")
    with refuses("E_LR_SCHEDULE_RANGE"):
        lr_multiplier(0, 10, decay_fraction=1.5)


class Toy(nn.Module):
    """Embedding, one hidden matrix with bias, a norm, and a head tied to the embedding."""

    def __init__(self, tied=True):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed, self.hidden, self.norm = nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4)
            self.lm_head = nn.Linear(4, 7, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids):
        return self.lm_head(self.norm(self.hidden(self.embed(ids)).tanh()))


def descend(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        ids = torch.tensor([step % 7, (3 * step + 1) % 7])
        nn.functional.cross_entropy(model(ids), (ids + 1) % 7).backward()
        optimizer.step(0.5)
        optimizer.zero_grad()


def test_first_step_of_adamw_by_hand():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
    optimizer = adamw(model, lr=0.1, weight_decay=0.5)
    model.weight.grad = torch.tensor([[3.0, -0.2]])
    optimizer.step(0.5)  # w·(1 − 0.05·0.5) − 0.05·sign(g), as m̂ = g and v̂ = g² after one step
    assert torch.allclose(model.weight, torch.tensor([[0.975 - 0.05, -1.95 + 0.05]]), atol=1e-6)


@pytest.mark.parametrize("make", [adamw, muon])
def test_only_hidden_matrices_decay(make):
    model = Toy()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make(model, lr=0.1, weight_decay=0.5)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"hidden.weight"}
    assert torch.allclose(model.hidden.weight, 0.95 * before["hidden.weight"])


def test_muon_moves_a_matrix_along_an_orthogonal_one():
    model = Toy()
    optimizer = muon(model, lr=1.0)
    matrices, rest = optimizer.parts
    assert isinstance(matrices, torch.optim.Muon) and isinstance(rest, torch.optim.AdamW)
    before = model.hidden.weight.detach().clone()
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    update = (before - model.hidden.weight) / (0.2 * math.sqrt(4))
    values = torch.linalg.svdvals(update.detach())
    assert values.min() > 0.5 and values.max() < 1.3, "five Newton-Schulz steps bring singular values near one"


def test_muon_in_float32_goes_where_torch_goes_in_bfloat16():
    ours, theirs = (nn.ParameterList([torch.zeros(6, 4), torch.zeros(3, 8), torch.zeros(6, 4)]) for _ in range(2))
    a = Float32Muon(ours, lr=0.1, weight_decay=0.1, eps=1e-7, adjust_lr_fn="match_rms_adamw")
    b = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, eps=1e-7, adjust_lr_fn="match_rms_adamw")
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q in zip(ours, theirs, strict=True):
        assert torch.allclose(p, q, atol=0.01 * q.abs().max().item() + 2e-3), (p - q).abs().max()


def plain_adamw(model, lr):
    return Optimizer([torch.optim.AdamW(model.parameters(), lr=lr, fused=False)])


def torch_muon(model, lr):
    return Optimizer([torch.optim.Muon([model.hidden.weight], lr=lr)])


@pytest.mark.parametrize("make", [adamw, muon, plain_adamw, torch_muon])
def test_steps_are_those_of_torch_which_makes_moments_as_it_goes(make):
    """One parameter has its first gradient in the second step."""
    ours, theirs = Toy(), Toy()
    mine, other = make(ours, lr=0.1), make(theirs, lr=0.1)
    for step in range(3):
        for model in (ours, theirs):
            model.norm.requires_grad_(step > 0)
            ids = torch.tensor([step, 6 - step])
            nn.functional.cross_entropy(model(ids), ids).backward()
        mine.step()
        for part in other.parts:
            part.step()
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            found, wanted = ([part.state.get(one) for part in o.parts] for one, o in ((p, mine), (q, other)))
            assert str(found) == str(wanted), name
            assert torch.equal(p, q), name
            for a, b in zip(filter(None, found), filter(None, wanted), strict=True):
                assert list(a) == list(b)
                for x, y in zip(a.values(), b.values(), strict=True):
                    assert torch.equal(x, y) and (x.dtype, x.device, x.stride()) == (y.dtype, y.device, y.stride())


@pytest.mark.parametrize("make", [adamw, muon])
@pytest.mark.parametrize("tied", [True, False])
def test_state_goes_through_a_checkpoint_exactly(make, tied):
    straight = Toy(tied)
    optimizer = make(straight, lr=0.05, weight_decay=0.1)
    descend(straight, optimizer, 3)
    saved = {key: tensor.clone() for key, tensor in optimizer_tensors(optimizer, straight).items()}
    weights = {name: p.detach().clone() for name, p in straight.named_parameters()}
    descend(straight, optimizer, 4, start=3)

    resumed = Toy(tied)
    with torch.no_grad():
        for name, p in resumed.named_parameters():
            p.copy_(weights[name])
    other = make(resumed, lr=0.05, weight_decay=0.1)
    load_optimizer_tensors(other, resumed, saved)
    again = optimizer_tensors(other, resumed)
    assert again.keys() == saved.keys() and all(torch.equal(again[key], saved[key]) for key in saved)
    assert "hidden.weight:momentum_buffer" in saved if make is muon else "hidden.weight:exp_avg" in saved
    descend(resumed, other, 4, start=3)
    for (name, a), (_, b) in zip(straight.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_loaded_tensors_are_copies():
    model = Toy()
    optimizer = adamw(model, lr=0.1)
    descend(model, optimizer, 1)
    saved = optimizer_tensors(optimizer, model)
    kept = {key: tensor.clone() for key, tensor in saved.items()}
    load_optimizer_tensors(optimizer, model, saved)
    descend(model, optimizer, 1, start=1)
    assert all(torch.equal(saved[key], kept[key]) for key in saved)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda s: s.pop("hidden.weight:exp_avg"), "E_OPTIMIZER_MISFIT: 'hidden.weight' | exp_avg"),
        (lambda s: s.update({"nothing:exp_avg": torch.zeros(1)}), "E_OPTIMIZER_MISFIT: 'nothing:exp_avg'"),
        (lambda s: s.update({"hidden.weight:momentum_buffer": torch.zeros(4, 4)}), "E_OPTIMIZER_MISFIT"),
        (lambda s: s.update({"hidden.weight:exp_avg": torch.zeros(4)}), "E_OPTIMIZER_MISFIT: (4,) | (4, 4)"),
    ],
)
def test_state_that_does_not_fit_changes_nothing(damage, code):
    model = Toy()
    optimizer = adamw(model, lr=0.1)
    descend(model, optimizer, 2)
    before = optimizer_tensors(optimizer, model)
    broken = {key: tensor + 1 for key, tensor in before.items()}
    damage(broken)
    with refuses(code):
        load_optimizer_tensors(optimizer, model, broken)
    after = optimizer_tensors(optimizer, model)
    assert after.keys() == before.keys() and all(torch.equal(after[key], before[key]) for key in before)


def test_a_frozen_model_cannot_be_trained():
    with refuses("E_NOTHING_TRAINABLE"):
        adamw(Toy().requires_grad_(False), lr=0.1)
