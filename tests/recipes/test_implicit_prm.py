"""PRIME by hand: rewards, baselines of each channel, the normaliser, the filter; and the loss of φ."""

import math
from dataclasses import replace

import pytest
import torch

from cotrain.algorithms.contract import BatchTotals
from cotrain.algorithms.functional.advantages import whiten
from cotrain.learner.batching import collate
from cotrain.recipes.prime.implicit_prm import ImplicitPrm, Prime, PrimeValues
from cotrain.recipes.prime.recipe import prime
from tests.learner.learn_makers import credit, sampled
from tests.sentences import refuses


def answer(outcome, prm, start, call=0, group="g", values=None):
    scores = {"prm": torch.tensor(prm), "reference": torch.tensor(start)}
    signals = [("outcome", outcome)]
    return sampled(length=len(prm), signals=signals, group=group, call=call, scores=scores, values=values)


def flat(found):
    return [a for sample in found.samples for a in sample.advantages.tolist()]


def test_both_channels_by_hand():
    # log-ratios 0.5, 1 and −1, 0.5: sums from the back 1.5, 1 and −0.5, 0.5, so the largest return is 1.5
    traces = [answer(1.0, [-0.5, -1.0], [-1.0, -2.0]), answer(0.0, [-2.0, -0.5], [-1.0, -1.0], call=1)]
    found = credit(Prime(process_weight=2.0, outcome_weight=3.0, keep=(0.0, 1.0)), traces)
    first, second = [1 / 3, 2 / 3], [-2 / 3, 1 / 3]  # divided by 1.5
    means = [0.5, -1 / 6]

    def process(rewards, mine):
        # r · N/(N−1) − Σ_j mean_j/(N−1), N = 2, then summed to the end
        shifted = [2 * r - sum(means) for r in rewards]
        assert sum(shifted) / 2 == pytest.approx(2 * mine - sum(means))
        return [sum(shifted), shifted[1]]

    raw = [2.0 * g + 3.0 * (1.0 - 0.0) for g in process(first, means[0])]
    raw += [2.0 * g + 3.0 * (0.0 - 1.0) for g in process(second, means[1])]
    expected = whiten(torch.tensor(raw, dtype=torch.float64)).tolist()
    assert flat(found) == pytest.approx(expected, rel=1e-5)
    assert found.metrics["process/pair_accuracy"] == 1.0


@pytest.mark.parametrize("estimator", ["rloo", "grpo"])
def test_an_answer_that_is_alone_in_its_group_is_compared_with_none(estimator):
    """As where the grading of all others failed."""
    pair = [answer(1.0, [-0.5, -1.0], [-1.0, -2.0]), answer(0.0, [-2.0, -0.5], [-1.0, -1.0], call=1)]
    alone = replace(answer(1.0, [-0.4, -1.0], [-1.0, -1.5], call=2), group="another")
    found = credit(Prime(keep=(0.0, 1.0), estimator=estimator), [*pair, alone])
    assert all(math.isfinite(value) for value in flat(found))
    if estimator == "rloo":
        mine = found.samples[2].advantages
        assert float(mine[0]) == float(mine[1])  # what whitening makes of 0


def test_standardised_within_the_group_by_hand():
    # the four token rewards of the group: 0.5, 1, −1, 0.5, divided by the largest return 1.5
    traces = [answer(1.0, [-0.5, -1.0], [-1.0, -2.0]), answer(0.0, [-2.0, -0.5], [-1.0, -1.0], call=1)]
    found = credit(Prime(process_weight=2.0, outcome_weight=3.0, keep=(0.0, 1.0), estimator="grpo"), traces)
    rewards = [1 / 3, 2 / 3, -2 / 3, 1 / 3]
    mean = sum(rewards) / 4
    deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
    a, b, c, d = ((r - mean) / deviation for r in rewards)
    z = 0.5 / math.sqrt(0.5)  # of outcomes 1 and 0
    expected = [2 * (a + b) + 3 * z, 2 * b + 3 * z, 2 * (c + d) - 3 * z, 2 * d - 3 * z]
    assert flat(found) == pytest.approx(expected, rel=1e-4)


def test_whitened_over_the_batch_alone_by_hand():
    traces = [answer(1.0, [-0.5, -1.0], [-1.0, -2.0]), answer(0.0, [-2.0, -0.5], [-1.0, -1.0], call=1)]
    found = credit(Prime(process_weight=2.0, outcome_weight=3.0, keep=(0.0, 1.0), estimator="reinforce++"), traces)
    raw = torch.tensor([2 * 1.0 + 3, 2 * 2 / 3 + 3, 2 * -1 / 3, 2 * 1 / 3], dtype=torch.float64)
    assert flat(found) == pytest.approx(whiten(raw).tolist(), rel=1e-5)
    with refuses("E_UNKNOWN_ESTIMATOR"):
        Prime(estimator="maxrl")


def test_ppo_by_hand():
    # log-ratios 0.5, 1, 0.5 and −1, 0, 0.5: the largest return is 2, by which they are divided
    traces = [
        answer(1.0, [0.5, 1.0, 0.5], [0.0, 0.0, 0.0], values=torch.tensor([6.0, 5.0, 3.0])),
        answer(0.0, [-1.0, 0.0, 0.5], [0.0, 0.0, 0.0], call=1, values=torch.tensor([0.0, 1.0, 2.0])),
    ]
    by = Prime(process_weight=4.0, outcome_weight=3.0, keep=(0.0, 1.0), estimator="ppo", lam=0.5)
    # rewards 1, 2, 1 + 3 and −2, 0, 1, so that δ = 0, 0, 1 and −1, 1, −1; A_t = δ_t + A_{t+1} / 2
    found, learned = credit(by, traces), credit(PrimeValues(paid_by=by), traces)
    raw = torch.tensor([0.25, 0.5, 1.0, -0.75, 0.5, -1.0], dtype=torch.float64)
    assert flat(found) == pytest.approx(whiten(raw).tolist(), rel=1e-5)
    assert [s.targets.tolist() for s in learned.samples] == [[6.25, 5.5, 4.0], [-0.75, 1.5, 1.0]]
    assert credit(PrimeValues(paid_by=replace(by, keep=(0.6, 1.0))), traces).dropped == {"accuracy filter": 2}
    assert by.needs().value_policy == "critic" and Prime().needs().value_policy is None
    needs = PrimeValues(paid_by=by).needs()
    assert (needs.scoring_policies, needs.head) == (("prm", "reference"), "value")


def test_ppo_has_a_critic_that_learns_from_what_the_generator_learns_from():
    made = prime(estimator="ppo", update="before", lam=0.5, critic_lr=0.01)
    assert made.objectives["values"].algorithm.paid_by == made.objectives["generator"].algorithm
    assert made.policies["critic"].lr == 0.01 and made.objectives["generator"].algorithm.lam == 0.5
    assert made.schedule.phases[0].in_turn == ("prm", "generator", "values")
    assert set(prime(estimator="ppo", prm="none").objectives) == {"generator", "values"}
    assert "critic" not in prime().policies
    with refuses("E_SETTING_RANGE", names="1.5"):
        prime(estimator="ppo", lam=1.5)


def test_without_the_normaliser_rewards_keep_their_size():
    traces = [answer(1.0, [0.0], [-8.0]), answer(0.0, [-1.0], [-1.0], call=1)]
    assert credit(Prime(keep=(0, 1)), traces).metrics["process/reward"] == pytest.approx(0.5)
    assert credit(Prime(keep=(0, 1), max_return_norm=False), traces).metrics["process/reward"] == pytest.approx(4.0)


def test_an_answer_of_several_turns_is_counted_once():
    """The right one has the sums 3 and −1, which are 2 in all, and the wrong one 1: by turns half of the pairs would be
    in order."""
    turns = [answer(1.0, [-1.0], [-4.0]), answer(1.0, [-2.0], [-1.0])]
    right = [replace(turn, trajectory="first") for turn in turns]
    wrong = answer(0.0, [-1.0], [-2.0], call=1)
    metrics = credit(Prime(keep=(0, 1), max_return_norm=False), [*right, wrong]).metrics
    assert metrics["process/reward"] == pytest.approx(1.5)
    assert metrics["process/pair_accuracy"] == 1.0


def test_where_the_two_models_agree_the_outcome_alone_counts():
    """No log-ratio has a size then that others could be divided by."""
    traces = [answer(1.0, [-1.0, -2.0], [-1.0, -2.0]), answer(0.0, [-1.0], [-1.0], call=1)]
    assert flat(credit(Prime(keep=(0, 1)), traces)) == pytest.approx(whiten(torch.tensor([1.0, 1.0, -1.0])).tolist())


def test_without_process_rewards_it_is_rloo_and_needs_no_other_model():
    algorithm = Prime(process_weight=0.0, keep=(0.0, 1.0))
    assert algorithm.needs().scoring_policies == ()
    traces = [replace(answer(o, [0.0, 0.0], [0.0, 0.0], call=i), scores={}) for i, o in enumerate((1.0, 0.0, 0.0))]
    loo = [1.0, 1.0, -0.5, -0.5, -0.5, -0.5]
    assert flat(credit(algorithm, traces)) == pytest.approx(whiten(5.0 * torch.tensor(loo)).tolist(), rel=1e-5)


def test_groups_that_are_too_easy_or_too_hard_are_left_out():
    traces = [answer(1.0, [0.0], [0.0], i, "easy") for i in range(5)]
    traces += [answer(float(i == 0), [0.0], [0.0], i, "hard") for i in range(6)]  # 1 of 6 < 0.2
    traces += [answer(float(i < 2), [-1.0 + i], [0.0], i, "middle") for i in range(5)]
    found = credit(Prime(), traces)
    assert len(found.samples) == 5 and found.dropped == {"accuracy filter": 11}
    assert (found.metrics["groups"], found.metrics["kept_groups"]) == (3.0, 1.0)
    assert credit(Prime(), traces[:5]).samples == ()


def test_bounds_of_the_filter_are_checked():
    for wrong in ((0.8, 0.2), (-0.1, 0.5), (0.2, 1.1)):
        with refuses("E_SETTING_RANGE"):
            Prime(keep=wrong)
    assert Prime(keep=(0.0, 1.0)).keep == (0.0, 1.0) and Prime(keep=(0.5, 0.5)).keep == (0.5, 0.5)


def test_loss_of_the_implicit_model():
    algorithm = ImplicitPrm(beta=0.5)
    found = credit(algorithm, [answer(1.0, [0.0, 0.0], [0.0, 0.0]), answer(0.0, [0.0], [0.0], call=1)])
    samples = tuple(replace(s, reference=torch.full((len(s.token_ids),), -1.0)) for s in found.samples)
    _, batch = collate(samples)
    predictions = torch.tensor([[-0.5, -1.0], [-2.0, 0.0]])  # log-ratios 0.5, 0 and −1
    loss = algorithm.loss_of(predictions, None, batch, BatchTotals(tokens=3.0, sequences=2.0))
    expected = (-math.log(1 / (1 + math.exp(-0.25))) - math.log(1 - 1 / (1 + math.exp(0.5)))) / 2
    assert float(loss.value) == pytest.approx(expected)
    assert float(loss.sums["accuracy"]) / 3.0 == pytest.approx(1.0)  # both signs are right
    assert float(loss.sums["reward"]) == pytest.approx(-0.5)
