"""``docs/new-task-source.md``: a source in a user's file, passed as an object, in a run that is killed and resumed."""

import os
import signal
import subprocess
import sys

import pytest

from cotrain.cli.main import main
from tests.helpers import TINY
from tests.runs.test_run import digest
from tests.sentences import command_refuses
from tests.test_docs_pages import ROOT, blocks

KILLED = """
import os, signal
from cotrain import api
from cotrain.trainer import trainer

step = trainer.CoTrainer.step

def killed(self):
    if self.finished_steps == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self)

trainer.CoTrainer.step = killed
"""


def played(place, before=""):
    """Run the page's script in a directory with the page's source."""
    source, script = blocks("new-task-source", "python")
    place.mkdir()
    (place / "reversals.py").write_text(source)
    (place / "script.py").write_text(before + script.replace("grpo(", f"grpo(model={TINY!r}, "))
    command = [sys.executable, "script.py"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=place, env=here, capture_output=True, text=True, timeout=300)


@pytest.mark.whole
def test_a_run_on_the_pages_source_goes_on_where_it_was_killed(tmp_path, monkeypatch, capsys):
    done = played(tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    assert played(tmp_path / "killed", KILLED).returncode == -signal.SIGKILL
    folder = tmp_path / "killed" / "runs" / "short"
    assert not (folder / "summary.json").exists()
    monkeypatch.chdir(tmp_path)  # the file is found from anywhere
    assert main(["resume", str(folder)]) == 0, capsys.readouterr().err
    assert digest(folder) == digest(tmp_path / "whole" / "runs" / "short")


@pytest.mark.whole
def test_a_source_can_be_named_on_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "reversals.py").write_text(blocks("new-task-source", "python")[0])
    monkeypatch.chdir(tmp_path)
    words = ["run", "grpo", "--out", "x", "--dry-run", "--json", "--tasks"]
    assert main([*words, "reversals.py:Reversals"]) == 0
    assert '"letters": 5' in capsys.readouterr().out
    command_refuses([*words, "reversals.py:Reversal"], "E_NO_SUCH_CLASS: 'Reversal' | 'Reversals'", capsys)
    command_refuses([*words, "gone.py:Reversals"], "E_CODE_FILE_MISSING: gone.py", capsys)
