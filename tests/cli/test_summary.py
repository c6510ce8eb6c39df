"""What a run prints at its end."""

from __future__ import annotations

from cotrain.cli.run import print_summary


def test_the_table_says_how_many_each_figure_rests_on(capsys):
    before = {"solver/pass@1": {"value": 0.0, "low": 0.0, "high": 0.49, "n": 4}}
    after = {"solver/pass@1": {"value": 0.5, "low": 0.15, "high": 0.85, "n": 4}}
    print_summary({"recipe": "grpo", "seed": 0, "steps": 2, "tokens": 100, "before": before, "after": after})
    head, row = capsys.readouterr().out.splitlines()[-2:]
    assert head.split() == ["held-out", "before", "after", "n"]
    assert row.split()[-1] == "4"
