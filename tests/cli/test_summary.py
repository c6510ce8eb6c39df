"""What a run prints at its end, from Python as from the command."""

from __future__ import annotations

from pathlib import Path

import pytest

import cotrain
from cotrain.recipes.grpo import grpo
from cotrain.reports.summary import summary_lines
from tests.helpers import TINY


def test_the_table_says_how_many_each_figure_rests_on() -> None:
    before = {"solver/pass@1": {"value": 0.0, "low": 0.0, "high": 0.49, "n": 4}}
    after = {"solver/pass@1": {"value": 0.5, "low": 0.15, "high": 0.85, "n": 4}}
    lines = summary_lines({"recipe": "grpo", "seed": 0, "steps": 2, "tokens": 100, "before": before, "after": after})
    title, head, row = lines
    assert title == "grpo: 2 steps, 100 tokens, seed 0"
    assert head.split() == ["held-out", "before", "after", "n"]
    assert row.split()[-1] == "4"


def test_a_run_from_python_prints_its_figures_and_its_report_as_the_command_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {"steps": 1, "tasks_per_step": 1, "group_size": 2, "evaluation_tasks": 1, "evaluate_every": 0}
    cotrain.run(grpo(model=TINY, **tiny), out=tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"report: {tmp_path / 'run' / 'report.html'}"
    assert any(line.startswith("held-out") for line in lines) and any(line.startswith("solver/") for line in lines)
    cotrain.resume(tmp_path / "run")
    assert capsys.readouterr().out.splitlines()[-1] == lines[-1]
