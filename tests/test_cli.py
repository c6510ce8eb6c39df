"""Bad input: one clear line on stderr, exit code 2, nothing lost."""

import json
import subprocess
import sys

import pytest

from cotrain.cli.main import main


def fails(capsys, *words):
    """Run a command line that must fail; return its one line."""
    assert main(list(map(str, words))) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_import_is_cheap():
    code = (
        "import time; t = time.perf_counter(); import cotrain, sys; print(time.perf_counter() - t, 'torch' in "
        "sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    torch = run.stdout.split()[1]
    assert torch == "False"


@pytest.mark.whole
@pytest.mark.parametrize(
    "words, expected",
    [
        (["rnu"], "unknown command 'rnu'; did you mean 'run'"),
        (["run"], "name a recipe first"),
        (["run", "tanog", "--out", "x"], "unknown recipe 'tanog'; did you mean 'tango'"),
        (["run", "tango"], "the following arguments are required: --out"),
        (["run", "tango", "--out", "x", "--stesp", "3"], "unknown argument '--stesp'; did you mean --steps"),
        (["run", "debate", "--out", "x", "--game", "solve"], "`cotrain run debate_solve`"),
        (["run", "debate", "--out", "x", "--game=solve"], "`cotrain run debate_solve`"),
        (["compare", "grpo", "--out", "x", "--evaluation-tasks", "4"], "give --set evaluation.tasks=N"),
        (["compare", "grpo", "--out", "x", "--group-size", "4"], "as in RECIPE:group_size=4"),
        (["run", "tango", "--out", "x", "--steps", "many"], "argument --steps: expected a whole number, found 'many'"),
        (["run", "tango", "--out", "x", "--set", "steps=0"], "steps is 0, expected at least 1"),
        (["run", "tango", "--out", "x", "--set", "stpes=1"], "did you mean the flag `--steps 1`"),
        (["run", "tango", "--out", "x", "--verifier", "frozne"], "did you mean 'frozen'? (there are: frozen, trained)"),
        (["run", "tango", "--out", "x", "--tasks", "gsm8k"], "--data"),
        (["run", "tango", "--out", "x", "--device", "quantum"], "expected auto, cpu, cuda, cuda:N or mps"),
        (["run", "demo", "--out", "x", "--operations", "2", "2"], "has no parameter 'tasks'"),
        (["run", "tango", "--out", "x", "--checkpoint-every", "0"], "expected at least 1"),
        (["run", "tango", "--out", "x", "--seed", "-1"], "seed is -1, expected at least 0"),
        (["list", "--jsno"], "unknown argument '--jsno'; did you mean --json?"),
        (["list", "grpo"], "`cotrain run grpo --help` lists what a recipe takes"),
        (["resume", "nowhere"], "no such directory"),
        (["compare", "grpo", "--seeds", "0", "--out", "x"], "--seeds: '0' is too small, expected at least 1"),
        (["view", "x", "--port", "99999"], "--port: '99999' is too large, expected at most 65535"),
        (["sft", "--model", "./nowhere", "--out", "x"], "no such directory"),
        (["teach", "verifier", "--reviews", "-1", "--out", "x"], "--reviews: '-1' is too small, expected at least 0"),
    ],
)
def test_one_line_says_what_is_wrong(words, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert expected in fails(capsys, *words)


def test_a_bad_model_leaves_no_run_behind(capsys, tmp_path):
    out = tmp_path / "run"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert "model" in fails(capsys, "run", "grpo", "--model", tmp_path / "model", "--out", out)
    assert not out.exists() or not any(out.iterdir())


def test_a_malformed_row_is_named_by_row_and_column(capsys, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "1+1?", "answer": "2"}\n{"question": "2+2?", "answer" "4"}\n')
    line = fails(capsys, "run", "grpo", "--tasks", "jsonl", "--data", data, "--out", tmp_path / "run")
    assert "row 2" in line and "column" in line and line.endswith("set such rows aside with --lenient")
    data.write_text('{"question": "1+1?", "anwser": "2"}\n')
    assert "did you mean" in fails(capsys, "run", "grpo", "--tasks", "jsonl", "--data", data, "--out", tmp_path / "run")


@pytest.mark.whole
def test_malformed_rows_are_set_aside_when_asked(tmp_path):
    rows = [json.dumps({"question": f"What is {n} and 2?", "answer": str(n + 2)}) for n in range(60)]
    (tmp_path / "data.jsonl").write_text("\n".join(["{broken", *rows, "[]"]))
    words = ["run", "grpo", "--data", str(tmp_path / "data.jsonl"), "--lenient", "--out", str(tmp_path / "run")]
    assert main([*words, "--steps", "1", "--tasks-per-step", "2", "--evaluation-tasks", "2"]) == 0
    aside = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    assert [one["row"] for one in aside] == ["{broken", "[]"]
    assert aside[1]["where"] == f"{tmp_path / 'data.jsonl'}, row 62"


def test_list_and_dry_run_print_what_would_run(capsys):
    assert main(["list", "--json"]) == 0
    recipes = json.loads(capsys.readouterr().out)["recipes"]
    assert "tango" in [one["name"] for one in recipes]
    assert [one for one in recipes if not one["about"].endswith((".", "?"))] == []  # whole sentences
    assert main(["run", "tango", "--out", "unused", "--steps", "47", "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["steps"] == 47 and shown["origin"]["target"] == "tango"
