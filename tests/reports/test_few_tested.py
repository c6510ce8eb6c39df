"""A comparison whose seeds are tested on next to nothing says so wherever it is read first."""

from __future__ import annotations

from typing import Any

from cotrain.reports.compare_markdown import comparison_markdown
from cotrain.reports.compare_overview import few_tested_words, needed_cells
from cotrain.reports.compare_table import comparison_table, runs_of
from cotrain.reports.compared_runs import comparison_tables

SETTINGS = {
    **{name: {"generator": 1.0} for name in ("learning_rate", "lr_warmup", "temperature")},
    **{"problems": 2, "group_size": 4, "evaluation_group_size": 2},
}


def compared(test_problems: int) -> dict[str, Any]:
    def arm(after: float) -> dict[str, Any]:
        figures = {"before": {"solver/pass@1": {"value": 0.0}}, "after": {"solver/pass@1": {"value": after}}}
        return {"settings": SETTINGS | {"test_problems": test_problems}, "seeds": [{"seed": 0, "curve": [], **figures}]}

    compare = {"equal": "batches", "batches": 2, "recipes": {"grpo": arm(1.0), "tango": arm(0.0)}}
    return compare | comparison_table(compare)


def test_it_stands_in_the_headline_and_above_the_table() -> None:
    compare = compared(1)
    words = "1 test problem a seed: nothing can be concluded"
    assert few_tested_words(compare) == words
    page = comparison_tables(compare, runs_of(compare))
    assert page["about"][0] == f"{words}." and page["said"][0]["words"].startswith(f"{words}; ")
    assert comparison_markdown(compare, []).index(words) < comparison_markdown(compare, []).index("| recipe |")


def test_enough_problems_are_no_word_worth() -> None:
    compare = compared(20)
    assert few_tested_words(compare) == ""
    page = comparison_tables(compare, runs_of(compare))
    assert "concluded" not in f"{page['about']} {page['said']}"


def test_of_two_seeds_nothing_is_said_of_what_was_needed() -> None:
    points = [{"spent": {"batches": at}, "figures": {"solver/pass@1": at / 10}} for at in (0, 10)]

    def head_and_rows(seeds: int) -> tuple[list[str], list[list[str]]]:
        found = [{"seed": seed, "curve": points, "before": {}, "after": {}} for seed in range(seeds)]
        return needed_cells(runs_of({"recipes": {"grpo": {"seeds": found}}}), {"batches": 10})

    assert head_and_rows(2)[1] == [] and head_and_rows(3)[1] != []
