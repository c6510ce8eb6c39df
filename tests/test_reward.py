"""A reward of the user's own, in ten lines: paid in place of the truth, and found again by a run that goes on."""

import asyncio
import json
import re
import runpy
from pathlib import Path

import pytest

import cotrain
from cotrain import api
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.recipes.grpo import grpo
from cotrain.rollout.user_rewards import wants_all
from cotrain.runs.changes import rebuild_recipe
from cotrain.storage.ledger import Ledger
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

PAGE = Path(__file__).parents[1] / "docs" / "method-from-scratch.md"
SHORT = "def short(task, answer, correct):\n    return correct - 0.5 * answer.tokens\n"
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 2, "kl": 0.0}


def turns(folder):
    with Ledger(folder / "episodes") as ledger:
        return [trace for episode in ledger.read(0) for trace in episode.traces]


@pytest.mark.whole
def test_the_flag_pays_by_the_function_and_the_truth_is_kept(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(SHORT)
    out = tmp_path / "run"
    words = ["run", "grpo", "--smoke", "--steps", "1", "--model", TINY, "--threads", "1", "--kl", "0"]
    assert main([*words, "--reward", f"{tmp_path / 'mine.py'}:short", "--out", str(out)]) == 0
    played = turns(out)
    assert played
    for trace in played:
        paid = {signal.name: signal.value for signal in trace.rewards}
        assert paid["reward"] == paid["outcome"] - 0.5 * len(trace.token_ids)
    saved = json.loads((out / "recipe.json").read_text())
    assert saved["origin"]["arguments"]["reward"] == {"function": f"{tmp_path / 'mine.py'}:short"}
    assert saved["settings"]["objectives"]["generator"]["algorithm"]["reward_weights"] == {"reward": 1.0}
    assert main(["resume", str(out), "--steps", "2", "--threads", "1"]) == 0
    assert "2 steps" in capsys.readouterr().out


def test_the_ten_lines_of_the_page_run(tmp_path, monkeypatch):
    (source,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len([line for line in source.splitlines() if line.strip()]) <= 10
    (tmp_path / "mine.py").write_text(source)
    begun = []
    monkeypatch.setattr(cotrain, "run", lambda recipe, out: begun.append((recipe, out)))
    runpy.run_path(str(tmp_path / "mine.py"), run_name="__main__")
    ((recipe, out),) = begun
    assert out == "runs/short" and recipe.steps == 100
    assert recipe.origin.arguments["reward"] == {"function": f"{tmp_path / 'mine.py'}:short"}


@pytest.mark.whole
def test_a_function_of_no_file_runs_and_says_what_a_resumed_run_needs(tmp_path):
    def longer(task, answer, correct):
        return answer.tokens

    recipe = override(grpo(reward=longer, steps=1, **SMALL), ["evaluation.splits=[]", "evaluation.group_size=1"])
    api.run(recipe, tmp_path / "run")
    assert all(trace.rewards for trace in turns(tmp_path / "run"))
    with refuses("E_CODE_PLACE", names="function"):
        rebuild_recipe(tmp_path / "run")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("mine.py:shirt", "E_NO_SUCH_FUNCTION: 'shirt' | 'short'"),
        ("mine.py", "E_CODE_PLACE: 'mine.py' | file.py:function"),
        ("none.py:short", "E_CODE_FILE_MISSING: none.py"),
        ("mine.py:of_two", "E_FUNCTION_SIGNATURE: def of_two(task, answer, correct)"),
    ],
    ids=["function", "place", "file", "signature"],
)
def test_what_is_no_function_is_refused_before_the_run(target, code, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(f"{SHORT}\n\ndef of_two(task, answer): ...\n")
    monkeypatch.chdir(tmp_path)
    command_refuses(["run", "grpo", "--reward", target, "--out", "run"], code, capsys)
    assert not (tmp_path / "run").exists()


def test_a_reward_and_noise_of_the_truth_do_not_go_together():
    with refuses("E_NOISE_WITH_REWARD"):
        grpo(reward=len, outcome_noise=0.1, **SMALL)


@pytest.mark.whole
def test_a_function_that_fails_is_named_with_its_line(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def bad(task, answer, correct):\n    return answer.words\n")
    words = ["run", "grpo", "--smoke", "--model", TINY, "--threads", "1", "--kl", "0", "--steps", "1"]
    command_refuses(
        [*words, "--reward", f"{tmp_path / 'mine.py'}:bad", "--out", str(tmp_path / "run")],
        "E_TOO_MANY_FAILURES: mine.py, line 2: AttributeError",
        capsys,
    )


def leaves(*_):
    raise SystemExit(3)


class NoNumber:
    __float__ = leaves


@pytest.mark.whole
@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (lambda: float("nan"), "failures/solver: reward reward out of range"),
        (lambda: 1e308, "failures/solver: reward reward out of range"),
        (lambda: 10**400, "failures/solver: reward reward out of range"),
        (NoNumber, "failures/solver: reward reward out of range"),
        (leaves, "failures/test_reward.py, line 109: SystemExit: 3"),
    ],
    ids=["nan", "1e308", "10**400", "no number", "leaves"],
)
def test_an_odd_reward_costs_one_answer(odd, reason):
    """One of four answers; the others are learned from."""
    seen = []

    def reward(task, answer, correct):
        seen.append(answer)
        return odd() if len(seen) % 4 == 1 else float(len(seen) % 2)

    trainer = CoTrainer(grpo(reward=reward, **SMALL | {"group_size": 4}))
    done = trainer.step()
    trainer.close()
    assert done.row[reason] == 2 and len(seen) == 8
    assert done.row["generator/credit/traces"] == 6


def played(reward, **more):
    """The traces of one step under this reward, and what each was paid."""
    with_more = SMALL | {"group_size": 4} | more
    trainer = CoTrainer(grpo(reward=reward, **with_more))
    done = trainer.step()
    trainer.close()
    traces = [trace for episode in done.episodes for trace in episode.traces]
    return traces, [next((s.value for s in trace.rewards if s.name == "reward"), None) for trace in traces]


async def asked(task, answer, correct):
    await asyncio.sleep(0.001 * (answer.tokens % 3))
    return float(answer.tokens)


def ranked(tasks, answers, corrects):
    CALLS.append([str(answer.address) for answer in answers])
    assert len(tasks) == len(answers) == len(corrects)
    return [float(place) for place in range(len(answers))]


async def ranked_elsewhere(tasks, answers, corrects):
    await asyncio.sleep(0.01)
    return tuple(ranked(tasks, answers, corrects))


CALLS = []


def test_a_reward_may_be_async():
    traces, paid = played(asked)
    assert len(traces) == 8 and paid == [float(len(trace.token_ids)) for trace in traces]


@pytest.mark.parametrize("reward", [ranked, ranked_elsewhere], ids=["at once", "awaited"])
def test_a_reward_may_want_all_answers_of_a_step_in_one_call(reward):
    CALLS.clear()
    traces, paid = played(reward)
    (addresses,) = CALLS
    assert addresses == [str(trace.address) for trace in traces]  # in the order of the episodes
    assert paid == [float(place) for place in range(8)]


def test_of_one_call_too_few_values_are_told():
    def short_of_one(tasks, answers, corrects):
        return [1.0] * (len(answers) - 1)

    with refuses("E_TOO_MANY_FAILURES", names=("short_of_one", "gave 7")):
        played(short_of_one)


def test_of_one_call_an_odd_value_costs_one_answer():
    _, paid = played(lambda tasks, answers, corrects: [float("nan"), *[1.0] * (len(answers) - 1)])
    assert paid == [None, *[1.0] * 7]


def test_who_wants_all_answers_says_so_by_a_name():
    assert wants_all(ranked) and wants_all(ranked_elsewhere)
    assert not wants_all(asked) and not wants_all(len) and not wants_all(print)
