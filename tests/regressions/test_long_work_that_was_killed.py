"""Commands that write at their end lost all of it when they were killed, and `paraphrase` looked at its output last."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cotrain import api, examine
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.core.errors import TooManyFailures
from cotrain.core.types import Sampling
from cotrain.data.columns import ANY
from cotrain.pretraining import paraphrases
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.runs import kept_episodes, opening
from cotrain.storage.checkpoints import MANIFEST, step_name
from cotrain.storage.kept_work import KeptWork, kept_work
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken

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


@pytest.fixture(scope="module")
def run_to_measure(tmp_path_factory):
    """A finished run of a solver and its verifier."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    sizes = {"tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "reviews": 1}
    recipe = tango(model=TINY, steps=1, warmup=0, ratio=(1, 0), verifier="frozen", tasks=EASY, **sizes)
    api.run(override(recipe, ["evaluation.splits=[]"]), folder)
    return folder


def test_many_samples_of_a_run_go_on_where_they_stopped(run_to_measure, tmp_path, monkeypatch, capsys):
    """Hours of ``eval --samples`` were lost. Killed in its second batch and in its greedy answers, it says the same in
    the end, and nothing is collected twice."""
    monkeypatch.setattr(kept_episodes, "BATCH", 8)
    collect = RolloutRunner.collect
    collected = []

    def collect_or_stop(runner, protocol, tasks, **more):
        if len(collected) in stops:
            stops.remove(len(collected))
            raise KeyboardInterrupt
        collected.append((more["group_size"], [task.id for task in tasks]))
        return collect(runner, protocol, tasks, **more)

    monkeypatch.setattr(RolloutRunner, "collect", collect_or_stop)
    whole, broken, moved = tmp_path / "whole", tmp_path / "broken", tmp_path / "moved"
    for folder in (whole, broken):
        shutil.copytree(run_to_measure, folder)
    words = ["--samples", "4", "--problems", "3", "--threads", "1", "--json"]
    stops = []
    assert main(["eval", str(whole), *words]) == 0
    in_one_go, expected = list(collected), capsys.readouterr().out
    assert [len(ids) for _, ids in in_one_go] == [2, 1, 3]
    collected.clear()
    stops = [1, 2]
    for _ in range(2):
        assert main(["eval", str(broken), *words]) == 130
        assert rows_kept(broken, "eval-test-4-samples.json") > 1
    broken.rename(moved)
    assert main(["eval", str(moved), *words]) == 0
    said = capsys.readouterr()
    assert collected == in_one_go and said.out == expected and "earlier try" in said.err
    assert [path.name for path in moved.iterdir() if path.name.endswith(".partial")] == []
    saved = (folder_of / "eval-test-4-samples.json" for folder_of in (whole, moved))
    assert len({path.read_bytes() for path in saved}) == 1


def test_work_on_a_run_that_was_moved_goes_on(tmp_path):
    """The path of the run was a part of what its work depends on."""
    run = tmp_path / "run"
    record = run / "checkpoints" / step_name(2) / MANIFEST
    record.parent.mkdir(parents=True)
    record.write_text("a")
    for name in ("recipe.json", "provenance.json"):
        (run / name).write_text("{}")
    before = opening.point_stamp(run, 2)
    moved = shutil.copytree(run, tmp_path / "moved", copy_function=shutil.copyfile)  # with other times, as `cp -r` does
    assert opening.point_stamp(moved, 2) == before != opening.point_stamp(moved, 0)
    (moved / record.relative_to(run)).write_text("b")
    assert opening.point_stamp(moved, 2) != before


def test_what_was_kept_counts_as_done(tmp_path):
    with kept_work(tmp_path / "out.json", {}, print) as work:
        keeper = kept_episodes.EpisodeKeeper(work, place="cpu with 1 thread", say=print)
        assert keeper.count_kept(300, group_size=4, what="sampled") == 0
        work.part("sampled, 128 problems from 0 on", dict)
        work.part("sampled, 44 problems from 256 on", dict)
        assert keeper.count_kept(300, group_size=4, what="sampled") == 4 * (128 + 44)
        assert keeper.count_kept(300, group_size=1, what="greedy") == 0


def test_samples_that_are_made_elsewhere_are_said_to_be(run_to_measure, tmp_path, monkeypatch):
    """Those of another number of threads were mixed in silence, though rounding differs."""
    monkeypatch.setattr(kept_episodes, "BATCH", 2)
    folder = tmp_path / "run"
    shutil.copytree(run_to_measure, folder)
    collect = RolloutRunner.collect
    n_collected = 0

    def collect_or_stop(*arguments, **more):
        nonlocal n_collected
        n_collected += 1
        if n_collected == 3:
            raise KeyboardInterrupt
        return collect(*arguments, **more)

    monkeypatch.setattr(RolloutRunner, "collect", collect_or_stop)
    with pytest.raises(KeyboardInterrupt):
        opening.evaluate(folder, tasks=3, samples=2, device="cpu", say=lambda line: None)
    threads = torch.get_num_threads()
    lines = []
    torch.set_num_threads(threads + 1)
    try:
        opening.evaluate(folder, tasks=3, samples=2, device="cpu", say=lines.append)
    finally:
        torch.set_num_threads(threads)
    (note,) = [line for line in lines if line.startswith("note: an earlier try")]
    assert f"cpu with {threads} thread" in note and f"cpu with {threads + 1} threads" in note


def test_episodes_that_failed_are_not_kept_for_the_next_try(tmp_path):
    """A server that was gone, or the program of an agent: the same command failed for ever, or took what was never
    answered for the answers of the models."""
    is_broken = True

    async def solve_if_possible(task, roles):
        if is_broken:
            raise OSError("nobody there")
        turn = await roles.solver(problem=task.prompt)
        await examine(task, roles, turn)

    recipe = grpo(model=TINY, steps=1, tasks=EASY, kl=0.0)
    evaluation = replace(recipe.evaluation, protocol=solve_if_possible, greedy=False)
    trainer = CoTrainer(replace(recipe, evaluation=evaluation))
    with kept_work(tmp_path / "out.json", {}, print) as work:
        keeper = kept_episodes.EpisodeKeeper(work, place="cpu", say=print)
        with pytest.raises(TooManyFailures, match="nobody there"):
            trainer.evaluate("test", 2, group_size=2, collect=keeper.collect)
        assert keeper.count_kept(2, group_size=2, what="sampled") == 0
        is_broken = False
        figures, _ = trainer.evaluate("test", 2, group_size=2, collect=keeper.collect)
        assert keeper.count_kept(2, group_size=2, what="sampled") == 4 and "broken_off" not in figures


def test_problems_without_a_grade_are_not_answered_greedily():
    """Progress waited for greedy answers that nobody gives."""
    recipe = tango(model=TINY, steps=1, warmup=0, ratio=(1, 0), verifier="frozen", tasks=EASY)
    problem = EASY.get("test", 0)
    assert opening.episodes_to_collect(recipe, [problem] * 3, 4) == 15
    assert opening.episodes_to_collect(recipe, [replace(problem, gradable=False)] * 3, 4) == 12


def test_samples_of_another_number_are_other_work(run_to_measure, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run_to_measure, folder)
    for samples in (2, 3):
        found = opening.evaluate(folder, tasks=2, samples=samples, say=lambda line: None)
        assert f"solver/pass@{samples - samples % 2}" in found["figures"]


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
