import torch
from learn_makers import credit, outcomes, sampled

from cotrain.algorithms.contract import BatchTotals
from cotrain.algorithms.sft import SFT
from cotrain.core.signals import OUTCOME, STEP
from cotrain.learner.batching import collate
from tests.sentences import refuses


def test_all_traces_or_the_rewarded_ones():
    everything = credit(SFT(), [sampled(signals=[])])
    assert len(everything.samples) == 1
    greedy = credit(SFT(), [sampled(temperature=0.0)])
    assert greedy.samples[0].temperature == 1.0  # likelihood is that of the model itself
    chosen = credit(SFT(where=OUTCOME, at_least=0.5), [*outcomes(1.0, 0.0, 0.5), sampled()])
    assert len(chosen.samples) == 2
    assert chosen.dropped == {"outcome too low": 1, "no outcome": 1}


def test_a_signal_may_weigh_the_traces():
    result = credit(SFT(weight=OUTCOME), [*outcomes(0.9, 0.0, 0.1), sampled()])
    assert [sample.weight for sample in result.samples] == [0.9, 0.1]
    assert result.dropped == {"no outcome": 1}
    with refuses("E_SAMPLE_WEIGHT"):
        credit(SFT(weight=OUTCOME), outcomes(-0.1))


def test_loss_by_hand():
    _, batch = collate(credit(SFT(), [sampled(length=3), sampled(length=1, call=1)]).samples)
    predictions = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0]])
    totals = BatchTotals(tokens=4.0, sequences=2.0)
    assert SFT().loss_of(predictions, None, batch, totals).value.item() == 2.5
    assert SFT(normalise="sequence").loss_of(predictions, None, batch, totals).value.item() == 3.0


def test_needs_and_refusals():
    assert SFT().needs().on_policy is False
    with refuses("E_NORMALISE"):
        SFT(normalise="constant")
    assert SFT(where=OUTCOME).needs().reward_signals == (OUTCOME,)
    for wrong in ("outcome", STEP):
        with refuses("E_SIGNAL_NOT_PER_ANSWER"):
            SFT(where=wrong)
