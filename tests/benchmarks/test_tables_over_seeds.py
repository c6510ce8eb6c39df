"""The scripts that make a table of seeds from the files of runs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import cotrain
from cotrain.core.types import Episode, Trace
from cotrain.data.files import JsonlTasks
from cotrain.recipes.grpo import grpo
from tests.helpers import EASY, TINY
from tests.sentences import refuses

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import batch_figures
import crossed
import reward_order
import what_changed
import wrong_steps


def runs(folder: Path, figures: dict[int, list[float | None]]) -> Path:
    for seed, values in figures.items():
        (folder / f"seed-{seed}").mkdir(parents=True)
        lines = [{"step": i, "gap": value} for i, value in enumerate(values)] + [{"step": 9, "kind": "evaluation"}]
        (folder / f"seed-{seed}" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


def test_the_last_batches_of_two_arms_are_paired_by_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = runs(tmp_path / "first", {0: [9.0, 0.1, 0.3], 1: [9.0, 0.2, None]})
    second = runs(tmp_path / "second", {0: [9.0, 0.5, 0.7], 1: [9.0, None, 0.4]})
    batch_figures.main([str(first), str(second), "--figure", "gap", "--last", "2"])
    rows = capsys.readouterr().out.splitlines()
    assert "/first | 0.200" in rows[2] and "0.200, 0.200" in rows[2]
    assert "/second | 0.500" in rows[3] and "+0.300" in rows[3] and "0.600, 0.400" in rows[3]
    batch_figures.main([str(first), "--figure", "gap", "--last", "1", "--until", "1"])
    assert "9.000, 9.000" in capsys.readouterr().out


def test_what_an_evaluation_found_is_read_from_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arm = runs(tmp_path / "first", {0: [0.0], 1: [0.0]})
    for seed, value in ((0, 0.25), (1, 0.75)):
        written = {"split": "test", "figures": {"solver/greedy": {"value": value}}}
        (arm / f"seed-{seed}" / "eval-test.json").write_text(json.dumps(written))
    batch_figures.main([str(arm), "--figure", "solver/greedy", "--split", "test"])
    assert "0.250, 0.750" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        batch_figures.main([str(arm), "--figure", "solver/greedy", "--split", "other"])
    assert "expected what cotrain eval RUN --split wrote" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arms", "what"),
    [
        ("nowhere", "holds no seed-N"),
        ("first --figure nope", "no batch of the last 20 has nope"),
        ("first other", "other seeds than"),
    ],
)
def test_arms_that_cannot_be_compared_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arms: str, what: str
) -> None:
    runs(tmp_path / "first", {0: [0.1], 1: [0.2]})
    runs(tmp_path / "other", {0: [0.1], 2: [0.2]})
    words = [str(tmp_path / word) if word in ("nowhere", "first", "other") else word for word in arms.split()]
    with pytest.raises(SystemExit) as ended:
        batch_figures.main(["--figure", "gap", *words])
    assert ended.value.code == 2 and what in capsys.readouterr().err


def matrix(run: str, accuracy: float) -> dict[str, object]:
    """Two runs with start and end; the second judge is better by 0.2 everywhere."""
    places = [{"run": name} for name in ("a", "a", "b")]
    cells = [
        {"generator": g, "verifier": v, **{f: {"value": accuracy + 0.2 * (v == 2)} for f in crossed.FIGURES}}
        for g in range(3)
        for v in range(3)
    ]
    return {"generators": places, "verifiers": places, "cells": cells, "run": run}


def test_two_judges_on_the_same_solutions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "0.json", tmp_path / "1.json"]
    for path, accuracy in zip(files, (0.5, 0.6), strict=True):
        path.write_text(json.dumps(matrix(path.stem, accuracy)))
    crossed.main([str(path) for path in files])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 3 * len(crossed.FIGURES) and "| 0.550 | 0.550 | 0.750 | +0.200" in rows[2]
    files[0].write_text("{}")
    with pytest.raises(SystemExit) as ended:
        crossed.main([str(path) for path in files])
    assert ended.value.code == 2 and "has no generators" in capsys.readouterr().err


def test_what_training_changed_is_read_from_runs_and_their_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, end in ((0, 0.5), (1, 0.6), (2, 0.7)):
        run = tmp_path / f"study/all/arm/seed-{seed}"
        run.mkdir(parents=True)
        rows = [{"step": i, "solver/entropy": 1.0 - 0.1 * i, "solver/entropy/right": 9.0} for i in range(6)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "summary.json").write_text(json.dumps({"after": {"generator/update_sparsity": {"value": 0.25}}}))
        for name, value in (("-step-0", 0.25), ("", end)):
            figures = {f"solver/pass@{k}": {"value": value, "n": 4} for k in (1, 2)}
            (run / f"eval-test{name}-2-samples.json").write_text(json.dumps({"figures": figures}))
    arm = str(tmp_path / "study/all/arm")
    what_changed.main([arm, "--problems", "4", "--samples", "2", "--batches", "2"])
    said = capsys.readouterr().out
    assert "| study: arm | generator | 0.250 [0.250, 0.250] |" in said
    assert "| study: arm | solver | 0.950 | 0.550 | -0.400 [-0.400, -0.400] |" in said
    assert "| study: arm | pass@2 | 0.250 | 0.600 [0.352, 0.848] | +0.350 [0.102, 0.598] |" in said
    with pytest.raises(SystemExit):
        what_changed.main([arm, "--problems", "5", "--samples", "2"])
    assert "is of other problems than 5" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        what_changed.main([str(tmp_path / "nowhere")])
    assert "no finished seed-N" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "what"),
    [("{bad", "Expecting property name"), ("[" * 100_000, "nested too deeply"), ("{}", "has no 'after'")],
    ids=["bad", "deep", "empty"],
)
def test_a_summary_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, what: str
) -> None:
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "summary.json").write_text(text)
    with pytest.raises(SystemExit):
        what_changed.main([str(tmp_path)])
    said = capsys.readouterr().err
    assert what in said and "expected what a finished run" in said


def test_pairs_of_answers_are_counted_by_hand() -> None:
    groups = {"a": [(0.5, True), (0.5, False), (0.0, False), (1.0, False)], "b": [(1.0, True)], "c": [(0.0, False)]}
    counted = reward_order.count_pairs(groups)
    assert counted == {"pairs": 3, "ties": 1, "order": 1}
    lines = reward_order.rows({"judge": [[counted], [Counter(pairs=4, ties=2, order=2)]], "none": [[Counter()]]})
    assert lines[2:] == ["| judge | 1 | 7 | 0.42 | 0.75 | 0.50, 1.00 |"]


@pytest.mark.whole
def test_pairs_are_read_from_the_rollouts_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = grpo(model=TINY, tasks=EASY, kl=0.0, steps=4, tasks_per_step=2, group_size=2, evaluation_tasks=1)
    cotrain.run(made, out=tmp_path / "grpo" / "seed-0")
    capsys.readouterr()
    reward_order.main([str(tmp_path), "--signal", "outcome", "--parts", "2"])
    assert len(capsys.readouterr().out.splitlines()) == 2  # a tiny model is never right, so there is no pair
    with refuses("E_DATA", names="signal 'pay'"):
        reward_order.main([str(tmp_path)])


def reviewed(steps: list[tuple[str, str]], reviews: list[list[bool] | None]) -> Episode:
    """An episode with a solution of these steps and reasons, and reviews of it."""
    solution = Trace(
        address=(0, 0, 0, "solver", 0),
        role="solver",
        policy="generator",
        version=0,
        group="0",
        text="",
        finish="stop",
        prompt_ids=(),
        token_ids=(),
        logprobs=(),
        rewards=(),
        findings={"steps": [[0, 1, step] for step, _ in steps]},
        metadata={"step_reasons": [reason for _, reason in steps]},
    )
    verdicts = [
        replace(
            solution,
            address=(0, 0, 0, "verifier", number),
            role="verifier",
            findings={} if said is None else {"steps": said},
            metadata={},
        )
        for number, said in enumerate(reviews)
    ]
    return Episode(step=0, task=0, member=0, task_id="0", traces=(solution, *verdicts))


def test_wrong_steps_are_counted_by_hand() -> None:
    steps = [
        (" pears= apples*2=3*2=6 pears", "relation"),
        (" plums= pears+1=6+1=7 plums", ""),
        (" kites= plums-1=7-1=6 kites", "premise"),
    ]
    episode = reviewed(steps, [[True, True, False], [False, True, True], None, [True]])
    counts = wrong_steps.count_steps([episode, episode])
    assert counts["multiplies wrongly"] == {"steps": 2, "verdicts": 4, "called wrong": 2}
    assert counts["right"] == {"steps": 2, "verdicts": 4}
    assert counts[wrong_steps.OTHER]["called wrong"] == 2 and not counts["adds wrongly"]
    unread = wrong_steps.count_steps([reviewed([], [])])
    lines = wrong_steps.rows("frozen", [[counts], [counts]])
    assert lines[3] == "| frozen | 1 | multiplies wrongly | 0.333 | 0.50 | 0.33, 0.33 |"
    assert not any(unread.values())


@pytest.mark.whole
def test_wrong_steps_are_read_from_the_rollouts_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = grpo(model="shipped", tasks=EASY, kl=0.0, steps=2, tasks_per_step=2, group_size=2, evaluation_tasks=1)
    cotrain.run(made, out=tmp_path / "grpo" / "seed-0")
    capsys.readouterr()
    wrong_steps.main([str(tmp_path / "grpo"), "--parts", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * 5
    shares = [float(line.split("|")[4]) for line in lines[2:7]]
    assert sum(shares) == pytest.approx(1.0, abs=0.01) and shares[0] > 0.2
    with pytest.raises(SystemExit):
        wrong_steps.main([str(tmp_path / "grpo"), "--parts", "9"])
    assert "expected 9 or more" in capsys.readouterr().err


@pytest.mark.whole
def test_problems_whose_steps_nobody_judges_have_no_steps_to_count(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(f'{{"question": "What is {n} + 1?", "answer": "{n + 1}"}}\n' for n in range(40)))
    made = grpo(model=TINY, tasks=JsonlTasks(file), kl=0.0, steps=2, tasks_per_step=2, group_size=2, evaluation_tasks=1)
    cotrain.run(made, out=tmp_path / "grpo" / "seed-0")
    with refuses("E_DATA", names="expected word problems with one solver"):
        wrong_steps.count_arm(tmp_path / "grpo", parts=2)
