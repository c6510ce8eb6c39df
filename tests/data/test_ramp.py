"""``--ramp``: the order from easy to hard, how much of it a step draws from, and what is refused."""

import json
import math

import pytest

from cotrain.cli.main import main
from cotrain.config.registry import find_recipe
from cotrain.data.curriculum import share_at, with_ramp
from cotrain.data.files import JsonlTasks
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses


def question(n):
    return f"What is {n} + 1?"


@pytest.fixture
def files(tmp_path):
    """40 problems, and samples of a model that solves the n-th one in 40 − n of 40 tries, without their greedy row."""
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"question": question(n), "answer": str(n + 1)}) + "\n" for n in range(40))
    )
    rows = [{"settings": {"samples": 40}}]
    for n in reversed(range(40)):
        rows += [{"problem": question(n).upper(), "sample": k, "correct": k >= n} for k in range(40)]
        rows += [
            {"problem": question(n), "sample": -1, "correct": n > 20},
            {"problem": question(n), "sample": 40, "correct": None},
        ]
    (tmp_path / "suite.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def number(task):
    return int(task.prompt.split()[2])


def test_the_share_grows_as_a_square_root_over_the_first_half():
    assert [share_at(step, 100) for step in (0, 50, 99)] == [pytest.approx(0.1), 1.0, 1.0]
    assert share_at(25, 100) == pytest.approx(0.505**0.5)  # t/T = 1/2: 0.5 · 0.99 + 0.01
    assert share_at(0, 1) == pytest.approx(0.1)


def test_a_run_goes_from_easy_to_hard(files):
    source = JsonlTasks(files / "rows.jsonl")
    ramped = with_ramp(source, str(files / "suite.jsonl"))
    numbers = [number(ramped.get("train", i)) for i in range(ramped.size("train"))]
    assert numbers == sorted(numbers) and len(numbers) == source.size("train") > 20
    assert ramped.get("test", 0) == source.get("test", 0)
    arguments = {"model": TINY, "steps": 20, "tasks_per_step": 4, "group_size": 2, "kl": 0.0}
    recipe = find_recipe("grpo")(tasks=source, ramp=str(files / "suite.jsonl"), **arguments)
    trainer = CoTrainer(recipe)
    drawn = [[number(t) for t in trainer.draw_tasks(recipe.schedule.phase_at(s), s)] for s in range(20)]
    trainer.close()
    for step, of_step in enumerate(drawn):
        assert set(of_step) <= set(numbers[: math.ceil(share_at(step, 20) * len(numbers))]), step
    assert max(drawn[0]) <= numbers[3] and max(max(of_step) for of_step in drawn[10:]) > numbers[-4]
    again = find_recipe("grpo")(tasks=source, **arguments)
    assert again.share_at(0, {}) == 1.0 and again.tasks is source


def test_what_is_refused(files):
    source, samples = JsonlTasks(files / "rows.jsonl"), files / "suite.jsonl"
    with refuses("E_RAMP_ENDLESS", names="words"):
        with_ramp(EASY, str(samples))
    with refuses("E_RAMP_WITH_LABELLED"):
        find_recipe("grpo")(model=TINY, tasks=source, ramp=str(samples), labelled=4)
    hardest = question(max(number(source.get("train", i)) for i in range(source.size("train"))))
    lines = [line for line in samples.read_text().splitlines() if f"{hardest.upper()}" not in line]
    samples.write_text("\n".join(lines))
    with refuses("E_RAMP_UNGRADED", names="'what is"):
        with_ramp(source, str(samples))
    samples.write_text('{"question": "What?", "answer": "1"}\n')
    with refuses("E_NOT_EVAL_SAMPLE", names="row 1"):
        with_ramp(source, str(samples))


@pytest.mark.whole
def test_what_eval_writes_is_what_a_run_reads_also_when_it_goes_on(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    few = ["--threads", "1"]
    measured = ["eval", TINY, "--suite", "jsonl", "--data", "rows.jsonl", "--samples", "2", "--max-tokens", "8"]
    assert main([*measured, "--answer-format", "tags", "--out", "measured", *few]) == 0
    run = ["run", "grpo", "--model", TINY, "--data", "rows.jsonl", "--ramp", "measured/suite-jsonl.jsonl"]
    size = ["--steps", "2", "--tasks-per-step", "2", "--group-size", "2", "--evaluation-tasks", "2", "--kl", "0"]
    assert main([*run, *size, "--out", "run", *few]) == 0
    assert main(["resume", "run", "--steps", "3", *few]) == 0
    arguments = json.loads((files / "run" / "recipe.json").read_text())["origin"]["arguments"]
    assert arguments["ramp"] == "measured/suite-jsonl.jsonl"
