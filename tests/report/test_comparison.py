"""Comparing recipes: paired differences by hand, equal budgets by interpolation, and words that claim no more."""

from __future__ import annotations

from typing import Any

import pytest

from cotrain.core.statistics import Estimate, mean_interval
from cotrain.report.compare_overview import overview
from cotrain.report.compare_page import compare_page
from cotrain.report.compare_reach import crossing, levels
from cotrain.report.compare_table import band, budgets_of, comparison_table, difference_in_words, runs_of


def run(seed: int, final: float, *, cost: int = 10, length: int = 4) -> dict[str, Any]:
    curve = [[u, u * cost, {"solver/pass@1": final * u / length}] for u in range(length + 1)]
    return {"seed": seed, "curve": curve, "before": {"solver/pass@1": 0.0}, "after": {"solver/pass@1": final}}


def two(first: list[float], second: list[float], **options: int) -> dict[str, Any]:
    return {
        "recipes": {
            "base": {"seeds": [run(i, v) for i, v in enumerate(first)]},
            "new": {"seeds": [run(i, v, **options) for i, v in enumerate(second)]},
        }
    }


def rows(compare: dict[str, Any], at: str, recipe: str) -> dict[str, Any]:
    return next(r for r in comparison_table(compare)["table"] if (r["at"], r["recipe"]) == (at, recipe))


def test_differences_are_paired_by_seed() -> None:
    row = rows(two([0.3, 0.5, 0.7], [0.4, 0.62, 0.78]), "end", "new")
    # differences 0.10, 0.12, 0.08: mean 0.1, deviation 0.02, half width 4.3027 * 0.02 / sqrt(3) = 0.0497
    assert row["difference"]["value"] == pytest.approx(0.1) and row["difference"]["n"] == 3
    assert row["difference"]["low"] == pytest.approx(0.1 - 0.04968, abs=1e-4)
    assert row["words"] == "better by 10.0 points (95\u202f% interval +5.0 to +15.0 points, 3 seeds)"
    assert row["after"] == pytest.approx(mean_interval([0.4, 0.62, 0.78]).within(0.0, 1.0).json())
    assert row["after"]["high"] == 1.0  # Student's t goes to 1.07, a share does not
    assert rows(two([0.3, 0.5], [0.4, 0.6]), "end", "base")["difference"] is None


def test_seeds_that_only_one_recipe_has_do_not_count() -> None:
    compare = two([0.3, 0.5], [0.4, 0.6, 0.9])
    assert rows(compare, "end", "new")["difference"]["n"] == 2
    compare["recipes"]["new"]["seeds"] = [run(7, 0.9)]
    assert rows(compare, "end", "new")["words"] == "no seed was measured in both"


def test_words_claim_no_more_than_the_interval() -> None:
    def words(value: float, low: float, high: float, n: int, metric: str = "pass@1") -> str:
        return difference_in_words(Estimate(value=value, low=low, high=high, n=n), metric)

    assert words(0.1, 0.05, 0.15, 5).startswith("better by 10.0 points")
    assert words(-0.1, -0.15, -0.05, 5).startswith("worse by 10.0 points")
    assert words(0.1, 0.05, 0.15, 5, "calibration_error").startswith("worse")
    assert words(0.1, 0.05, 0.15, 5, "base_rate").startswith("higher")
    for unclear in (words(0.1, -0.01, 0.2, 5), words(0.1, 0.0, 0.2, 5), words(0.1, -9e9, 9e9, 1)):
        assert "better" not in unclear and "worse" not in unclear
    assert "nothing follows" in words(0.1, float("-inf"), float("inf"), 1)


def test_equal_budgets_are_what_every_run_has_reached() -> None:
    # "new" costs 40 tokens an update instead of 10, and both make 4 updates: equal tokens means 40, its first update
    compare = two([0.4, 0.6], [0.8, 1.0], cost=40)
    assert budgets_of(runs_of(compare)) == {"updates": 4.0, "tokens": 40.0}
    assert budgets_of(runs_of(compare), 3) == {"updates": 3.0, "tokens": 40.0}
    assert rows(compare, "updates", "new")["after"]["value"] == pytest.approx(0.9)
    assert rows(compare, "tokens", "base")["after"]["value"] == pytest.approx(0.5)
    assert rows(compare, "tokens", "new")["after"]["value"] == pytest.approx(0.9 / 4)
    lines = comparison_table(compare)["lines"]
    assert lines[0] == "solver: pass@1, after 4 updates"
    assert len(lines) == 9 and sum(line.startswith("  base") for line in lines) == 3


def test_band_by_hand() -> None:
    one, other = [(0.0, 0.0), (10.0, 1.0)], [(0.0, 0.0), (5.0, 1.0), (12.0, 1.0)]
    mean, spread = band([one, other])
    assert mean == [(0.0, 0.0), (5.0, 0.75), (10.0, 1.0)]  # over the range that both cover
    # at 5: 0.5 and 1.0, deviation 0.35355, half width 12.7062 * 0.25
    assert spread[1][1] == pytest.approx(0.75 - 12.7062 * 0.25, abs=1e-4)
    assert band([one]) == (one, []) and band([]) == ([], []) and band([[], []]) == ([], [])
    assert band([[(0.0, 1.0)], [(5.0, 1.0)]]) == ([], [])


def test_a_level_is_reached_where_the_line_first_passes_it() -> None:
    line = [(0.0, 0.1), (10.0, 0.3), (20.0, 0.2), (30.0, 0.6)]
    assert crossing(line, 0.2) == pytest.approx(5.0)  # half way up the first piece, not on the way down or up again
    assert crossing(line, 0.4) == pytest.approx(25.0)
    assert crossing(line, 0.3) == 10.0 and crossing(line, 0.1) == 0.0 and crossing(line, 0.05) == 0.0
    assert crossing(line, 0.7) is None and crossing([], 0.1) is None


def test_seeds_that_never_reach_a_level_are_counted_and_break_the_pairing() -> None:
    runs = runs_of(two([0.4, 0.4], [0.8, 0.3]))
    own, *rest = levels(runs, "updates", 4.0)
    assert own.value == pytest.approx(0.4) and own.name == "what base has after 4 updates"
    base, new = own.reached
    assert base.at == pytest.approx(4.0) and base.difference is None
    assert new.at == pytest.approx(4 * 0.4 / 0.55)  # the mean curve rises to 0.55
    assert new.seeds == {0: pytest.approx(2.0), 1: None} and new.difference is None
    assert new.words() == "3 (2 to 2 over 1 of 2 seeds)"
    low = next(level for level in rest if level.value == pytest.approx(0.2))
    # base needs 2 and 2, new needs 1 and 8/3: differences −1 and 2/3
    change = low.reached[1].difference
    assert change is not None and change.value == pytest.approx(-1 / 6) and change.n == 2


def test_the_page_shows_both_axes_and_refuses_the_word() -> None:
    text = compare_page(two([0.3, 0.5, 0.4], [0.4, 0.45, 0.5]))
    assert "At equal updates" in text and "At equal tokens" in text
    assert "no difference is shown" in text and "better" not in text
    assert "better by" in compare_page(two([0.3, 0.5, 0.4], [0.4, 0.6, 0.5001]))
    assert "No run" in compare_page({}) or "<h1>" in compare_page({})


def test_the_table_of_recipes_is_about_the_solver_and_the_verifier():
    after = {"refiner/pass@1": 0.1, "meta/balanced_accuracy": 0.5, "verifier/balanced_accuracy": 0.9}
    seeds = [{"after": after | {"solver/pass@1": value}} for value in (0.6, 0.8)]
    row = overview({"recipes": {"dsm": {"seeds": seeds}}})["dsm"]
    assert row["pass@1"].value == pytest.approx(0.7)
    assert row["judge"] == "verifier" and row["verdicts"].value == pytest.approx(0.9)
    seeds = [{"after": {"refiner/pass@1": 0.1, "meta/balanced_accuracy": 0.5}}] * 2
    row = overview({"recipes": {"dsm": {"seeds": seeds}}})["dsm"]
    assert row["pass@1"].value == pytest.approx(0.1) and row["judge"] == "meta"
