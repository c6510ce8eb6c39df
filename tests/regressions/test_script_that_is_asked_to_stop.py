"""A script of the user's that calls ``cotrain.run`` and gets SIGTERM ends as the command does: a line that says how to
go on, the exit code of the signal, and no traceback."""

import signal
import subprocess
import sys

import pytest

from tests.helpers import TINY

RUN = """
import signal, sys
import cotrain
from cotrain.recipes.grpo import grpo
from cotrain.reports.live import LiveTable, budgets_of
from cotrain.data.word_problems.source import study_problems


class Stopping(LiveTable):
    def update(self, row):
        super().update(row)
        signal.raise_signal(getattr(signal, sys.argv[2]))


recipe = grpo(
    model=MODEL, steps=3, tasks=study_problems((1, 1)), tasks_per_step=1, group_size=2, evaluation_tasks=1, kl=0.0
)
try:
    with Stopping(budgets_of(recipe)) as live:
        cotrain.run(recipe, out=sys.argv[1], observer=live)
finally:
    print("what is left to do is done")
"""


@pytest.mark.whole
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_it_ends_without_a_traceback(name, tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(RUN.replace("MODEL", repr(str(TINY))))
    run = subprocess.run(
        [sys.executable, script, tmp_path / "run", name], capture_output=True, text=True, timeout=300, check=False
    )
    said = run.stdout + run.stderr
    assert run.returncode == 128 + getattr(signal, name), said
    assert "nothing is lost. Go on with: cotrain resume" in said and "what is left to do is done" in run.stdout
    assert "Traceback" not in said and "Interrupted" not in said
    assert (tmp_path / "run" / "report.html").is_file()
