"""Cross-play: the figures of a pair by hand, and whole runs of tiny models."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace

import pytest

from cotrain import api
from cotrain.analysis.attack import reviewed
from cotrain.analysis.attack.tables import Attempt, AttemptOutcome
from cotrain.analysis.attack.xplay import REFERENCE, DrawnSolutions, RunPoint, lines_of, pair_figures, solved_share
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.config.remote import remote
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Sampling, Trace
from cotrain.data.word_problems.source import study_problems
from cotrain.formats.solutions import parse_solution
from cotrain.recipes.tango import tango
from cotrain.rollout import common_roles
from cotrain.rollout.role import Role
from cotrain.storage import checkpoints
from cotrain.storage.file_ops import Files, is_staging_of
from cotrain.storage.ledger import Ledger
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-2}
BRIEF = ["evaluation.splits=[]", "evaluation.group_size=1"]


def judged(problem, final, score, refused=False):
    attempt = Attempt(injection=None, problem=problem, text="", solution=None)
    return AttemptOutcome(attempt=attempt, refused=refused, final=final, score=score)


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
    drawn = DrawnSolutions(attempts=tuple(one.attempt for one in outcomes), right=right)
    found = pair_figures(drawn, outcomes)
    assert found["true_positive_rate"]["value"] == 0.5 and found["false_positive_rate"]["value"] == 0.5
    assert found["balanced_accuracy"]["value"] == 0.5 and found["balanced_accuracy"]["n"] == 4
    assert found["best_of_n"]["value"] == pytest.approx(1 / 3) and found["unread"] == 0.25
    assert found["mcc"]["value"] == 0.0  # one of each cell
    assert solved_share(drawn)["value"] == 0.5


def test_nothing_drawn_is_nothing_known():
    nothing = DrawnSolutions(attempts=(), right=())
    assert solved_share(nothing) is None and set(pair_figures(nothing, []).values()) == {None}


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
    lines = lines_of({"verifiers": points, "cells": cells, "problems": 1, "asked": 64, "n": 4})
    assert "1 problem (64 asked), n = 4; rows: " in lines[2]
    assert all(len(line) <= 80 for line in lines) and lines[:2] == ["A: runs/0", "B: runs/1"]
    assert "3 more verifiers" in lines[-1] and sum(line.startswith("B125 ") for line in lines) == 3


def test_checkpoints_of_every_so_many_steps_stay(tmp_path):
    import torch

    for step in range(1, 10):
        checkpoints.save_checkpoint(tmp_path, step, {"p": {"w": torch.ones(1)}}, {"state": {}}, keep_every=3)
    assert checkpoints.checkpoint_steps(tmp_path) == [3, 6, 8, 9]


def test_steps_without_a_checkpoint_cannot_be_kept(tmp_path):
    with refuses("E_CHECKPOINT_MULTIPLE", names=("3 steps", "every 2")):
        api.run(
            tango(steps=4, warmup=0, tasks=EASY, seed=0, **SMALL), tmp_path / "run", checkpoint_every=2, keep_every=3
        )


def solution(step, task, member, right, text="<step> a=1</step><answer>1</answer>"):
    address = Address(step=step, task=task, member=member, role="solver", call=0)
    trace = Trace(
        address=address, role="solver", policy="generator", version=step, group="", prompt_ids=(1,), token_ids=(2,),
        logprobs=(-0.5,), text=text, finish="stop", rewards=(), findings={"problem": f"problem {task}"},
        metadata={} if right is None else {"correct": right, "gold": "1"},
    )  # fmt: skip
    return Episode(step=step, task=task, member=member, task_id=f"words/train/{task}", traces=(trace,))


def test_a_sample_of_the_ledger_is_the_same_always_and_leaves_out_what_is_not_known(tmp_path):
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, [solution(0, task, m, (task + m) % 2 == 0) for task in range(4) for m in range(5)])
        ledger.append(3, [solution(3, 0, 0, None), solution(3, 1, 0, True, "no tags"), solution(3, 2, 0, True)])
    tasks = []
    first = reviewed.sample_solutions(tmp_path, 0, 8, tasks, {})
    assert len(first.right) == 8 and set(first.right) == {True, False}
    assert [one.prompt for one in tasks] == sorted(one.prompt for one in tasks) and tasks[0].gold == "1"
    again = []
    assert reviewed.sample_solutions(tmp_path, 0, 8, again, {}) == first
    only = reviewed.sample_solutions(tmp_path, 3, 8, tasks, {})
    assert only.right == (True,) and tasks[only.attempts[0].problem].prompt == "problem 2"
    assert reviewed.sample_solutions(tmp_path, 0, 99, [], {})  # fewer than asked for are all of them


def test_with_a_reference_rollouts_without_truth_are_drawn_too_and_ungraded_ones_are_not(tmp_path):
    ungraded = solution(0, 3, 0, None)
    ungraded = replace(ungraded, traces=(replace(ungraded.traces[0], failure="timeout"),))
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, [solution(0, 0, 0, True), solution(0, 1, 0, None), solution(0, 2, 0, None, "no"), ungraded])
    tasks = []
    drawn = reviewed.sample_solutions(tmp_path, 0, 8, tasks, {}, unknown=True)
    assert drawn.right == (True, None) and [one.prompt for one in tasks] == ["problem 0", "problem 1"]
    assert reviewed.sample_solutions(tmp_path, 0, 8, [], {}).right == (True,)
    said = [judged(0, True, 0.9), judged(1, False, 0.1)]
    found = pair_figures(drawn, said)
    assert found["true_positive_rate"]["n"] == 1 and found["false_positive_rate"] is None and found["unread"] == 0
    assert solved_share(drawn)["value"] == 1.0 and solved_share(drawn)["n"] == 1


def test_solutions_in_words_of_their_own_are_read_as_their_role_reads_them(tmp_path):
    role = Role(
        policy="generator",
        prompt="{problem}",
        sampling=Sampling(max_tokens=8),
        parse=parse_solution,
        answer_format="phrase",
    )
    with Ledger(tmp_path / "episodes") as ledger:
        ledger.append(0, [solution(0, 0, 0, True, "2 + 2 = 4\nThe answer is 4.")])
    assert reviewed.sample_solutions(tmp_path, 0, 8, [], {}) is None
    [attempt] = reviewed.sample_solutions(tmp_path, 0, 8, [], {"solver": role}).attempts
    assert attempt.solution.answer == "4" and attempt.text == attempt.solution.tagged


def test_judges_beside_each_other_by_hand():
    drawn = DrawnSolutions(
        attempts=tuple(judged(place // 2, None, None).attempt for place in range(10)),
        right=(True, True, False, False, False, None, None, None, None, None),
    )
    reference = [True, False, False, False, True, True, False, None, True, None]
    verifier = [True, True, True, False, False, True, True, True, None, None]
    outcomes = [[[judged(0, final, None) for final in said]] for said in (reference, verifier)]
    of_verifier, of_truth, of_reference = reviewed.compare_verifiers([drawn], outcomes, [1], [0])
    # both could judge the first seven: the verifier calls 5 right, the reference 3; they agree on 1, 4 and 6
    assert (of_verifier["verifier"], of_verifier["reference"], of_verifier["n"]) == (1, 0, 7)
    assert of_verifier["called_right"]["value"] == pytest.approx(5 / 7)
    assert of_verifier["reference_called_right"]["value"] == pytest.approx(3 / 7)
    assert of_verifier["gap"]["value"] == pytest.approx(2 / 7)
    assert of_verifier["gap"]["low"] < 2 / 7 < of_verifier["gap"]["high"]
    assert of_verifier["agreement"]["value"] == pytest.approx(3 / 7)
    # chance: (5 · 3 + 2 · 4) / 49 = 23/49; κ = (21 − 23) / (49 − 23)
    assert of_verifier["kappa"]["value"] == pytest.approx(-2 / 26)
    # the truth of the first five: 2 are right, of which the verifier calls 3 right and the reference 2
    assert (of_truth["verifier"], of_truth["reference"], of_truth["n"]) == (1, None, 5)
    assert of_truth["gap"]["value"] == pytest.approx(1 / 5)
    assert of_reference["verifier"] == 0 and of_reference["gap"]["value"] == pytest.approx(0.0)
    assert of_reference["kappa"]["value"] == pytest.approx((5 * 3 - 13) / (25 - 13))  # 3 agree; chance: 2 · 2 + 3 · 3


def test_kappa_of_judges_that_always_say_the_same_is_not_known():
    drawn = DrawnSolutions(attempts=(judged(0, None, None).attempt,) * 3, right=(None,) * 3)
    said = [[judged(0, True, None)] * 3]
    own, truth, _ = reviewed.compare_verifiers([drawn], [said, said], [1], [0])
    assert own["agreement"]["value"] == 1.0 and own["gap"]["value"] == 0.0 and own["kappa"] is None
    assert truth["gap"] is None and truth["n"] == 0


def test_a_reference_is_asked_as_the_verifier_is_where_both_know_the_same_formats():
    recipe = tango(steps=4, warmup=0, tasks=EASY, seed=0, **SMALL)
    judge = replace(recipe.roles["verifier"], sampling=Sampling(max_tokens=99, temperature=0.5))
    alike = reviewed.with_reference(recipe, judge, "shipped-checker")
    assert alike.roles[REFERENCE] == replace(judge, policy=REFERENCE)
    server = "http://127.0.0.1:9/v1#chat"
    other = reviewed.with_reference(recipe, judge, server).roles[REFERENCE]
    assert other == common_roles.verifier(REFERENCE, server, temperature=0.5) and other.prompt != judge.prompt


def test_rollouts_are_those_of_the_checkpoints(tmp_path):
    def steps(*points):
        return reviewed.played_steps(tmp_path, [RunPoint(run="r", seed=0, step=step) for step in points])

    assert steps(0, 4) == {}
    with Ledger(tmp_path / "episodes") as ledger:
        for step in (0, 1, 2, 5, 6):
            ledger.append(step, [])
    assert steps(0, 2, 4, 7) == {0: 0, 2: 1, 5: 2, 6: 3}  # 4 was not recorded; after 7 there is nothing
    assert steps(0, 6, 7) == {0: 0, 6: 1}  # which played step 6 with the weights of its own checkpoint


def test_reviews_of_rollouts_fit_80_columns():
    value = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    cells = [
        {"generator": i, "verifier": j, **dict.fromkeys(reviewed.SHOWN, value)} for i in range(3) for j in range(10)
    ]
    rows = [{"step": 1000 * i, "n": 128} for i in range(3)]
    lines = reviewed.lines_of(
        {"generators": rows, "verifiers": [{"step": 1000 * j} for j in range(10)], "cells": cells, "pairs": []}
    )
    assert all(len(line) <= 80 for line in lines) and "2001 n 128" in lines[-2] and "2 more verifiers" in lines[-1]


@pytest.mark.whole
def test_stored_verifiers_review_the_runs_own_rollouts(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    small = {**SMALL, "model": "shipped", "lr": 1e-4}  # which writes what can be read
    recipe = tango(steps=3, warmup=1, reviews=2, tasks=EASY, seed=0, **small)
    api.run(override(recipe, BRIEF), run, checkpoint_every=1, keep_every=2)
    capsys.readouterr()
    words = ["xplay", str(run), "--on-rollouts", "--every", "2", "--rollouts", "3", "--threads", "1"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((run / "reviewed.json").read_text()) == found
    assert [one["step"] for one in found["verifiers"]] == [0, 2, 3]
    rows = found["generators"]
    assert {one["step"] for one in rows} <= {0, 2} and all(1 <= one["n"] <= 3 for one in rows)
    assert [(c["generator"], c["verifier"]) for c in found["cells"]] == [
        (i, j) for i in range(len(rows)) for j in range(3)
    ]
    assert all(cell["n"] == rows[cell["generator"]]["n"] for cell in found["cells"])

    # Reviews are kept until they are written.
    write = Files.write

    def refuse_result(self, file, block):
        if is_staging_of(file.name.name, "reviewed.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, file, block)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "write", refuse_result)
        command_refuses(words, "E_DISK_REFUSED: reviewed.json", capsys)
    assert main(words) == 0 and "going on with what an earlier try has left" in capsys.readouterr().out
    assert json.loads((run / "reviewed.json").read_text()) == found
    assert not list(run.glob(".reviewed.json*"))

    command_refuses([*words[:2], run, *words[2:]], "E_ONE_RUN_ALONE: --on-rollouts", capsys)


@pytest.mark.whole
def test_references_review_the_same_rollouts(tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    api.run(override(tango(steps=2, warmup=1, reviews=2, tasks=EASY, seed=0, **SMALL), BRIEF), run, checkpoint_every=1)
    capsys.readouterr()
    words = ["xplay", str(run), "--on-rollouts", "--every", "1", "--threads", "1", "--reference"]
    missing = tmp_path / "nobody"
    assert main([*words, TINY, str(missing)]) == 2 and "judged" not in capsys.readouterr().out
    command_refuses([*words, TINY, missing], f"E_MODEL_NOT_FOUND: '{missing}'", capsys)
    command_refuses([*words, "http://127.0.0.1:9/v1"], "E_REMOTE_MODEL_UNNAMED: #judge", capsys)
    with monkeypatch.context() as patched:  # a server that is gone
        patched.setattr(reviewed, "frozen", lambda model: remote("http://127.0.0.1:9/v1", "judge", deadline=0.2))
        assert main([*words, "http://127.0.0.1:9/v1#judge"]) != 0
    [note, line] = capsys.readouterr().err.splitlines()
    assert "policy 'outside_judge': http://127.0.0.1:9/v1: no connection" in note
    assert "requests to policy 'outside_judge' had no answer" in line and "'judge'" in line
    assert not (run / "reviewed.json").exists()
    assert main([*words, "shipped-checker", TINY]) == 0
    printed = capsys.readouterr().out
    found = json.loads((run / "reviewed.json").read_text())
    assert found["verifiers"][:2] == [{"model": "shipped-checker"}, {"model": TINY}]
    assert [one["step"] for one in found["verifiers"][2:]] == [0, 1, 2]
    rows = found["generators"]
    assert {(c["generator"], c["verifier"]) for c in found["cells"]} == {
        (i, j) for i in range(len(rows)) for j in range(5)
    }
    own = {0: 2, 1: 3}  # which verifier played a step, of the list
    assert [(p["generator"], p["verifier"], p["reference"]) for p in found["pairs"]] == [
        (i, *pair)
        for i, row in enumerate(rows)
        for pair in (
            (own[row["step"]], 0),
            (own[row["step"]], 1),
            (own[row["step"]], None),
            (0, 1),
            (0, None),
            (1, None),
        )
    ]
    assert all(pair["n"] <= rows[pair["generator"]]["n"] for pair in found["pairs"])
    assert f"A: shipped-checker\nB: {TINY}\n" in printed and "A (first) and B (second)" in printed
    assert all(len(line) <= 80 for line in printed.splitlines() if " (second)" in line or line[:1].isdigit())
    command_refuses(["xplay", str(run), "--reference", TINY], "E_COMMAND_LINE: --reference | --on-rollouts", capsys)


@pytest.mark.whole
def test_a_run_without_checkpoints_says_so(tmp_path, capsys):
    run = tmp_path / "run"
    api.run(override(tango(steps=2, warmup=1, reviews=2, tasks=EASY, seed=0, **SMALL), BRIEF), run)
    for path in sorted((run / "checkpoints").iterdir()):
        shutil.rmtree(path)
    capsys.readouterr()
    command_refuses(["xplay", str(run), "--on-rollouts"], "E_NO_CHECKPOINT_TO_CROSS: run has | --keep-every", capsys)


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
    api.run(override(tango(steps=5, warmup=1, tasks=study_problems((3, 4)), seed=0, **SMALL), BRIEF), other)
    capsys.readouterr()
    command_refuses(["xplay", str(runs[0]), str(other)], "E_RUNS_DIFFER: other has | seed-0", capsys)
