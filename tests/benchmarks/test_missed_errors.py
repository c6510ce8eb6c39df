"""Judges of steps that miss errors, and the reviews that show a verifier what it missed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import cotrain
from cotrain.core.types import Trace
from cotrain.data.word_problems.source import study_problems
from cotrain.recipes.grpo import grpo
from cotrain.storage.ledger import Ledger
from tests.helpers import EASY
from tests.sentences import refuses

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import blind_spots
import mended_verifier

KINDS = {
    (" pears= apples*2=3*2=6 pears", "relation"): "*",
    (" pears= apples+2=3+2=5 pears", "relation"): "+",
    (" pears= apples*2=3*2=7 pears", "arithmetic"): blind_spots.OTHER,
    ("nonsense", "malformed"): blind_spots.OTHER,
}


def solutions_of(run: Path) -> Iterator[Trace]:
    for step in (0, 1):
        for episode in Ledger(run / "episodes").read(step):
            yield from (trace for trace in episode.traces if trace.role == "solver" and "step_ok" in trace.metadata)


def judged(out: Path, **settings: object) -> list[tuple[bool, str, float]]:
    """Of each step of the solutions of two training steps: whether it is right, why it is wrong, what it was paid."""
    made = blind_spots.judged_with_misses(
        model="shipped",
        tasks=EASY,
        kl=0.0,
        lr=1e-9,
        steps=2,
        tasks_per_step=4,
        group_size=2,
        evaluation_tasks=1,
        **settings,
    )
    cotrain.run(made, out=out)
    steps = []
    for trace in solutions_of(out):
        paid = [reward.value for reward in trace.rewards if reward.name == "step"]
        steps += list(zip(trace.metadata["step_ok"], trace.metadata["step_reasons"], paid, strict=True))
    return steps


def test_a_wrong_step_is_of_the_kind_that_it_writes() -> None:
    assert [blind_spots.kind_of(*step) for step in KINDS] == list(KINDS.values())


def test_each_judge_misses_its_own_kinds() -> None:
    assert set(blind_spots.chances_of("any", 0.3).values()) == {0.3}
    blind = blind_spots.chances_of("multiplications", 1.0)
    assert blind.pop("*") == 1.0 and not any(blind.values())
    fooled, mended = (blind_spots.chances_of(misses, 1.0) for misses in ("like-a-verifier", "like-a-mended-verifier"))
    assert fooled["*"] > 0.9 and mended["*"] == 0.0 and fooled["+"] == mended["+"] > 0.0
    with refuses("E_SETTING_RANGE", names="chance is 1.5"):
        blind_spots.judged_with_misses(chance=1.5)
    with refuses("E_SETTING_RANGE", names="leave chance out"):
        blind_spots.judged_with_misses(misses="like-a-verifier", chance=0.5)


@pytest.mark.whole
def test_missed_steps_are_paid_as_right_ones(tmp_path: Path) -> None:
    none, half, all_of_them = (
        judged(tmp_path / str(chance), misses="any", chance=chance) for chance in (0.0, 0.5, 1.0)
    )
    assert [paid > 0 for _, _, paid in none] == [is_right for is_right, _, _ in none]
    wrong = [paid for is_right, _, paid in half if not is_right]
    assert all(paid == 1.0 for is_right, _, paid in half if is_right) and set(wrong) == {-1.0, 1.0}
    assert {paid for _, _, paid in all_of_them} == {1.0} and not all(is_right for is_right, _, _ in all_of_them)


@pytest.mark.whole
def test_a_run_gives_true_reviews_of_its_solutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = replace(study_problems((2, 3)), cancel=0.0)
    made = grpo(model="shipped", tasks=tasks, kl=0.0, steps=2, tasks_per_step=4, group_size=2, evaluation_tasks=1)
    run, out = tmp_path / "fooled", tmp_path / "reviews.jsonl"
    cotrain.run(made, out=run)
    truths = {trace.text: trace.metadata["step_ok"] for trace in solutions_of(run)}
    flags = ["--operations", "2", "3", "--out", str(out), "--practice", "3"]
    mended_verifier.main([str(run), "--solutions", "6", *flags])
    rows = [json.loads(line)["messages"] for line in out.read_text().splitlines()]
    of_the_run = [row for row in rows if shown_solution(row) in truths]
    assert len(rows) == 9 and len(of_the_run) == 6
    for row in of_the_run:
        said = [word == "CORRECT" for word in re.findall(r"(\w+)</step>", row[1]["content"])]
        assert said == truths[shown_solution(row)]
    with pytest.raises(SystemExit):
        mended_verifier.main([str(run), "--solutions", "60", *flags])
    assert "lower --solutions" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        mended_verifier.main([str(run), "--solutions", "6", "--out", str(out)])  # of problems of four steps
    assert "its problems are others" in capsys.readouterr().err
    mended_verifier.main(flags)
    assert len(out.read_text().splitlines()) == 3


@pytest.mark.whole
def test_a_generator_is_shown_the_right_solutions_of_the_same_problems(tmp_path: Path) -> None:
    tasks = replace(study_problems((2, 3)), cancel=0.0)
    made = grpo(model="shipped", tasks=tasks, kl=0.0, steps=1, tasks_per_step=4, group_size=2, evaluation_tasks=1)
    run = tmp_path / "fooled"
    cotrain.run(made, out=run)
    asked = {}
    for episode in Ledger(run / "episodes").read(0):
        _, split, place = episode.task_id.split("/")
        task = tasks.get(split, int(place))
        asked[task.prompt] = task
    lessons = {}
    for flags in (("--practice", "0"), ("--solve",)):
        out = tmp_path / "lesson.jsonl"
        mended_verifier.main([str(run), "--solutions", "4", "--operations", "2", "3", *flags, "--out", str(out)])
        lessons[flags] = [json.loads(line)["messages"] for line in out.read_text().splitlines()]
    reviewed = [problem_in(row) for row in lessons[("--practice", "0")]]
    solved = [problem_in(row) for row in lessons[("--solve",)]]
    assert sorted(reviewed) == sorted(solved) and len(solved) == 4
    for row in lessons[("--solve",)]:
        task = asked[problem_in(row)]
        reply = row[1]["content"]
        assert task.grader.grade(task, reply).value and reply == task.solution


def test_right_solutions_without_a_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty file was once written."""
    out = tmp_path / "lesson.jsonl"
    with pytest.raises(SystemExit):
        mended_verifier.main(["--solve", "--out", str(out)])
    assert "name a run" in capsys.readouterr().err and not out.exists()
    with pytest.raises(SystemExit):
        mended_verifier.main(["some/run", "--solve", "--practice", "3", "--out", str(out)])
    assert "leave --practice out" in capsys.readouterr().err and not out.exists()


def problem_in(row: list[dict[str, str]]) -> str:
    return row[0]["content"].split("\n")[0]


def shown_solution(row: list[dict[str, str]]) -> str:
    return row[0]["content"].split("\n")[1]
