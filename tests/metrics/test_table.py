"""The table of metrics: keys are found, limits are sane, and the page that is generated from it is up to date."""

import math
from pathlib import Path

import pytest

from cotrain.metrics.heldout import VERDICTS_SHOWN
from cotrain.metrics.metric import ANY, FIRST, HELD_OUT, Metric, in_words
from cotrain.metrics.page import page
from cotrain.metrics.steps import RATES
from cotrain.metrics.table import TABLE, documented, is_headline, line_of, meaning, metric, rank


def test_the_page_is_up_to_date():
    """If this fails: python -m cotrain.metrics.page."""
    assert (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8") == page()


def test_every_key_stands_once_and_can_be_found():
    keys = [one.key for one in TABLE]
    assert len(set(keys)) == len(keys)
    assert all(metric(key).key == key for key in keys)
    with pytest.raises(KeyError):
        metric("{role}/no_such_metric")


def test_a_key_is_taken_for_what_it_is():
    assert documented("solver/accuracy") and documented("generator/generator/kl") and documented("gap")
    assert (
        documented("eval/solver/pass@8")
        and documented("eval/verifier/fixed/balanced_accuracy")
        and documented("eval/gap")
    )
    assert documented("verifier/parse_failure/stray text/after the end") and documented("generator/cosine/a/b")
    assert not documented("solver/pass@8")  # only of held-out problems
    assert (
        not documented("eval/solver/truncated") and not documented("solver/no_such_metric") and not documented("pass@x")
    )


def test_every_measure_has_its_line():
    for name in (*VERDICTS_SHOWN, "gap"):
        assert documented(f"eval/verifier/{name}" if name != "gap" else "eval/gap"), name
    for name in RATES:
        assert documented(f"verifier/{name}"), name


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
        if one.share:
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
    first = sorted((name for name in names if is_headline(name, FIRST)), key=rank)
    assert first == ["pass@1", "greedy", "pass@8", "majority@8", "balanced_accuracy", "greedy_balanced_accuracy"]
    assert [meaning(name).label for name in first] == [
        "pass@1", "greedy accuracy", "pass@8", "maj@8", "balanced accuracy", "greedy balanced accuracy",
    ]  # fmt: skip
    assert is_headline("best@8") and not is_headline("best@8", FIRST) and not is_headline("accuracy")


def test_the_most_literal_line_counts():
    assert line_of("pass@1").key == "{role}/pass@1" and line_of("pass@12").key == "{role}/pass@{k}"
    assert (
        line_of("accuracy").key == "{role}/accuracy" and line_of("reward/x/right").key == "{role}/reward/{signal}/right"
    )
    assert line_of("never heard of") is None


def test_labels_are_filled_in_and_unknown_units_settled_by_the_values():
    assert meaning("reward/out_come/right").label == "reward: out_come, where right"
    assert (
        meaning("reward/x", [0.5, 1.0]).share
        and not meaning("reward/x", [0.5, 7.0]).share
        and not meaning("reward/x").share
    )
    assert meaning("odd {name}").label == "odd {name}" and meaning("odd_one").label == "odd one"


def test_ranges_in_words():
    assert in_words((0.0, 0.1)) == in_words((-math.inf, 0.1)) == "below 0.1"
    assert (
        in_words((0.01, 1.0)) == "0.01 to 1" and in_words((0.9, 1.0), 1.0) == in_words((0.9, math.inf)) == "above 0.9"
    )
    assert in_words(ANY) == "–" and in_words((0, 0)) == "0"


def test_a_name_is_the_key_without_whose_it_is():
    assert Metric(key="{policy}/{objective}/loss", meaning="").name == "loss"
    assert Metric(key="{policy}/cosine/{objective}/{objective}", meaning="").name == "cosine/{objective}/{objective}"
    assert Metric(key="updates/{policy}", meaning="", at=HELD_OUT).name == "updates/{policy}"
