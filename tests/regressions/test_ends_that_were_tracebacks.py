"""Memory that ran out at the last measurement was a traceback, and a metrics.jsonl that went away no word at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotrain.cli.main import main
from cotrain.models.load import load_model
from cotrain.recipes.grpo import grpo
from cotrain.runs import run as loop
from cotrain.runs.log import SilentObserver
from cotrain.storage.file_ops import GrowingFileHash
from cotrain.storage.jsonl import JsonlWriter
from tests.helpers import EASY, TINY
from tests.sentences import refuses

ROOM = {"model": TINY, "tasks_per_step": 1, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-3, "kl": 0.0, "steps": 2}


def brief():
    made = grpo(tasks=EASY, **ROOM)
    return replace(made, evaluation=replace(made.evaluation, group_size=1, greedy=False, splits=()))


class Removes(SilentObserver):
    """Takes the file away when this is said, or behind the first step."""

    def __init__(self, path, when):
        self.path, self.when = path, when

    def message(self, text):
        if text.startswith(self.when):
            self.path.unlink()

    def update(self, row):
        if self.when == "step":
            self.when = ""
            self.path.unlink()
            self.path.write_text("")  # another file of that name


@pytest.mark.whole
@pytest.mark.parametrize("when", ["step", "measuring the end"])
def test_metrics_that_are_removed_end_the_run_in_one_line(tmp_path, when):
    metrics = tmp_path / "run" / "metrics.jsonl"
    with refuses("E_RUN_FILE_REPLACED", names=str(metrics)):
        loop.start_run(brief(), tmp_path / "run", observer=Removes(metrics, when))
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_writer_that_is_watched_and_one_that_is_not(tmp_path):
    for watched in (True, False):
        with JsonlWriter(tmp_path / "rows", is_watched=watched) as writer:
            writer.append({"step": 0})
            (tmp_path / "rows").unlink()
            if not watched:
                writer.append({"step": 1})
                continue
            with refuses("E_RUN_FILE_REPLACED"):
                writer.append({"step": 1})
            with refuses("E_RUN_FILE_REPLACED"):
                writer.sync()


def test_a_file_that_grows_does_not_shrink(tmp_path):
    (tmp_path / "rows").write_text("one\ntwo\n")
    growing = GrowingFileHash(tmp_path / "rows")
    assert growing.digest_all().bytes == 8
    (tmp_path / "rows").write_text("one\n")
    with refuses("E_RUN_FILE_REPLACED"):
        growing.digest_all()


class Short:
    """What transformers loads with, where there is no memory."""

    @staticmethod
    def from_pretrained(*_, **__):
        raise MemoryError


@pytest.mark.whole
def test_memory_that_runs_out_as_the_start_is_read_again_leaves_a_figure_out(tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    told = []

    class Listens(SilentObserver):
        def message(self, text):
            told.append(text)
            if text.startswith("measuring the end"):
                monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", Short.from_pretrained)

    outcome = loop.start_run(brief(), tmp_path / "run", observer=Listens())
    assert "solver/pass@1" in outcome.summary["after"] and "generator/update_sparsity" not in outcome.summary["after"]
    assert any("update_sparsity is not measured" in text and "memory ran out" in text for text in told)
    with refuses("E_MODEL_UNREADABLE", names="memory ran out"):
        load_model(TINY)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_runs_out_anywhere_is_one_line(error, tmp_path, capsys, monkeypatch):
    from cotrain.reports import any_report

    def short(*_, **__):
        raise error

    monkeypatch.setattr(any_report, "write_any_page", short)
    assert main(["report", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "cotrain: memory ran out; free some, and go on with `cotrain resume`\n"


OWN = """
import sys
from dataclasses import replace
from cotrain import recipe, RunConfig
from cotrain.recipes.grpo import grpo

def counts(episodes):
    raise KeyError("vote")

@recipe(steps=1)
def measured(run: RunConfig):
    made = grpo(**run.values())
    return replace(made, evaluation=replace(made.evaluation, measures=(counts,), splits=()))

@recipe(steps=1)
def leaves(run: RunConfig):
    sys.exit(0)
"""


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "place"),
    [("measured", "mine.py, line 8: KeyError: 'vote'"), ("leaves", "mine.py, line 17: SystemExit: 0")],
)
def test_what_a_method_of_the_user_s_own_raises_elsewhere_is_one_line(name, place, tmp_path, capsys):
    """The error is the user's: place, kind and words are all that is said of it."""
    (tmp_path / "mine.py").write_text(OWN)
    flags = ["--model", TINY, "--kl", "0", "--tasks-per-step", "1", "--group-size", "2", "--evaluation-tasks", "1"]
    assert main(["run", f"{tmp_path / 'mine.py'}:{name}", "--out", str(tmp_path / "run"), *flags]) == 2
    said = capsys.readouterr().err
    assert place in said and len(said.splitlines()) == 1, said
