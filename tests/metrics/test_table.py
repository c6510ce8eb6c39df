"""The table of metrics: keys are found, limits are sane, and the page that is generated from it is up to date."""

import math
from pathlib import Path

import pytest

from cotrain.metrics.heldout import VERDICTS_SHOWN
from cotrain.metrics.metric import ANY, FIRST, HELD_OUT, Metric
from cotrain.metrics.steps import RATES
from cotrain.metrics.table import (
    LARGER,
    NEAREST,
    NEITHER,
    SMALLER,
    TABLE,
    UNTOLD,
    better_values,
    goodness,
    is_headline,
    labelled_metric,
    metric_named,
    metric_with_key,
    table_rank,
    untold_note,
)
from docs.metrics_page import page_text, range_text
from tests.helpers import is_documented


def test_the_page_is_up_to_date():
    """If this fails: python -m docs.metrics_page."""
    assert (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8") == page_text()


def test_every_key_stands_once_and_can_be_found():
    keys = [one.key for one in TABLE]
    assert len(set(keys)) == len(keys)
    assert all(metric_with_key(key).key == key for key in keys)
    with pytest.raises(KeyError):
        metric_with_key("{role}/no_such_metric")


def test_a_key_is_taken_for_what_it_is():
    assert is_documented("solver/accuracy") and is_documented("generator/generator/kl") and is_documented("gap")
    assert (
        is_documented("eval/solver/pass@8")
        and is_documented("eval/verifier/fixed/balanced_accuracy")
        and is_documented("eval/gap")
    )
    assert is_documented("verifier/parse_failure/stray text/after the end") and is_documented("generator/cosine/a/b")
    assert not is_documented("solver/pass@8")  # only of held-out problems
    assert (
        not is_documented("eval/solver/truncated")
        and not is_documented("solver/no_such_metric")
        and not is_documented("pass@x")
    )


def test_every_measure_has_its_line():
    for name in (*VERDICTS_SHOWN, "gap"):
        assert is_documented(f"eval/verifier/{name}" if name != "gap" else "eval/gap"), name
    for name in RATES:
        assert is_documented(f"verifier/{name}"), name


def test_ranges_are_sane_and_where_a_range_is_left_there_is_advice():
    for one in TABLE:
        low, high = one.healthy
        wide = one.tolerable
        assert low <= high and wide[0] <= max(low, wide[0]) and (wide == ANY or (wide[0] <= low and high <= wide[1])), (
            one.key
        )
        assert one.healthy == ANY or one.advice.endswith(".") or low == high, one.key
        assert one.advice == "" or ". " not in one.advice, one.key
        assert one.meaning, one.key
        if one.is_share:
            least, most = one.limits
            assert least >= -1.0 and most <= 1.0, one.key


def test_the_headlines_of_held_out_problems():
    names = [
        "accuracy",
        "majority@8",
        "best@8",
        "greedy",
        "greedy_balanced_accuracy",
        "pass@8",
        "balanced_accuracy",
        "pass@1",
    ]
    first = sorted((name for name in names if is_headline(name, FIRST)), key=table_rank)
    assert first == ["pass@1", "greedy", "pass@8", "majority@8", "balanced_accuracy", "greedy_balanced_accuracy"]
    assert [labelled_metric(name).label for name in first] == [
        "pass@1", "greedy accuracy", "pass@8", "maj@8", "balanced accuracy", "greedy balanced accuracy",
    ]  # fmt: skip
    assert is_headline("best@8") and not is_headline("best@8", FIRST) and not is_headline("accuracy")


def test_the_most_literal_line_counts():
    assert metric_named("pass@1").key == "{role}/pass@1" and metric_named("pass@12").key == "{role}/pass@{k}"
    assert (
        metric_named("accuracy").key == "{role}/accuracy"
        and metric_named("reward/x/right").key == "{role}/reward/{signal}/right"
    )
    assert metric_named("never heard of") is None


def test_which_values_of_a_figure_are_better():
    assert better_values("solver/ood_length/pass@1") == LARGER
    assert better_values("verifier/fixed/calibration_error") == SMALLER
    assert better_values("gap") == better_values("meta/fixed/gap") == NEAREST
    assert better_values("verifier/base_rate") == better_values("solver/majority_share") == NEITHER
    assert better_values("solver/metadata/length") == better_values("solver/my_own_figure") == UNTOLD
    assert better_values("rater/score") == better_values("solver/steps") == UNTOLD  # named as figures of training steps


def test_values_are_ranked_by_how_good_they_are():
    def best(figure, *values):
        return max(values, key=lambda value: goodness(figure, value))

    assert best("gap", -0.3, -0.1, 0.2) == -0.1
    assert best("solver/pass@1", 0.1, 0.4, 0.3) == best("solver/my_own_figure", 0.1, 0.4, 0.3) == 0.4
    assert best("verifier/calibration_error", 0.2, 0.1, 0.3) == 0.1


def test_a_note_says_that_the_best_value_of_an_own_figure_is_a_guess():
    assert "solver/my_own_figure" in untold_note("measure", "solver/my_own_figure")
    assert untold_note("measure", "solver/pass@1") == ""


def test_labels_are_filled_in_and_unknown_units_settled_by_the_values():
    assert labelled_metric("reward/out_come/right").label == "reward: out_come, where right"
    assert (
        labelled_metric("reward/x", [0.5, 1.0]).is_share
        and not labelled_metric("reward/x", [0.5, 7.0]).is_share
        and not labelled_metric("reward/x").is_share
    )
    assert labelled_metric("odd {name}").label == "odd {name}" and labelled_metric("odd_one").label == "odd one"


def test_ranges_in_words():
    assert range_text((0.0, 0.1)) == range_text((-math.inf, 0.1)) == "below 0.1"
    assert (
        range_text((0.01, 1.0)) == "0.01 to 1"
        and range_text((0.9, 1.0), 1.0) == range_text((0.9, math.inf)) == "above 0.9"
    )
    assert range_text(ANY) == "–" and range_text((0, 0)) == "0"


def test_a_name_is_the_key_without_whose_it_is():
    assert Metric(key="{policy}/{objective}/loss", meaning="").name == "loss"
    assert Metric(key="{policy}/cosine/{objective}/{objective}", meaning="").name == "cosine/{objective}/{objective}"
    assert Metric(key="updates/{policy}", meaning="", at=HELD_OUT).name == "updates/{policy}"
