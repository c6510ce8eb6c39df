import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_makers import sampled

from cotrain.algorithms.class_balance import ClassBalance, class_weights, update_counts
from cotrain.core.signals import CLASS_LABEL, STEP
from tests.sentences import refuses


def test_counts_by_hand():
    counts = update_counts((0.0, 0.0), [True, False, False, False, None], 0.8)
    assert counts == pytest.approx((0.6, 0.2))
    assert update_counts(counts, [True, True], 0.8) == pytest.approx((0.48, 0.56))


def test_weights_by_hand():
    # counts 9 and 1: scales 1/3 and 1; three negatives and one positive: mean 0.5
    weights = class_weights((9.0, 1.0), [False, False, True, False, None])
    assert weights == pytest.approx([2 / 3, 2 / 3, 2.0, 2 / 3, 1.0])


def test_inverse_square_root_leaves_the_rare_class_lighter_in_sum():
    weights = class_weights((90.0, 10.0), [False] * 90 + [True] * 10)
    assert sum(weights[90:]) / sum(weights[:90]) == pytest.approx(math.sqrt(10 / 90))


def test_power_one_weighs_both_classes_the_same():
    weights = class_weights((90.0, 10.0), [False] * 90 + [True] * 10, power=1.0)
    assert sum(weights[90:]) == pytest.approx(sum(weights[:90])) == pytest.approx(50.0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.floats(0.0, 0.99))
def test_mean_weight_is_one(labels, ema):
    weights = class_weights(update_counts((3.0, 5.0), labels, ema), labels)
    assert sum(weights) / len(weights) == pytest.approx(1.0)


def test_what_is_told_of_a_step_by_hand():
    """Of three wrong and one right; of a step without any sample nothing but that none was unlabelled."""
    seen = [
        sampled(length=1, call=i, signals=[(CLASS_LABEL.name, label)]) for i, label in enumerate((0.0, 0.0, 0.0, 1.0))
    ]
    weighed, counts, metrics = ClassBalance(class_label=CLASS_LABEL, ema=0.0).weigh_samples(seen, seen, (0.0, 0.0))
    assert counts == [3.0, 1.0] and metrics["balance/positive"] == 0.25
    assert (metrics["balance/weight_negative"], metrics["balance/weight_positive"]) == pytest.approx(
        (weighed[0].weight, weighed[3].weight)
    )
    assert ClassBalance(class_label=CLASS_LABEL).weigh_samples((), (), (0.0, 0.0)) == (
        [],
        [0.0, 0.0],
        {"balance/unlabelled": 0.0},
    )


def test_counts_that_begin_with_the_first_batch_by_hand():
    first = [
        sampled(length=1, call=i, signals=[(CLASS_LABEL.name, label)]) for i, label in enumerate((0.0, 0.0, 0.0, 1.0))
    ]
    second = first[2:]  # one wrong, one right
    from_first = ClassBalance(from_first_batch=True)
    _, counts, _ = from_first.weigh_samples(first, first, (0.0, 0.0))
    assert counts == [3.0, 1.0]
    _, counts, _ = from_first.weigh_samples(second, second, counts)
    assert counts == pytest.approx([0.8 * 3 + 0.2, 0.8 + 0.2])
    _, counts, _ = ClassBalance().weigh_samples(first, first, (0.0, 0.0))
    assert counts == pytest.approx([0.6, 0.2])


def test_one_class_alone_weighs_one():
    assert class_weights(update_counts((0.0, 0.0), [False] * 3, 0.8), [False] * 3) == pytest.approx([1.0] * 3)


def test_refusals():
    with refuses("E_CLASS_BALANCE_RANGE"):
        ClassBalance(ema=1.0)
    with refuses("E_CLASS_BALANCE_RANGE"):
        ClassBalance(power=0.0)
    for wrong in ("truth", STEP):
        with refuses("E_CLASS_LABEL_KIND"):
            ClassBalance(class_label=wrong)
    with pytest.raises(ValueError, match="class 1"):
        class_weights((1.0, 0.0), [True])


def test_settings_at_their_bounds():
    assert ClassBalance(ema=0.0, power=1.0).power == 1.0 and ClassBalance(ema=0.99, power=0.01).ema == 0.99
    for wrong in ({"ema": 1.0}, {"ema": -0.1}, {"power": 0.0}, {"power": 1.1}):
        with refuses("E_CLASS_BALANCE_RANGE", names=next(iter(wrong))):
            ClassBalance(**wrong)
