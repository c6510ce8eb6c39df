"""Players of a game against each other: the figures of a pair by hand, and whole runs of tiny models."""

from __future__ import annotations

import errno
import json
from dataclasses import replace

import pytest
import torch
from cotrain_zoo.debate_solve.recipe import debate_solve

from cotrain import api
from cotrain.analysis.attack import seats
from cotrain.analysis.attack.seats import RIVAL, check_same_games, lines_of, mean_signal, play_seats, seat_trainers
from cotrain.analysis.attack.xplay import points_of
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.config.remote import remote
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Reward, Trace
from cotrain.recipes.debate.recipe import debate
from cotrain.recipes.grpo import grpo
from cotrain.rollout.runner import RolloutRunner
from cotrain.runs import manifest
from cotrain.runs.changes import rebuild_recipe, recipe_to_measure
from cotrain.runs.directory import RunDirectory
from cotrain.storage.file_ops import Files, is_staging_of
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

SMALL = {"model": TINY, "tasks_per_step": 4, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-2, "tasks": EASY}
BRIEF = ["evaluation.splits=[]", "evaluation.group_size=1", "evaluation.greedy=false"]


def episode(task, **won_by_role):
    traces = tuple(
        Trace(
            address=Address(step=0, task=task, member=0, role=role, call=i),
            role=role,
            policy=role,
            version=0,
            group="g",
            prompt_ids=(1,),
            token_ids=(2,),
            logprobs=(0.0,),
            text="",
            finish="stop",
            rewards=(Reward(name="won", value=value, tokens=None), Reward(name="paid", value=-1.0, tokens=None)),
        )
        for role, values in won_by_role.items()
        for i, value in enumerate(values)
    )
    return Episode(step=0, task=task, member=0, task_id=str(task), traces=traces)


def test_what_a_seat_wins_by_hand():
    here = [episode(0, alice=[1.0, 0.5], bob=[0.0]), episode(1, alice=[0.0], bob=[1.0])]
    there = [episode(0, alice=[0.5], bob=[0.5]), episode(2, bob=[1.0])]
    assert mean_signal([(here, "alice")], "won").value == pytest.approx(0.5)
    both = mean_signal([(here, "alice"), (there, "bob")], "won")  # (1 + 0.5 + 0 + 0.5 + 1) / 5
    assert both.value == pytest.approx(0.6) and both.n == 5 and both.low < 0.6 < both.high
    assert mean_signal([(here, "carol")], "won") is None and mean_signal([(here, "alice")], "payoff") is None


def test_the_interval_is_that_of_this_signal_and_these_roles():
    """Nothing in 12 games: Wilson's interval of 0 of 12, up to z²/(12 + z²) with z² = 3.8415. Neither what is ``paid``
    (-1) nor what another role wins (9) moves its bounds."""
    found = mean_signal([([episode(task, alice=[0.0], bob=[9.0]) for task in range(12)], "alice")], "won")
    assert (found.value, found.low, found.n) == (0.0, 0.0, 12) and found.high == pytest.approx(0.24249, abs=1e-5)


def test_matrices_fit_80_columns():
    players = [{"run": f"runs/{i // 6}", "seed": i // 6, "step": i % 6 * 25} for i in range(12)]
    value = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    judge = {"mcc": None, "balanced_accuracy": value}
    cells = [{"row": i, "column": j, "won": value, **judge} for i in range(12) for j in range(12)]
    cells[0]["mcc"] = value
    found = {"players": players, "seats": ["solver", "bob"], "signal": "won", "cells": cells, "asked": 64, "n": 4}
    found |= {"problems": 64}
    lines = lines_of(found)
    assert all(len(line) <= 80 for line in lines) and "3 more columns" in lines[-1]
    assert "won of the row as solver" in lines and "Matthews correlation of the verifier" in lines
    assert "balanced accuracy of the verifier" in lines
    assert "gap: believed minus right" not in lines


def game_of(**options):
    """A game of two over two solutions or, with a critic, over one's own."""
    return (debate_solve if "critic" in options else debate)(**{**SMALL, **options})


def run_of(tmp_path, name, **options):
    out = tmp_path / name
    api.run(override(game_of(**options), BRIEF), out, checkpoint_every=1, keep_every=2)
    return out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--seats alice bob --role judge", "--role | --seats"),
        ("--seats alice bob --rollouts 9", "--rollouts | --on-rollouts"),
        ("--on-rollouts --split=validation", "--split | --on-rollouts"),
        ("--on-rollouts --signal paid", "--signal | --seats"),
        ("--signal paid", "--signal | --seats"),
        ("--rollouts 9", "--rollouts | --on-rollouts"),
    ],
)
def test_a_flag_that_the_matrix_does_not_look_at_is_refused(words, named, capsys):
    command_refuses(["xplay", "nowhere", *words.split()], f"E_COMMAND_LINE: {named}", capsys)


@pytest.mark.parametrize(
    ("one", "other", "code"),
    [
        ({}, {"critic": "opponent"}, "E_RUNS_DIFFER: evaluation.protocol | 'contest' | 'argue'"),
        ({}, {"judge": "frozen"}, "E_RUNS_DIFFER: evaluation.options.jury"),
        ({}, {"drafts": 8}, "E_RUNS_DIFFER: evaluation.options.drafts"),
        ({}, {"turns": 2}, "E_RUNS_DIFFER: evaluation.options.turns"),
        ({}, {"words": 9}, "E_RUNS_DIFFER: evaluation.options.words"),
        ({"critic": "opponent"}, {"critic": "consultant"}, "E_RUNS_DIFFER: evaluation.options.critic | 'consultant'"),
        ({}, {"model": "shipped-games"}, "E_RUNS_DIFFER: 'solver' | 'shipped-games'"),
    ],
)
def test_players_of_one_game_meet_and_no_others(one, other, code):
    mine, seated = game_of(**one), ("solver" if one else "alice", "bob")
    with refuses(code) as told:
        check_same_games({"a": mine, "b": game_of(**other)}, seated)
    assert "\n" not in str(told.value) and str(told.value).endswith("; expected one game")
    alike = game_of(**{**one, "seed": 1, "lr": 1e-3, "lora": 4, "group_size": 4})
    check_same_games({"a": mine, "b": alike, "c": mine}, seated)


@pytest.mark.whole
def test_one_pair_of_a_small_run(tmp_path, capsys):
    """Its start and its end, an adapter; each rival has the weights of its own column."""
    run = run_of(tmp_path, "run", critic="opponent", steps=1, lora=2)
    capsys.readouterr()
    words = ["xplay", str(run), "--seats", "solver", "bob", "--problems=2", "--samples=1", "--threads=1"]
    command_refuses([*words, "--signal=wonn"], "E_UNKNOWN_SIGNAL: 'wonn' | 'won'", capsys)
    assert main(words) == 0 and "won of the row as solver" in capsys.readouterr().out
    found = json.loads((run / "seats.json").read_text())
    assert [(cell["row"], cell["column"]) for cell in found["cells"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(0.0 <= cell["won"]["value"] <= 1.0 for cell in found["cells"])
    start, end = points_of(str(run), recipe := rebuild_recipe(run), 1)
    learned = manifest.checkpoint_at(RunDirectory.open(run), 1).load()[0]["debater"]
    opened, loaded = set(), []
    for trainer in seat_trainers(end, [end, start, end], {str(run): recipe}, "bob", "cpu"):
        opened.add(id(trainer))
        row, rival = (trainer.policies[name].tensors() for name in ("debater", RIVAL))
        assert all(torch.equal(row[name], learned[name]) for name in learned)
        renamed = {name: name.replace(".policy-debater.", f".policy-{RIVAL}.") for name in learned}
        loaded.append(all(torch.equal(rival.get(renamed[n], torch.zeros(0)), learned[n]) for n in learned))
    assert loaded == [True, False, True] and len(opened) == 1


@pytest.mark.whole
def test_debaters_of_two_seeds_meet(tmp_path, capsys, monkeypatch):
    runs = [run_of(tmp_path, str(seed), seed=seed, steps=2, drafts=8, model="shipped-games") for seed in (0, 1)]
    capsys.readouterr()
    words = ["xplay", *map(str, runs), "--seats", "alice", "bob", "--every", "2", "--problems", "8", "--threads", "1"]
    assert main([*words, "--samples", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((runs[0] / "seats.json").read_text()) == found
    assert [(p["seed"], p["step"]) for p in found["players"]] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    table = {(cell["row"], cell["column"]): cell for cell in found["cells"]}
    assert len(table) == 16 and any(cell["either"] is not None for cell in found["cells"])
    for i, j in table:
        mine, theirs = table[i, j]["either"], table[j, i]["either"]
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine["value"] + theirs["value"] == pytest.approx(1.0)  # of a constant sum
    assert table[0, 0] == {**table[2, 2], "row": 0, "column": 0}  # both starts are one model

    # What pairs have played is kept until it is written.
    write = Files.write

    def refuse_result(self, file, block):
        if is_staging_of(file.name.name, "seats.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, file, block)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "write", refuse_result)
        command_refuses([*words, "--samples", "2"], "E_DISK_REFUSED: seats.json", capsys)
    with monkeypatch.context() as patch:
        patch.setattr(RolloutRunner, "collect", None)
        assert main([*words, "--samples", "2"]) == 0
    assert json.loads((runs[0] / "seats.json").read_text()) == found
    assert not list(runs[0].glob(".seats.json*"))

    command_refuses([*words, "--on-rollouts"], "E_TWO_MATRICES: --on-rollouts | --seats", capsys)


@pytest.mark.whole
def test_solvers_meet_critics_and_the_judge_is_measured(tmp_path, monkeypatch):
    run = run_of(tmp_path, "run", critic="opponent", steps=2, model="shipped-games")
    found = play_seats([run], roles=("solver", "bob"), every=2, problems=12, n=2)
    assert len(found["cells"]) == 4 and "either" not in found["cells"][0]
    assert all(0.0 <= cell["won"]["value"] <= 1.0 and "gap" in cell for cell in found["cells"])
    assert lines_of(found)[1].startswith("12 problems")
    with refuses("E_UNKNOWN_ROLE", names="carol"):
        play_seats([run], roles=("solver", "carol"), every=2)
    with refuses("E_SEAT_NOT_TRAINED", names="'judge'"):
        play_seats([run], roles=("solver", "judge"), every=2)

    recipe = recipe_to_measure(run)
    server = remote("http://127.0.0.1:9/v1", "judge", deadline=0.2)  # is gone: its verdicts were none, and were kept
    silent = replace(recipe, policies={**recipe.policies, recipe.roles["judge"].policy: server})
    monkeypatch.setattr(seats, "recipe_to_measure", lambda directory: silent)
    with refuses("E_SERVER_SILENT", names=("xplay", f"'{recipe.roles['judge'].policy}'")):
        play_seats([run], roles=("solver", "bob"), every=2, problems=2)


@pytest.mark.whole
def test_two_games_do_not_meet(tmp_path):
    one = run_of(tmp_path, "one", critic="opponent", steps=2, model="shipped-games")
    other = tmp_path / "other"
    api.run(override(grpo(steps=1, **SMALL), BRIEF), other)
    with refuses("E_RUNS_DIFFER"):
        play_seats([one, other], roles=("solver", "solver"), every=1)
