"""Lines, numbers in words, and escaping: hand-computed constants."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from cotrain.core.statistics import Estimate
from cotrain.core.verbosity import escape_terminal, is_hidden
from cotrain.metrics.table import labelled_metric, table_rank
from cotrain.reports.compare_words import short_labels
from cotrain.reports.guide import (
    MetricName,
    difference_interval,
    interval_text,
    number_text,
    parse_metric_name,
    points_text,
    split_key,
)
from cotrain.reports.lines import axis_ticks, value_at
from cotrain.reports.page import ASSETS, escape_attribute


def test_ticks_are_round_and_inside() -> None:
    assert axis_ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1.0]
    assert axis_ticks(3, 187) == [50, 100, 150]
    assert axis_ticks(-0.06, 0.07, 3) == [-0.05, 0, 0.05]
    assert axis_ticks(2, 2) == [2]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_never_leave_the_range_and_stay_few(low: float, span: float) -> None:
    found = axis_ticks(low, low + span)
    assert len(found) <= 8
    assert all(low - 1e-6 * span - 1e-9 <= t <= low + span + 1e-6 * span + 1e-9 for t in found)


def test_interpolation() -> None:
    line = [(0.0, 0.0), (10.0, 5.0), (20.0, 25.0)]
    assert value_at(line, 10.0) == 5.0 and value_at(line, 15.0) == 15.0 and value_at(line, 0.0) == 0.0


def test_numbers_as_a_reader_wants_them() -> None:
    assert number_text(0.614, share=True) == "61.4\u202f%"
    assert number_text(-0.0001, share=True) == "0.0\u202f%"
    assert number_text(11_482_113, share=False) == "11\u202f482\u202f113"
    assert number_text(0.03127, share=False) == "0.0313" and number_text(81.234, share=False) == "81.2"
    assert number_text(-3, share=False) == "−3" and number_text(0.0, share=False) == "0"
    assert number_text(math.nan, share=True) == "undefined" and number_text(math.inf, share=False) == "unknown"
    assert (
        points_text(-0.042, share=True) == "−4.2"
        and points_text(0.5, share=False) == "+0.500"
        and points_text(-1e-9, share=True) == "0.0"
    )
    e = Estimate(value=0.6, low=0.57, high=0.651, n=10)
    assert interval_text(e, share=True) == "57.0 to 65.1\u202f%"
    assert difference_interval(Estimate(value=0.0, low=-0.02, high=0.04, n=3), share=True) == "−2.0 to +4.0 points"
    assert interval_text(Estimate(value=0.6, low=-math.inf, high=math.inf, n=1), share=True) == "unknown"


def test_metric_names_are_taken_apart() -> None:
    assert split_key("generator/generator/loss") == ("generator", "loss")
    assert split_key("policy/first/kl") == ("policy/first", "kl")
    assert split_key("solver/reward/outcome") == ("solver", "reward/outcome")
    assert split_key("solver/parse_failure/no answer") == ("solver", "parse_failure/no answer")
    assert split_key("verifier/something/new") == ("verifier", "something/new")
    assert split_key("gap") == ("", "gap")
    assert parse_metric_name("solver/pass@1", {"solver"}) == MetricName(who="solver", metric="pass@1")
    assert parse_metric_name("solver/ood_length/pass@8", {"solver"}) == MetricName(
        who="solver", metric="pass@8", split="ood_length"
    )
    assert parse_metric_name("hard/solver/pass@1", {"solver"}) == MetricName(
        who="solver", metric="pass@1", split="hard"
    )


def test_what_is_known_of_metrics() -> None:
    assert labelled_metric("pass@8").label == "pass@8"
    assert labelled_metric("calibration_error").better == -1
    assert not labelled_metric("strange", [0.5, 7.0]).is_share and labelled_metric("strange", [0.5, 0.7]).is_share
    assert sorted(["loss", "unheard of", "pass@8", "pass@1", "majority@8", "balanced_accuracy"], key=table_rank) == [
        "pass@1", "pass@8", "majority@8", "balanced_accuracy", "loss", "unheard of",
    ]  # fmt: skip


def test_hidden_characters_are_spelled_out() -> None:
    assert escape_terminal("x\u202ey\x1b]52;c;\x07\n") == "x<U+202E>y<U+001B>]52;c;<U+0007>⏎"
    assert escape_attribute('"\x00>') == "&quot;&lt;U+0000&gt;&gt;"
    assert escape_terminal("abcdef", limit=2) == "ab… (4 more characters)"
    assert escape_terminal("\ud800") == "<U+D800>"
    for char in "\u200b\u200d\u2066\ufeff\u00ad\u2028\U000e0041\ufe0f\U000e0101\x7f\x9b\u3164":
        assert is_hidden(char), hex(ord(char))
    for char in "aé漢字✓ \u00a0🙂":
        assert not is_hidden(char), char


@given(st.text(st.characters()))
def test_no_text_keeps_a_control_character_or_markup(text: str) -> None:
    assert not any(is_hidden(c) for c in escape_terminal(text)) and "\n" not in escape_terminal(text)
    assert not set(escape_attribute(text)) & set("<>\"'")


def test_arms_lose_the_parameters_that_all_have() -> None:
    one, other = "tango:lr=1e-3,kl=0.0,alpha=1.0", "tango:lr=1e-3,kl=0.0,alpha=0.5"
    assert short_labels([one, other]) == {one: "tango:alpha=1.0", other: "tango:alpha=0.5"}
    assert short_labels(["grpo", "tango:verifier=frozen"]) == {
        "grpo": "grpo",
        "tango:verifier=frozen": "tango:verifier=frozen",
    }
    assert short_labels(["a:x=1,y=2", "a:y=2,x=1"]) == {"a:x=1,y=2": "a:x=1,y=2", "a:y=2,x=1": "a:y=2,x=1"}
    assert short_labels([]) == {} and short_labels(["grpo:lr=1"]) == {"grpo:lr=1": "grpo"}


def test_a_page_marks_the_blank_that_looks_like_another_and_keeps_ink_in_its_box():
    """A letter with four hundred marks drew over the heading above; 1 2 could not be told from 1 2 with U+00A0."""
    hidden = (ASSETS / "words.js").read_text().partition("const HIDDEN = /[")[2].partition("]/u")[0]
    assert r"\u00a0" in hidden
    (rule,) = [line for line in (ASSETS / "page.css").read_text().splitlines() if "overflow: clip" in line]
    assert {"pre", ".problem", ".step", ".mono"} <= set(rule.partition(" {")[0].split(", "))
