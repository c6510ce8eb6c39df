"""`view`, `why` and `diff` open rollouts that another trainer wrote as they open runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cotrain.cli.main import main
from cotrain.reports.foreign import as_run_directory, is_foreign
from cotrain.reports.places import find_places
from cotrain.reports.runs import open_run
from tests.reports.fake_run import write_fake_run
from tests.sentences import command_refuses, refuses

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "foreign"
TRL, VERIFIERS = ASSETS / "trl", ASSETS / "verifiers"


def test_why_lists_where_judge_and_truth_differ(capsys):
    assert main(["why", str(VERIFIERS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "judge and truth differ: 2 answers, the latest first",
        "`cotrain why DIR STEP:TASK:MEMBER` shows one",  # its trainer counts the steps
    ]
    assert lines[2:] == [
        "       1:0:1  accepted, wrong: 6  (What is 2 + 3?)",
        "       1:1:1  accepted, wrong: 20  (What is 4 + 5?)",
    ]
    assert main(["why", str(VERIFIERS), "--json"]) == 0
    assert [one["rollout"] for one in json.loads(capsys.readouterr().out)] == ["1:0:1", "1:1:1"]


def test_why_tells_agreement_from_nothing_to_compare(tmp_path, capsys):
    """A run without a verifier was said to have no answer on which judge and truth differ."""
    rows = [{"prompt": f"What is {n} + 1?", "completion": f"\\boxed{{{n + 1}}}", "reward": 1.0} for n in range(3)]
    without_truth, agreeing = tmp_path / "rollouts.jsonl", tmp_path / "graded.jsonl"
    without_truth.write_text("".join(json.dumps(row) + "\n" for row in rows))
    agreeing.write_text("".join(json.dumps(row | {"correct": True}) + "\n" for row in rows))
    assert main(["why", str(without_truth)]) == 0
    nothing, how = capsys.readouterr().out.splitlines()
    assert nothing == "no answer has both a verdict and a truth, so there is nothing to compare"
    assert "0:0:0" in how
    assert main(["why", str(agreeing)]) == 0
    assert capsys.readouterr().out == "judge and truth agree on 3 answers, all that have both\n"


def test_why_shows_one_rollout(capsys):
    assert main(["why", str(VERIFIERS), "1:0:1"]) == 0
    said = capsys.readouterr().out
    assert "rollout 1:0:1, of step 1," in said  # as its trainer counts
    assert "reward reward 1" in said and "written: So it is \\boxed{6}. I am certain." in said
    assert '"correct": false' in said and "7 words sampled" in said


def test_why_of_a_file_alone(capsys):
    pytest.importorskip("pyarrow")
    assert main(["why", str(TRL / "completions_00001.parquet"), "1:0:0"]) == 0
    assert "<step>" in capsys.readouterr().out
    command_refuses(["why", str(TRL), "9:0:0"], "E_NO_SUCH_ROLLOUT: 9:0:0 | 1 to 3", capsys)


def test_diff_sets_two_files_beside_each_other(capsys):
    assert main(["diff", str(VERIFIERS), str(VERIFIERS / "traces.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "[policy, right, reward 1, style 0.5]" in said
    assert "rollouts of another trainer have no held-out figures" in said
    assert f"{VERIFIERS.name}/traces.jsonl" in said


def test_the_viewer_has_its_documents():
    with as_run_directory(VERIFIERS) as directory:
        (place,) = find_places(directory)
        run = open_run(place.path)
        run.watch_all()
        overview = run.overview()
        assert overview["roles"] == ["judge", "policy"] and overview["run"]["ended"]
        assert overview["training"]["series"]["policy/accuracy"] == [0.5, 0.5]
        while run.rollouts.read_some():
            pass
        counts = run.verifier_document()["judges"]["judge"]
        assert sum(window["fp"] for window in counts) == 2 and sum(window["tn"] for window in counts) == 2
        rollout = run.rollout(1, 0, 1)
        assert "ids" not in rollout["traces"][0] and rollout["unit"] == "word"
    assert not directory.exists()


def test_what_is_foreign(tmp_path):
    assert is_foreign(TRL) and is_foreign(TRL / "completions_00001.parquet")
    assert not is_foreign(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "recipe.json").write_text("{}")
    assert not is_foreign(tmp_path)


def test_rollouts_that_need_flags_are_for_the_audit(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("q,said\na,b\n", encoding="utf-8")
    with refuses("E_RESPONSE_COLUMN", names=("q, said", "--response-column", "--out DIR")), as_run_directory(file):
        pass


def test_a_run_that_an_audit_wrote_is_opened_and_not_resumed(tmp_path, capsys):
    out = tmp_path / "kept"
    assert main(["audit", str(VERIFIERS), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["why", str(out), "1:0:1"]) == 0
    command_refuses(["audit", str(VERIFIERS), "--out", str(out)], "E_OUT_IS_NOT_EMPTY", capsys, names=str(out))
    assert main(["resume", str(out)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["why", str(VERIFIERS)], ["diff", str(VERIFIERS), str(TRL)]], ids=["why", "diff"])
def test_no_torch_is_loaded(words):
    pytest.importorskip("pyarrow")
    code = (
        "import sys; from cotrain.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or bool({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_why_of_a_run_of_ours_lists_them_too(tmp_path, capsys):
    write_fake_run(tmp_path / "run", steps=8, episodes=12)
    assert main(["why", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found and all(one["said"] is not one["right"] for one in found)
    steps = [int(one["rollout"].split(":")[0]) for one in found]
    assert steps == sorted(steps, reverse=True)
    assert main(["why", str(tmp_path / "run"), found[0]["rollout"]]) == 0


def test_why_says_how_many_there_are_and_cuts_each_at_the_width_of_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    write_fake_run(tmp_path / "run", steps=30, episodes=40)
    assert main(["why", str(tmp_path / "run"), "--json"]) == 0
    count = len(json.loads(capsys.readouterr().out))
    assert count > 20
    assert main(["why", str(tmp_path / "run")]) == 0
    head, how, *rows = capsys.readouterr().out.splitlines()
    assert head == f"judge and truth differ: 20 of {count} answers, the latest first"
    assert "0:0:0 is of step 1" in how and len(rows) == 20
    assert all(len(row) <= 70 for row in rows) and "more characters" not in "".join(rows)


def test_a_file_that_needs_a_flag_is_told_the_command_that_has_it(tmp_path, capsys):
    (tmp_path / "judged.csv").write_text("prompt,said\n1 + 1?,2\n")
    for command in ("why", "view"):
        code = f"E_RESPONSE_COLUMN: prompt, said | `cotrain audit {tmp_path}/judged.csv --out DIR` | --response-column"
        assert "name it with" not in command_refuses([command, tmp_path / "judged.csv"], code, capsys)


def test_diff_finds_a_problem_in_whatever_steps(tmp_path, capsys):
    answers = {"a": [("q1", "one"), ("q2", "two")], "b": [("q3", "three"), ("q4", "four"), ("q1", "un")]}
    for name, rows in answers.items():
        lines = [json.dumps({"prompt": q, "response": text, "score": 1, "step": i}) for i, (q, text) in enumerate(rows)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    assert main(["diff", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "rollouts 0:0:0 of A and 2:0:0 of B" in said
    assert "one" in said and "│" in said and "un" in said
