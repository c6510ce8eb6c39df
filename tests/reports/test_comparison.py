"""Comparing recipes: paired differences by hand, equal budgets by interpolation, and words that claim no more."""

from __future__ import annotations

from typing import Any

import pytest

from cotrain.core.statistics import Estimate, mean_interval
from cotrain.reports.compare_overview import cost_cells, headline_cells, rate_cells
from cotrain.reports.compare_reach import find_levels, first_crossing
from cotrain.reports.compare_table import budgets_of, comparison_table, mean_band, runs_of, with_table
from cotrain.reports.compare_words import difference_in_words


def run(seed: int, final: float, *, cost: int = 10, length: int = 4) -> dict[str, Any]:
    """A straight curve, over batches and tokens."""
    curve = [
        {"spent": {"batches": u, "tokens": u * cost}, "figures": {"solver/pass@1": final * u / length}}
        for u in range(length + 1)
    ]
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
    # called from: (4.3027 + 1.0607) * 0.02 / sqrt(3) = 0.0619
    assert row["words"] == (
        "better by 10.0 points (95\u202f% interval +5.0 to +15.0 points, 3 seeds; 6.2 points or more would be "
        "significant, p below 0.033)"
    )
    assert row["seen"] == pytest.approx(0.0619, abs=1e-4)
    assert row["after"] == pytest.approx(mean_interval([0.4, 0.62, 0.78]).clip_to(0.0, 1.0).to_json())
    assert rows(two([0.3, 0.5], [0.4, 0.6]), "end", "base")["difference"] is None


# of 0.5, 1, 1.5: 1 + 4.3027 * 0.5 / sqrt(3) = 2.2421
@pytest.mark.parametrize(("last", "high"), [(1.0, 1.0), (1.5, 2.2421)])
def test_the_interval_of_an_unknown_figure_ends_at_one_where_all_its_values_are_shares(
    last: float, high: float
) -> None:
    compare = two([0.9, 0.9, 0.9], [0.5, 1.0, last])
    for found in compare["recipes"].values():
        for one in found["seeds"]:
            one |= {
                "curve": [],
                "before": {"a/metadata/b": 0.0},
                "after": {"a/metadata/b": one["after"]["solver/pass@1"]},
            }
    assert rows(compare, "end", "new")["after"]["high"] == pytest.approx(high, abs=1e-4)


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
    # 5 seeds with an interval of ± 5 points call from 5 * (1 + 0.941 / 2.776) = 6.7 points
    small = words(0.06, 0.01, 0.11, 5)
    assert (
        small.startswith("not significant: +6.0 points")
        and "less than the 6.7 points that would be significant (p below 0.021)" in small
    )
    assert "6.7 points or more would be significant (p below 0.021)" in words(0.02, -0.03, 0.07, 5)
    for n, said in ((1, "+10.0 points; one seed: an anecdote"), (2, "+10.0 points; 2 seeds: no verdict")):
        assert words(0.1, float("-inf"), float("inf"), n) == said
    assert words(0.0, 0.0, 0.0, 5) == "0.0 points; the same in every seed and problem, so no verdict"
    curve = difference_in_words(Estimate(value=0.1, low=0.05, high=0.15, n=5), "pass@1", verdict=False)
    assert curve == "+10.0 points (95\u202f% interval +5.0 to +15.0 points, 5 seeds)"


def test_problems_that_both_arms_met_are_paired_and_hold_the_interval_from_below() -> None:
    """Three seeds that agree by luck: each arm has 0.5, or 0.75, on four problems of each seed."""
    compare = two([0.5] * 3, [0.75] * 3)
    said = {"base": [1.0, 1.0, 0.0, 0.0], "new": [1.0, 1.0, 1.0, 0.0]}
    assert rows(compare, "end", "new")["words"].endswith("so no verdict")  # without the problems
    for name, values in said.items():
        for seed in compare["recipes"][name]["seeds"]:
            seed["problems"] = {"solver/pass@1": {str(i): v for i, v in enumerate(values)}}
    row = rows(compare, "end", "new")
    # differences 0, 0, 1, 0: variance 1/4, over 4 problems and 3 seeds; 4.3027 * sqrt(1/48) = 0.6210
    assert row["difference"]["value"] == 0.25 and row["difference"]["high"] == pytest.approx(0.25 + 0.6210, abs=1e-4)
    assert row["words"].startswith("no difference is shown")
    # 1, 1, 0, 0: variance 1/3; 4.3027 * sqrt(1/36) = 0.7171, and no accuracy is below 0 or above 1
    after = rows(compare, "end", "base")["after"]
    assert (after["value"], after["low"], after["high"]) == (0.5, 0.0, 1.0)


def test_equal_budgets_are_what_every_run_has_reached() -> None:
    # "new" costs 40 tokens a batch instead of 10, and both have 4 batches: equal tokens means 40, its first batch
    compare = two([0.4, 0.6], [0.8, 1.0], cost=40)
    assert budgets_of(runs_of(compare)) == {"batches": 4.0, "tokens": 40.0}
    assert rows(compare, "batches", "new")["after"]["value"] == pytest.approx(0.9)
    assert rows(compare, "tokens", "base")["after"]["value"] == pytest.approx(0.5)
    assert rows(compare, "tokens", "new")["after"]["value"] == pytest.approx(0.9 / 4)
    lines = comparison_table(compare)["lines"]
    assert lines[0] == "solver: pass@1, at the end of each run"
    assert len(lines) == 3 and lines[2].split()[:6] == ["new", "0.0", "%", "→", "90.0", "%"]


def test_band_by_hand() -> None:
    one, other = [(0.0, 0.0), (10.0, 1.0)], [(0.0, 0.0), (5.0, 1.0), (12.0, 1.0)]
    mean, spread = mean_band([one, other, other])
    assert mean == [(0.0, 0.0), (5.0, pytest.approx(2.5 / 3)), (10.0, 1.0)]  # over the range that all cover
    # at 5: 0.5, 1 and 1, deviation 0.288675, half width 4.3027 * 0.288675 / sqrt(3) = 0.71712
    assert spread[1][1] == pytest.approx(2.5 / 3 - 0.71712, abs=1e-4)
    assert mean_band([one, other])[1] == []  # two seeds have no band
    assert mean_band([one]) == (one, []) and mean_band([]) == ([], []) and mean_band([[], []]) == ([], [])
    assert mean_band([[(0.0, 1.0)], [(5.0, 1.0)]]) == ([], [])


def test_a_level_is_reached_where_the_line_first_passes_it() -> None:
    line = [(0.0, 0.1), (10.0, 0.3), (20.0, 0.2), (30.0, 0.6)]
    assert first_crossing(line, 0.2) == pytest.approx(
        5.0
    )  # half way up the first piece, not on the way down or up again
    assert first_crossing(line, 0.4) == pytest.approx(25.0)
    assert first_crossing(line, 0.3) == 10.0 and first_crossing(line, 0.1) == 0.0 and first_crossing(line, 0.05) == 0.0
    assert first_crossing(line, 0.7) is None and first_crossing([], 0.1) is None


def test_seeds_that_never_reach_a_level_are_counted_and_break_the_pairing() -> None:
    runs = runs_of(two([0.4, 0.4], [0.8, 0.3]))
    own, *rest = find_levels(runs, "batches", 4.0)
    assert own.value == pytest.approx(0.4) and own.name == "what base has after 4 batches"
    base, new = own.reached
    assert base.at == pytest.approx(4.0) and base.difference is None
    assert new.at == pytest.approx(4 * 0.4 / 0.55)  # the mean curve rises to 0.55
    assert new.seeds == {0: pytest.approx(2.0), 1: None} and new.difference is None
    assert new.in_words() == "3 (2 to 2 over 1 of 2 seeds)"
    low = next(level for level in rest if level.value == pytest.approx(0.2))
    # base needs 2 and 2, new needs 1 and 8/3: differences −1 and 2/3
    change = low.reached[1].difference
    assert change is not None and change.value == pytest.approx(-1 / 6) and change.n == 2


def test_headlines_stand_beside_each_other_from_start_to_end() -> None:
    after = {"refiner/pass@1": 0.1, "verifier/balanced_accuracy": 0.9, "meta/balanced_accuracy": 0.5, "gap": 0.25}
    after |= {"solver/greedy": 0.8, "solver/pass@8": 0.9, "solver/majority@8": 0.7}
    seeds = [
        {"seed": i, "before": {"solver/greedy": 0.5}, "after": after | {"solver/pass@1": value}}
        for i, value in enumerate((0.6, 0.8))
    ]
    head, [row] = headline_cells(with_table({"recipes": {"dsm": {"seeds": seeds}}}))
    assert head == ["recipe", "greedy", "pass@1", "pass@8", "maj@8", "verifier: verdicts", "called right minus right"]
    assert [cell.replace("\u202f", "") for cell in row] == [
        "dsm",
        "50.0% → 80.0%",
        "70.0%",
        "90.0%",
        "70.0%",
        "90.0%",
        "25.0%",
    ]
    seeds = [{"after": {"refiner/pass@1": 0.1, "meta/balanced_accuracy": 0.5}}] * 2
    head, [row] = headline_cells(with_table({"recipes": {"dsm": {"seeds": seeds}}}))
    assert head[1:] == ["pass@1", "meta: verdicts"]


def test_without_a_solver_the_headlines_are_of_the_first_role_by_name() -> None:
    after = {
        f"{role}/pass@1": share for role, share in zip("gfedcba", (0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1), strict=True)
    }
    _, [row] = headline_cells(with_table({"recipes": {"dsm": {"seeds": [{"after": after}] * 2}}}))
    assert row[1].replace("\u202f", "") == "10.0%"


def test_costs_are_four_and_operations_by_their_parts() -> None:
    spent = {"batches": 20.0, "tokens": 41000.0, "flops": 2.5e12, "seconds": 61.4}
    run_ = {"spent": spent, "flops": {"sampling": 1.5e12, "learning": 1e12, "prefill": 0, "scoring": 0}, "updates": 17}
    other = {**run_, "updates": 18, "spent": {**spent, "flops": 3.5e12}}
    head, [row] = cost_cells({"recipes": {"grpo": {"seeds": [run_, other]}}})
    assert head[:5] == ["recipe", "batches", "updates", "tokens", "FLOPs"] and head[-1] == "seconds"
    assert head[5:-1] == ["of them prefill", "of them sampling", "of them scoring", "of them learning"]
    assert row == [
        "grpo",
        "20",
        "18",
        "41\u202f000",
        "3.00e12",
        "0.0\u202f%",
        "60.0\u202f%",
        "0.0\u202f%",
        "40.0\u202f%",
        "61",
    ]


def test_a_rate_at_the_edge_is_said_to_be_one() -> None:
    found = {"measure": "solver/pass@1", "scores": [[1e-4, 0.5], [2e-4, 0.6]], "chosen": 2e-4, "edge": True}
    head, [row] = rate_cells({"rates": {"grid": [2e-4, 1e-4], "arms": {"grpo": found}}})
    assert head == ["recipe", "figure", "0.0001", "0.0002", "taken"] and row[4].startswith("0.0002 (edge of the grid")
    assert row[2:4] == ["50.0\u202f%", "60.0\u202f%"] and rate_cells({"rates": None})[1] == []
