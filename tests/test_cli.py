"""Bad input: one clear line on stderr, exit code 2, nothing lost."""

import json
import subprocess
import sys

import pytest

from cotrain.cli.main import main
from tests.sentences import command_refuses


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
    "words, code",
    [
        (["rnu"], "E_UNKNOWN_COMMAND: 'rnu' | 'run'"),
        (["run"], "E_RECIPE_NOT_NAMED: cotrain list"),
        (["run", "tanog", "--out", "x"], "E_UNKNOWN_RECIPE: 'tanog' | 'tango'"),
        (["run", "tango"], "E_COMMAND_LINE: required: --out"),
        (["run", "tango", "--out", "x", "--stesp", "3"], "E_COMMAND_LINE: '--stesp' | --steps"),
        (["run", "debate", "--out", "x", "--game", "solve"], "E_COMMAND_LINE: `cotrain run debate_solve`"),
        (["run", "debate", "--out", "x", "--game=solve"], "E_COMMAND_LINE: `cotrain run debate_solve`"),
        (["run", "debate", "--out", "x", "--smoke", "--game", "solve"], "E_COMMAND_LINE: `cotrain run debate_solve`"),
        (["compare", "grpo", "--out", "x", "--evaluation-tasks", "4"], "E_COMMAND_LINE: --set evaluation.tasks=N"),
        (["compare", "grpo", "--out", "x", "--group-size", "4"], "E_COMMAND_LINE: RECIPE:group_size=4"),
        (["run", "tango", "--out", "x", "--steps", "many"], "E_COMMAND_LINE: --steps | 'many'"),
        (["run", "tango", "--out", "x", "--set", "steps=0"], "E_RECIPE_SETTING_RANGE: steps is 0"),
        (["run", "tango", "--out", "x", "--set", "stpes=1"], "E_NO_SUCH_SETTING: 'stpes=1' | `--steps 1`"),
        (["run", "tango", "--out", "x", "--verifier", "frozne"], "E_UNKNOWN_CHOICE: 'frozne' | 'frozen'"),
        (["run", "tango", "--out", "x", "--tasks", "gsm8k"], "E_TASKS_NEED_DATA: 'gsm8k' | --data"),
        (["run", "tango", "--out", "x", "--device", "quantum"], "E_DEVICE_NAME: 'quantum'"),
        (["run", "demo", "--out", "x", "--operations", "2", "2"], "E_RECIPE_WITHOUT_TASKS: 'demo' | --operations"),
        (["run", "tango", "--out", "x", "--checkpoint-every", "0"], "E_COMMAND_LINE: --checkpoint-every | '0'"),
        (["run", "tango", "--out", "x", "--seed", "-1"], "E_RECIPE_SETTING_RANGE: seed is -1"),
        (["list", "--jsno"], "E_COMMAND_LINE: '--jsno' | --json?"),
        (["list", "grpo"], "E_COMMAND_LINE: `cotrain run grpo --help`"),
        (["resume", "nowhere"], "E_NOT_RUN_DIRECTORY: nowhere"),
        (["compare", "grpo", "--seeds", "0", "--out", "x"], "E_COMMAND_LINE: --seeds: '0'"),
        (["view", "x", "--port", "99999"], "E_COMMAND_LINE: --port: '99999' | 65535"),
        (["sft", "--model", "./nowhere", "--out", "x"], "E_MODEL_NOT_FOUND: './nowhere'"),
        (["teach", "verifier", "--reviews", "-1", "--out", "x"], "E_COMMAND_LINE: --reviews: '-1'"),
    ],
)
def test_one_line_says_what_is_wrong(words, code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command_refuses(words, code, capsys)


def test_a_bad_model_leaves_no_run_behind(capsys, tmp_path):
    out = tmp_path / "run"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    command_refuses(["run", "grpo", "--model", tmp_path / "model", "--out", out], "E_MEMORY_FOR_WEIGHTS", capsys)
    assert not out.exists() or not any(out.iterdir())


def test_a_malformed_row_is_named_by_row_and_column(capsys, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "1+1?", "answer": "2"}\n{"question": "2+2?", "answer" "4"}\n')
    words = ["run", "grpo", "--tasks", "jsonl", "--data", data, "--out", tmp_path / "run"]
    command_refuses(words, "E_ROW_NOT_JSON: row 2, column 31 | --lenient", capsys)
    data.write_text('{"question": "1+1?", "anwser": "2"}\n')
    command_refuses(words, "E_FIELD_MISSING: row 1 | 'answer' | 'anwser'", capsys)


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
