"""Where a solution goes wrong: ProcessBench and PRMBench figures by hand."""

import math

import pytest

from cotrain.metrics.clusters import sums_of
from cotrain.metrics.heldout import sum_counts
from cotrain.metrics.verdicts import (
    confusion_counts,
    correct_accuracy,
    error_accuracy,
    first_error_counts,
    first_wrong,
    prmscore,
    processbench_f1,
    step_f1s,
)


def test_the_first_wrong_step():
    assert first_wrong([True, False, False]) == 1 and first_wrong([True]) is None and first_wrong([]) is None


def test_processbench_f1_is_the_harmonic_mean():
    # of 4 solutions with a wrong step 1 was located, of 5 without one 3 were left alone: 2 · ¼ · ⅗ / (¼ + ⅗) = 6/17
    rows = [first_error_counts(2, i == 0) for i in range(4)] + [first_error_counts(None, i < 3) for i in range(5)]
    sums = sums_of(sum_counts(rows))
    assert float(error_accuracy()(sums)) == 1 / 4 and float(correct_accuracy()(sums)) == 3 / 5
    assert float(processbench_f1()(sums)) == pytest.approx(6 / 17)


def test_processbench_f1_of_nothing_found_is_zero_and_of_one_class_undefined():
    assert (
        float(processbench_f1()(sums_of(sum_counts([first_error_counts(0, False), first_error_counts(None, False)]))))
        == 0.0
    )
    assert math.isnan(float(processbench_f1()(sums_of(sum_counts([first_error_counts(0, True)])))))


def test_prmscore_is_the_mean_of_both_f1s():
    # right steps: 5 found, 1 missed; wrong ones: 2 found, 3 missed. F1 right 10/(10 + 1 + 3), wrong 4/(4 + 3 + 1)
    pairs = [(True, True)] * 5 + [(True, False)] + [(False, False)] * 2 + [(False, True)] * 3
    sums = sums_of(confusion_counts(pairs))
    positive, negative = step_f1s()
    assert float(positive(sums)) == pytest.approx(10 / 14) and float(negative(sums)) == pytest.approx(4 / 8)
    assert float(prmscore()(sums)) == pytest.approx((10 / 14 + 1 / 2) / 2)
