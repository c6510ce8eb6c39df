import pytest
import torch

from cotrain.algorithms.functional.reductions import masked_sum, reduce_loss

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)


def test_masked_sum_by_hand():
    assert masked_sum(LOSSES, MASK).item() == 16.0
    assert masked_sum(LOSSES, MASK, dim=1).tolist() == [6.0, 10.0]


def test_what_stands_under_the_mask_does_not_matter():
    poisoned = torch.where(MASK > 0, LOSSES, torch.tensor(float("nan"), dtype=torch.float64))
    assert masked_sum(poisoned, MASK).item() == 16.0


@pytest.mark.parametrize(
    ("normalise", "constant", "expected"),
    [("token", None, 16 / 4), ("sequence", None, (2 + 10) / 2), ("constant", 8.0, 16 / (8 * 2))],
)
def test_reduce_loss_by_hand(normalise, constant, expected):
    value = reduce_loss(LOSSES, MASK, normalise=normalise, tokens=4, sequences=2, constant=constant)
    assert value.item() == expected


def test_weights_scale_sequences_and_not_the_totals():
    weights = torch.tensor([0.5, 1.5], dtype=torch.float64)
    value = reduce_loss(LOSSES, MASK, normalise="token", tokens=4, sequences=2, weights=weights)
    assert value.item() == (0.5 * 6 + 1.5 * 10) / 4


@pytest.mark.parametrize("normalise", ["token", "sequence", "constant"])
def test_micro_batches_add_up_to_the_whole(normalise):
    torch.manual_seed(0)
    lengths = torch.tensor([3, 1, 5, 2])
    mask = (torch.arange(5)[None] < lengths[:, None]).double()
    losses = torch.randn(4, 5, dtype=torch.float64)
    weights = torch.rand(4, dtype=torch.float64)
    totals = {"normalise": normalise, "tokens": 11.0, "sequences": 4.0}
    totals["constant"] = 7.0 if normalise == "constant" else None
    whole = reduce_loss(losses, mask, weights=weights, **totals)
    parts = [reduce_loss(losses[i], mask[i], weights=weights[i], **totals) for i in ([2], [0, 3], [1])]
    assert whole.item() == pytest.approx(sum(p.item() for p in parts), rel=1e-14)


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="one shape"):
        masked_sum(LOSSES, MASK[:1])
    with pytest.raises(ValueError, match="floating point"):
        masked_sum(LOSSES, MASK.long())
    with pytest.raises(ValueError, match="belong together"):
        reduce_loss(LOSSES, MASK, normalise="constant", tokens=4, sequences=2)
    with pytest.raises(ValueError, match="belong together"):
        reduce_loss(LOSSES, MASK, normalise="token", tokens=4, sequences=2, constant=3.0)
    with pytest.raises(ValueError, match="expected one of"):
        reduce_loss(LOSSES, MASK, normalise="tokens", tokens=4, sequences=2)
