"""Commands that write at their end lost all of it when they were killed, and `paraphrase` looked at its output last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cotrain.cli.main import main
from cotrain.core.types import Sampling
from cotrain.data.columns import ANY
from cotrain.pretraining import paraphrases
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.storage.kept_work import KeptWork
from tests.helpers import TINY, spoken

PATIENCE_S = 240.0


def rows_kept(folder, name):
    files = list(folder.glob(f".{name}.*.partial"))
    return files[0].read_bytes().count(b"\n") if files else 0


def run_and_kill(words, folder, name, rows):
    """Begin a command and kill it once it has kept so many rows."""
    child = subprocess.Popen([sys.executable, "-m", "cotrain.cli.main", *words], stdout=subprocess.DEVNULL)
    until = time.monotonic() + PATIENCE_S
    while rows_kept(folder, name) < rows and child.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    return child.wait()


@pytest.mark.whole
def test_an_attack_goes_on_where_it_was_killed(tmp_path, capsys):
    words = ["attack", TINY, "--problems", "8", "--each", "2", "--threads", "1"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*words, "--out", str(whole)]) == 0
    for rows in (2, 4):
        assert run_and_kill([*words, "--out", str(broken)], broken, "attack.json", rows) == -signal.SIGKILL
        assert not (broken / "attack.json").exists()
    capsys.readouterr()
    assert main([*words, "--out", str(broken)]) == 0
    assert "earlier try" in capsys.readouterr().out
    assert json.loads((broken / "attack.json").read_text()) == json.loads((whole / "attack.json").read_text())
    assert [path.name for path in broken.iterdir()] == ["attack.json"]


def test_paraphrases_go_on_where_they_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(paraphrases, "CHUNK", 4)
    question = "There are {} crates and 2 more come. How many crates are there?"
    rows = [{"question": question.format(n), "answer": str(n + 2)} for n in range(10, 22)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = []

    def speak(fields, rng):
        asked.append(fields["problem"])
        if len(asked) == 7:
            raise KeyboardInterrupt
        return f"<problem>Of {fields['problem'].split()[2]} crates and 2 further crates, how many are there?</problem>"

    def write(work):
        problems = paraphrases.read_problems(str(tmp_path / "train.jsonl"), ANY.question, ANY.answer)
        role = Role(policy="writer", prompt=paraphrases.PARAPHRASE, sampling=Sampling(max_tokens=200))
        player = RolloutRunner(spoken({"writer": speak}), {"writer": ByteRenderer()}, {"writer": role}, 0)
        paraphrases.write_paraphrases(player, problems, tries=2, say=print, work=work)
        return [one.text for one in problems]

    work = KeptWork(tmp_path / "out.jsonl", {})
    with pytest.raises(KeyboardInterrupt):
        write(work)
    work.close()
    work = KeptWork(tmp_path / "out.jsonl", {})
    texts = write(work)
    work.finish()
    assert len(texts) == 12 and all("further" in text for text in texts)
    assert {asked.count(one) for one in asked[:4]} == {1}  # the first chunk was not asked again


@pytest.mark.parametrize(
    "words",
    [
        ["paraphrase", "--data", "DATA", "--model", "/no/model", "--out", "PLACE/p.jsonl"],
        ["sft", "--model", "/no/model", "--out", "PLACE/model"],
        ["pretrain", "--out", "PLACE/model"],
        ["tokenizer", "--out", "PLACE/tokenizer"],
        ["attack", TINY, "--out", "PLACE/a"],
        ["eval", TINY, "--suite", "jsonl", "--data", "DATA", "--out", "PLACE/a"],
        ["check", "data", "DATA", "--quarantine", "PLACE/q.jsonl"],
    ],
    ids=lambda words: words[0],
)
def test_a_place_that_takes_no_output_is_said_before_the_work(words, tmp_path, capsys):
    (tmp_path / "data.jsonl").write_text('{"question": "2 hats and 3 pies?", "answer": "5"}\n')
    (tmp_path / "a-file").write_text("")
    began = time.process_time()
    place = str(tmp_path / "a-file")
    known = {"DATA": str(tmp_path / "data.jsonl")}
    assert main([known.get(word, word.replace("PLACE", place)) for word in words]) == 2
    said = capsys.readouterr().err
    assert place in said and len(said.strip().splitlines()) == 1
    assert time.process_time() - began < 20.0
    assert Path(place).read_text() == ""
