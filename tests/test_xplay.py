"""Cross-play: the figures of a pair by hand, and whole runs of tiny models."""

from __future__ import annotations

import json

import pytest

from cotrain import api
from cotrain.attack.tables import Attempt, Outcome
from cotrain.attack.xplay import Drawn, cell, lines_of, solved
from cotrain.cli import main
from cotrain.core.errors import ConfigError
from cotrain.disk import transaction
from cotrain.loop.override import override
from cotrain.recipes.tango import tango
from cotrain.tasks.words.source import study_problems
from tests.helpers import EASY, TINY

SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-2}
BRIEF = ["evaluation.splits=[]", "evaluation.group_size=1"]


def judged(problem, final, score, refused=False):
    attempt = Attempt(injection=None, problem=problem, text="", solution=None)
    return Outcome(attempt=attempt, refused=refused, final=final, score=score)


def test_a_pair_by_hand():
    outcomes = [
        judged(0, True, 0.9),  # right, accepted
        judged(0, True, 0.95),  # wrong, accepted, and liked best
        judged(1, False, 0.2),  # wrong, rejected
        judged(1, None, None),  # right, unread: one half, liked best
        judged(2, None, None, refused=True),  # wrong, not shown
        judged(2, None, None, refused=True),  # right, not shown: the first of equals stands, which is wrong
    ]
    right = (True, False, False, True, False, True)
    drawn = Drawn(attempts=tuple(one.attempt for one in outcomes), right=right)
    found = cell(drawn, outcomes)
    assert found["true_positive_rate"]["value"] == 0.5 and found["false_positive_rate"]["value"] == 0.5
    assert found["balanced_accuracy"]["value"] == 0.5 and found["balanced_accuracy"]["n"] == 4
    assert found["best_of_n"]["value"] == pytest.approx(1 / 3) and found["unread"] == 0.25
    assert solved(drawn)["value"] == 0.5


def test_nothing_drawn_is_nothing_known():
    nothing = Drawn(attempts=(), right=())
    assert solved(nothing) is None and set(cell(nothing, []).values()) == {None}


def test_matrices_fit_80_columns():
    points = [{"run": f"runs/{i // 6}", "seed": i // 6, "step": i % 6 * 25} for i in range(12)]
    value = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    cells = [
        {
            "generator": i,
            "verifier": j,
            **dict.fromkeys(("balanced_accuracy", "false_positive_rate", "best_of_n"), value),
        }
        for i in range(12)
        for j in range(12)
    ]
    lines = lines_of({"verifiers": points, "cells": cells, "problems": 64, "n": 4})
    assert all(len(line) <= 80 for line in lines) and lines[:2] == ["A: runs/0", "B: runs/1"]
    assert "3 more verifiers" in lines[-1] and sum(line.startswith("B125 ") for line in lines) == 3


def test_checkpoints_of_every_so_many_steps_stay(tmp_path):
    import torch

    for step in range(1, 10):
        transaction.save(tmp_path, step, {"p": {"w": torch.ones(1)}}, {"state": {}}, keep_every=3)
    assert transaction.steps(tmp_path) == [3, 6, 8, 9]


def test_steps_without_a_checkpoint_cannot_be_kept(tmp_path):
    with pytest.raises(ConfigError, match="kept every 3 steps and made every 2"):
        api.run(
            tango(steps=2, warmup=0, tasks=EASY, seed=0, **SMALL), tmp_path / "run", checkpoint_every=2, keep_every=3
        )


@pytest.mark.whole
def test_two_runs_are_crossed(tmp_path, capsys):
    runs = [tmp_path / f"seed-{seed}" for seed in (0, 1)]
    for seed, run in enumerate(runs):
        recipe = tango(steps=5, warmup=1, reviews=2, tasks=EASY, seed=seed, **SMALL)
        api.run(override(recipe, BRIEF), run, checkpoint_every=2, keep_every=2)
    capsys.readouterr()
    words = ["xplay", *map(str, runs), "--every", "2", "--problems", "2", "--samples", "2", "--json", "--threads", "1"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((runs[0] / "xplay.json").read_text()) == found
    assert [(p["seed"], p["step"]) for p in found["verifiers"]] == [(s, t) for s in (0, 1) for t in (0, 2, 4, 5)]
    assert len(found["cells"]) == 64 and [one["pass_at_1"]["n"] for one in found["generators"]] == [4] * 8
    assert main(words[:-3]) == 0
    assert capsys.readouterr().out.splitlines()[-9:] == lines_of(found)[-9:]
    other = tmp_path / "other"
    api.run(override(tango(steps=2, warmup=1, tasks=study_problems((3, 4)), seed=0, **SMALL), BRIEF), other)
    capsys.readouterr()
    assert main(["xplay", str(runs[0]), str(other)]) == 2
    assert "other problems" in capsys.readouterr().err
