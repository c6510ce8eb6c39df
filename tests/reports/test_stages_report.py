"""The page of a folder of stages: from a tokenizer to a run, in the order in which they were finished."""

import json
import os

from cotrain.cli.main import main

TRAINED = {
    **{"start": "new", "parameters": 900_000, "tokens": 2_000_000, "seconds": 75.0, "resumed": False},
    **{"validation": {"text": 0.95}, "bits_per_byte": {"text": 1.25}, "sample": "A fox | is red.\n\nThe end"},
}
FIGURE = {"value": 0.5, "low": 0.4, "high": None, "n": 10}


def made(folder, age, name, content):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    os.utime(folder / name, (age, age))


def test_all_stages_stand_on_one_page(tmp_path, capsys):
    made(tmp_path / "words", 1, "tokenizer.json", {"model": {"vocab": {"a": 0, "b": 1}}})
    made(tmp_path / "base", 2, "result.json", {"stage": "pretrain", **TRAINED})
    suite = {"suite": "core", "core": 0.25, "figures": {"sums/accuracy": FIGURE}, "settings": {"model": "x/base"}}
    made(tmp_path / "base-eval", 3, "suite-core.json", suite)
    tuned = TRAINED | {"start": "somewhere/base", "resumed": True, "bits_per_byte": {}, "sample": ""}
    made(tmp_path / "all", 4, "result.json", {"stage": "sft", **tuned})
    summary = {"recipe": "tango", "tokens": 1234, "before": {"solver/pass@1": FIGURE}}
    after = {"solver/pass@1": {"value": 0.75, "low": 0.7, "high": 0.8, "n": 10}}
    made(tmp_path / "a-run", 5, "summary.json", {**summary, "after": after})
    answered = {"suite": "gsm8k", "figures": {"solver/greedy": FIGURE}, "settings": {"run": "a-run", "step": 4}}
    made(tmp_path / "a-run", 6, "suite-gsm8k.json", answered)
    made(tmp_path / "a-run", 7, "suite-gsm8k-step-2.json", answered)
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.md").read_text()
    assert str(tmp_path / "report.md") in capsys.readouterr().out
    order = [
        page.index(f"\n| {name}") for name in ("words", "base (pretrain)", "base-eval", "all (sft)", "a-run (tango)")
    ]
    assert order == sorted(order)
    assert "| a-run (suite gsm8k) |" in page and "| a-run (suite gsm8k, step 2) |" in page
    assert "1.250 bits per byte; held out 0.950 nats a token" in page and "core 0.250; sums/accuracy 0.500" in page
    assert "1:15 since the last resume" in page and "pass@1 0.500 → 0.750" in page
    assert "| solver/pass@1 | 0.500 | 0.750 [0.700, 0.800] |" in page.replace("\\", "")
    assert "(a-run/report.html)" in page and "> The end" in page and "\\|" in page


def test_a_folder_without_a_stage_is_no_folder_of_stages(tmp_path, capsys):
    made(tmp_path / "alien", 1, "result.json", {"stage": 3})
    made(tmp_path / "alien", 1, "summary.json", {"all": "well"})
    made(tmp_path / "alien", 1, "suite-mine.json", [1])
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path)]) == 2
    assert not (tmp_path / "report.md").exists()
