import pytest
import torch
from learn_makers import annotated, outcomes

from cotrain.core.errors import ConfigError
from cotrain.learn.collate import collate
from cotrain.learn.contract import Normaliser
from cotrain.learn.sft import Sft


def test_all_traces_or_the_rewarded_ones():
    everything = Sft().credit([annotated(signals=[])], updates=0, planned=1)
    assert len(everything.samples) == 1
    greedy = Sft().credit([annotated(temperature=0.0)], updates=0, planned=1)
    assert greedy.samples[0].temperature == 1.0  # likelihood is that of the model itself
    chosen = Sft(where="outcome", at_least=0.5).credit([*outcomes(1.0, 0.0, 0.5), annotated()], updates=0, planned=1)
    assert len(chosen.samples) == 2
    assert chosen.dropped == {"outcome too low": 1, "no outcome": 1}


def test_a_signal_may_weigh_the_traces():
    credit = Sft(weight="outcome").credit([*outcomes(0.9, 0.0, 0.1), annotated()], updates=0, planned=1)
    assert [sample.weight for sample in credit.samples] == [0.9, 0.1]
    assert credit.dropped == {"no outcome": 1}
    with pytest.raises(ConfigError, match="a weight below 0"):
        Sft(weight="outcome").credit(outcomes(-0.1), updates=0, planned=1)


def test_loss_by_hand():
    _, batch = collate(Sft().credit([annotated(length=3), annotated(length=1, call=1)], updates=0, planned=1).samples)
    predictions = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0]])
    totals = Normaliser(tokens=4.0, sequences=2.0)
    assert Sft().loss(predictions, None, batch, totals).value.item() == 2.5
    assert Sft(normalise="sequence").loss(predictions, None, batch, totals).value.item() == 3.0


def test_needs_and_refusals():
    assert Sft().needs().on_policy is False
    with pytest.raises(ConfigError, match="normalise"):
        Sft(normalise="constant")
