"""The same evaluation with one more sample, or of the next checkpoint, removed all samples of the one before, and so
did attacks and crossed play; two evaluations at once mixed their rows; with --json nobody heard which rows of the data
were left out; and a role that answers no problems was named after all of them had been played."""

from __future__ import annotations

import json

import pytest

from cotrain.analysis.benchmarks import SuiteOptions, evaluate_suite
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.core.errors import RunDirectoryError
from cotrain.data.suite_files import load_suite
from cotrain.grading.pool import AnswerGrader
from cotrain.recipes.tango import tango
from cotrain.runs.directory import RunDirectory
from cotrain.runs.run import start_run
from cotrain.storage.lock import RunLock
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses
from tests.test_suites import answers_from, cast

GOLD = {"P1": "18", "P2": "5"}
ANSWERS = {"P1": ["18", "17", "18", "3"], "P2": ["4", "5", "4", "5"]}


@pytest.fixture
def tasks(tmp_path):
    sheet = tmp_path / "sheet.jsonl"
    sheet.write_text("".join(json.dumps({"question": q, "answer": gold}) + "\n" for q, gold in GOLD.items()))
    return load_suite("jsonl", [str(sheet)], AnswerGrader())


def play(folder, tasks, answers, told, *, samples, **settings):
    solver = cast(answers_from({problem: list(own) for problem, own in answers.items()}))
    options = SuiteOptions(samples=samples)
    path = folder / "suite-jsonl.jsonl"
    return evaluate_suite(path, "jsonl", tasks, solver, options, {"samples": samples, **settings}, told.append)


def test_samples_of_other_settings_are_kept_and_come_back(tasks, tmp_path):
    folder = tmp_path / "scores"
    folder.mkdir()
    told: list[str] = []
    first = play(folder, tasks, ANSWERS, told, samples=3, step=5)
    (folder / "suite-jsonl.json").write_text('{"step": 5}')
    bytes_of_first = (folder / "suite-jsonl.jsonl").read_bytes()

    fewer = {problem: answers[:2] for problem, answers in ANSWERS.items()}
    play(folder, tasks, fewer, told, samples=1, step=6)
    assert "made with other settings (samples, step); it is now" in next(line for line in told if "note" in line)
    (rows,) = (folder / "earlier").glob("*.jsonl")
    assert rows.read_bytes() == bytes_of_first
    assert rows.with_suffix(".json").read_text() == '{"step": 5}' and not (folder / "suite-jsonl.json").exists()

    nobody_answers: dict[str, list[str]] = {}
    assert play(folder, tasks, nobody_answers, told, samples=3, step=5) == first
    assert (folder / "suite-jsonl.jsonl").read_bytes() == bytes_of_first
    assert (folder / "suite-jsonl.json").read_text() == '{"step": 5}'
    assert len(list((folder / "earlier").glob("*.jsonl"))) == 1  # now those of one sample


def test_a_file_of_another_kind_is_not_lost(tasks, tmp_path):
    (tmp_path / "suite-jsonl.jsonl").write_text('{"my": "notes"}\n{"of": "mine"}\n')
    told: list[str] = []
    play(tmp_path, tasks, ANSWERS, told, samples=1)
    (notes,) = (tmp_path / "earlier").iterdir()
    assert notes.read_text() == '{"my": "notes"}\n{"of": "mine"}\n'


def test_two_at_once_are_refused_before_a_model_is_loaded(tmp_path, monkeypatch, capsys):
    data = tmp_path / "sums.jsonl"
    data.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    words = ["eval", TINY, "--suite", "jsonl", "--data", str(data), "--out", str(tmp_path / "scores")]
    lock = RunLock(tmp_path / "scores", ".suite-jsonl.lock")
    monkeypatch.setattr("cotrain.runs.opening.load_trainer", None)
    command_refuses(words, "E_RUN_DIRECTORY_IN_USE: 'jsonl' | scores", capsys)
    lock.release()
    with RunLock(tmp_path / "scores"), RunLock(tmp_path / "scores", ".suite-jsonl.lock"):
        pass  # a run in the same directory is no hindrance
    with RunLock(tmp_path / "scores"), pytest.raises(RunDirectoryError):
        RunLock(tmp_path / "scores")


def test_with_json_what_is_left_out_is_said_on_stderr(tmp_path, capsys):
    data = tmp_path / "sums.jsonl"
    data.write_text('{"question": "1 + 1?", "answer": "2", "level": 3}\n{"question": "?", "answer": null}\n')
    words = ["eval", TINY, "--suite", "jsonl", "--data", str(data), "--out", str(tmp_path / "scores"), "--lenient"]
    assert main([*words, "--samples", "0", "--max-tokens", "8", "--answer-format", "tags", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["settings"]["problems"] == 1
    assert "1 malformed row" in err or "row 2" in err
    assert "columns not read: level" in err
    assert sorted(path.name for path in (tmp_path / "scores").iterdir()) == ["suite-jsonl.json", "suite-jsonl.jsonl"]


def test_figures_of_an_earlier_measurement_are_kept(tmp_path, capsys):
    """`eval`, `attack` and `xplay` of the next checkpoint wrote over those of the one before."""
    folder = RunDirectory(tmp_path)
    folder.write_measurement("attack.json", {"step": 25})
    folder.write_measurement("attack.json", {"step": 25})
    assert not (tmp_path / "earlier").exists() and capsys.readouterr().err == ""
    folder.write_measurement("attack.json", {"step": 50})
    (kept,) = (tmp_path / "earlier").iterdir()
    assert json.loads(kept.read_text()) == {"step": 25} and kept.name.startswith("attack-")
    assert json.loads((tmp_path / "attack.json").read_text()) == {"step": 50}
    assert "attack.json held other figures, which are now in" in capsys.readouterr().err


@pytest.mark.whole
def test_a_role_that_answers_nothing_is_refused_before_any_problem(tmp_path, monkeypatch, capsys):
    small = {"tasks_per_step": 2, "group_size": 2, "reviews": 1, "kl": 0.0, "evaluation_tasks": 1}
    recipe = tango(model=TINY, tasks=EASY, steps=2, warmup=0, ratio=(1, 1), **small)
    start_run(override(recipe, ["evaluation.splits=[]", "evaluation.group_size=1"]), tmp_path / "run")
    played: list[int] = []
    evaluate = CoTrainer.evaluate

    def evaluate_and_count(self, split, count, *, group_size=None):
        played.append(count * group_size)
        return evaluate(self, split, count, group_size=group_size)

    monkeypatch.setattr(CoTrainer, "evaluate", evaluate_and_count)
    words = ["eval", str(tmp_path / "run"), "--samples", "64", "--problems", "32", "--solver", "verifier"]
    command_refuses(words, "E_UNKNOWN_ROLE: verifier | solver", capsys)
    assert played == []
