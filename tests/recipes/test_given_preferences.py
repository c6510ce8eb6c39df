"""DPO and reward models on preferences that are given: what is said, what is learned, what is measured."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from cotrain.cli.main import main
from cotrain.core.types import Episode
from cotrain.data.files import JsonlTasks
from cotrain.data.preferences import Chats, Pairs
from cotrain.data.word_problems.source import study_problems
from cotrain.recipes.grpo import grpo
from cotrain.recipes.pair_judge import pair_judge
from cotrain.recipes.preferences import dpo, reward
from cotrain.reports.live import step_line
from cotrain.rollout.pairs import TOO_LONG, measure_pair_order, replies_of
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

SMALL = {"model": TINY, "tasks_per_step": 4, "evaluation_tasks": 4, "lr": 1e-3}


def word_pairs(count, **more):
    """Worked solutions before those of another problem."""
    tasks = [EASY.get("train", i) for i in range(count + 1)]
    return [{"prompt": a.prompt, "chosen": a.solution, "rejected": b.solution, **more} for a, b in pairwise(tasks)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def said(trainer):
    """(role → texts of its prompts and replies) of the first step."""
    traces = [t for e in trainer.step().episodes for t in e.traces]
    return [(trainer.policies.renderers["generator"].decode(t.prompt_ids), t) for t in traces]


@pytest.mark.whole
def test_texts_are_asked_as_a_solver_is_and_messages_as_they_stand(tmp_path):
    rows = word_pairs(30)
    trainer = CoTrainer(dpo(tasks=Pairs(write(tmp_path / "a.jsonl", rows)), **SMALL))
    by_prompt = {row["prompt"]: row for row in rows}
    for prompt, trace in said(trainer):
        row = by_prompt[trace.findings["problem"]]
        assert prompt.strip().endswith(f"{row['prompt']}\nSolve:")
        assert trace.text == row["chosen" if trace.metadata["correct"] else "rejected"]
        assert trace.rewards[0].value == float(trace.metadata["correct"])
    begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    chats = [
        {"prompt": [*begun, {"role": "user", "content": f"{n}?"}], "chosen": f"yes {n}", "rejected": "no"}
        for n in range(30)
    ]
    trainer = CoTrainer(dpo(tasks=Pairs(write(tmp_path / "b.jsonl", chats)), **SMALL))
    for prompt, trace in said(trainer):
        number = trace.findings["problem"].rpartition(" ")[2].rstrip("?")
        parts = [prompt.find(text) for text in ("Hi", "Hello.", f"{number}?")]
        assert -1 < parts[0] < parts[1] < parts[2] and "Solve:" not in prompt


@pytest.mark.whole
@pytest.mark.parametrize("make", [dpo, reward])
def test_pairs_are_learned_and_held_out_ones_are_measured(make, tmp_path):
    rows = [row | ({"rejected": "I do not know."} if make is reward else {}) for row in word_pairs(60)]
    trainer = CoTrainer(make(steps=12, tasks=Pairs(write(tmp_path / "a.jsonl", rows)), **SMALL))
    policy = "generator" if make is dpo else "rm"
    key = f"{policy}/pair_accuracy"
    (start, _), rows = trainer.evaluate("test", 4), [trainer.step().row for _ in range(12)]
    end, episodes = trainer.evaluate("test", 4)
    assert start[key].value == 0.5 < end[key].value and start[key].n == end[key].n == len(episodes) > 2
    assert rows[0][key] == 0.5 and rows[-1][key] > 0.5
    assert all(row[f"{policy}/pairs"] == 4.0 for row in rows)


@pytest.mark.whole
@pytest.mark.parametrize("make", [dpo, reward])
def test_the_line_of_a_step_says_what_is_learned_and_not_that_half_of_given_replies_are_right(tmp_path, make):
    trainer = CoTrainer(make(tasks=Pairs(write(tmp_path / "a.jsonl", word_pairs(30))), **SMALL))
    row = trainer.step().row
    trainer.close()
    assert 0.5 in (row.get("teacher/accuracy"), row.get("rater/accuracy"))
    line = step_line(row, 3, 1.0, None)
    assert "right" not in line and "chosen" not in line and "label" not in line
    assert "pairs in order" in line


def test_the_first_step_of_dpo_is_that_of_the_loss(tmp_path):
    """At the start m = 0 for each pair, so ∂L/∂log π(y⁺) = −β/2 and ∂L/∂log π(y⁻) = β/2 at every token."""
    trainer = CoTrainer(dpo(beta=0.4, tasks=Pairs(write(tmp_path / "a.jsonl", word_pairs(30))), **SMALL))
    step = trainer.step()
    assert step.row["generator/margin"] == 0.0 and step.row["generator/beta"] == 0.4
    wanted = {str(t.address): t.metadata["correct"] for e in step.episodes for t in e.traces}
    assert len(step.advantages) == len(wanted) == 8
    for key, by_objective in step.advantages.items():
        assert [value for value, _ in by_objective["generator"]] == [pytest.approx(0.2 if wanted[key] else -0.2)]


@pytest.mark.whole
def test_a_pair_that_is_too_long_is_left_out_and_counted(tmp_path):
    rows = word_pairs(30)
    for row in rows[::2]:
        row["rejected"] *= 9
    trainer = CoTrainer(dpo(max_tokens=150, tasks=Pairs(write(tmp_path / "a.jsonl", rows)), **SMALL))
    long = {row["prompt"] for row in rows[::2]}
    step = trainer.step()
    traces = [t for e in step.episodes for t in e.traces]
    assert {t.failure for t in traces if t.findings["problem"] in long} == {TOO_LONG}
    assert {t.failure for t in traces if t.findings["problem"] not in long} == {None}
    drawn = len({t.findings["problem"] for t in traces} & long)
    assert 0 < drawn < 4 and step.row["generator/pairs"] == 4.0 - drawn
    assert step.row[f"failures/teacher: {TOO_LONG}"] == 2.0 * drawn
    figures, played = trainer.evaluate("test", 4)
    fit = [e for e in played if e.traces[0].failure is None]
    assert figures["generator/pair_accuracy"].n == len(fit)


def test_a_pair_that_a_judge_cannot_read_whole_is_left_out_and_counted(tmp_path):
    rows = word_pairs(30)
    for row in rows[::3]:
        row["rejected"] *= 99
    trainer = CoTrainer(reward(tasks=Pairs(write(tmp_path / "a.jsonl", rows)), **SMALL))
    step = trainer.step()
    whole = [episode for episode in step.episodes if episode.failure is None]
    assert 0 < len(whole) < 4 and step.row["rm/pairs"] == len(whole)
    assert {e.failure for e in step.episodes if e not in whole} == {"prompt too long"}
    assert len(trainer.runner.set_aside) == 4 - len(whole)


@pytest.mark.whole
def test_pairs_in_order_by_hand(tmp_path):
    """Scores 2 > 1, 0 < 1 and 1 = 1: one and a half of three pairs."""
    trainer = CoTrainer(reward(tasks=Pairs(write(tmp_path / "a.jsonl", word_pairs(30))), **SMALL))
    episodes = trainer.step().episodes[:3]
    scored = [
        replace(e, traces=tuple(replace(t, score=s) for t, s in zip(e.traces, scores, strict=True)))
        for e, scores in zip(episodes, [(2.0, 1.0), (0.0, 1.0), (1.0, 1.0)], strict=True)
    ]
    assert all(isinstance(e, Episode) and [t.metadata["correct"] for t in e.traces] == [True, False] for e in scored)
    figure = measure_pair_order("rater", "rm")(scored)["rm/pair_accuracy"]
    assert (figure.value, figure.n) == (0.5, 3) and 0.0 <= figure.low < 0.5 < figure.high <= 1.0


def test_of_problems_a_worked_solution_is_wanted():
    task = study_problems((2, 2)).get("train", 0)
    wanted, unwanted = replies_of(task)
    assert wanted == task.solution and task.grade(wanted).value is True and task.grade(unwanted).value is False
    assert replies_of(task) == (wanted, unwanted)


@pytest.mark.whole
def test_what_is_no_preference_is_refused(tmp_path):
    pairs = Pairs(write(tmp_path / "a.jsonl", word_pairs(30)))
    with refuses("E_PREFERENCES_AS_TASKS", names=("a.jsonl", "dpo or reward")):
        CoTrainer(grpo(tasks=pairs, kl=0.0, **SMALL)).step()
    rows = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(40)]
    for make in (dpo, reward):
        with refuses("E_TASKS_NOT_PREFERENCES", names=(make.__name__, "'jsonl'", "--data FILE")):
            make(tasks=JsonlTasks(write(tmp_path / "b.jsonl", rows)), model=TINY)
    with refuses("E_SETTING_NOT_TAKEN", names=("reward", "'lora'")):
        reward(lora=4)


@pytest.mark.whole
def test_from_a_file_to_a_policy_and_a_judge_that_rl_begins_with(tmp_path, monkeypatch, capsys):
    """`cotrain dpo` and `cotrain reward`, exported, as --model of grpo and as the reward model of cooper."""
    monkeypatch.chdir(tmp_path)
    rows = word_pairs(60)
    rows[3]["chosen"] = rows[3]["rejected"]
    write(tmp_path / "pairs.jsonl", rows)
    flags = ["--model", TINY, "--steps", "3", "--tasks-per-step", "4", "--threads", "1", "--data", "pairs.jsonl"]
    for command in (["dpo"], ["run", "reward"], ["reward"]):
        out = command[-1] + str(len(command))
        assert main([*command, *flags, "--out", out]) == 0
        printed = capsys.readouterr().out
        assert "note: 1 pair is left out, as chosen and rejected are equal; the first: " in printed
        assert "pairs.jsonl, row 4\n" in printed
        summary = json.loads((tmp_path / out / "summary.json").read_text())
        figure = summary["after"][f"{'generator' if 'dpo' in command else 'rm'}/pair_accuracy"]
        assert figure["n"] > 2 and math.isfinite(figure["value"])
    assert (tmp_path / "reward1/metrics.jsonl").read_text() == (tmp_path / "reward2/metrics.jsonl").read_text()
    assert main(["dpo", *flags, "--dry-run"]) == 0
    assert 'tasks = "pairs"' in capsys.readouterr().out
    assert main(["export", "dpo1", "--role", "generator", "--out", "policy"]) == 0
    assert main(["export", "reward1", "--role", "rater", "--out", "judge"]) == 0
    short = ["--smoke", "--threads", "1", "--kl", "0"]
    assert main(["run", "grpo", "--model", "policy", *short, "--out", "rl"]) == 0
    judged = ["--model", "policy", "--rm-model", "judge", "--no-reference", *short]
    assert main(["run", "cooper", *judged, "--out", "judged"]) == 0
    assert "rater/true_negative_rate" in json.loads((tmp_path / "judged/summary.json").read_text())["before"]
    assert main(["dpo", "--data", "none.jsonl", "--out", "x"]) == 2
    write(tmp_path / "bad.jsonl", [*rows, {"prompt": "Q", "chosen": "a"}])
    code = "E_FIELD_MISSING: bad.jsonl, row 61 | 'rejected' | --lenient"
    command_refuses(["dpo", "--data", "bad.jsonl", "--out", "x"], code, capsys)


def test_conversations_without_an_unwanted_reply_are_no_preferences(tmp_path):
    chats = Chats(write(tmp_path / "c.jsonl", [{"prompt": f"{n}?", "completion": f"{n}."} for n in range(30)]))
    for method in (dpo, reward, pair_judge):
        with refuses("E_TASKS_NOT_PREFERENCES", names="'chats'"):
            method(tasks=chats, model=TINY)


def sums(lacking=()):
    """Problems with worked solutions, but for those of the numbers ``lacking``."""
    rows = [{"question": f"{n} + 1?", "answer": n + 1, "solution": f"{n} + 1 = {n + 1}"} for n in range(40)]
    for n in lacking:
        del rows[n]["solution"]
    return rows


@pytest.mark.parametrize("method", [dpo, reward, pair_judge])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_problem_without_a_solution_is_refused_wherever_it_stands(method, split, tmp_path):
    whole = JsonlTasks(write(tmp_path / "whole.jsonl", sums()))
    last = whole.get(split, whole.size(split) - 1)
    halved = JsonlTasks(write(tmp_path / "halved.jsonl", sums(lacking=[int(last.gold) - 1])))
    assert method(tasks=whole, model=TINY).tasks is whole
    with refuses("E_TASKS_WITHOUT_PAIR", names=(method.__name__, "1 of the 40", "'jsonl'", repr(last.prompt))):
        method(tasks=halved, model=TINY)


def test_a_solution_that_does_not_say_its_answer_makes_no_pair(tmp_path):
    rows = sums()
    rows[7]["solution"] = "<step>7 and one more.</step><answer>eight</answer>"
    with refuses("E_TASKS_WITHOUT_PAIR", names=("1 of the 40", "'7 + 1?'")):
        dpo(tasks=JsonlTasks(write(tmp_path / "a.jsonl", rows)), model=TINY)


@pytest.mark.parametrize("method", [dpo, reward, pair_judge])
def test_where_no_solution_says_its_answer_that_is_what_is_said(method, tmp_path):
    """Such tasks were once refused as having no worked solutions."""
    rows = [{**row, "answer": "yes", "solution": "<step>It is so.</step><answer>Yes</answer>"} for row in sums()]
    with refuses("E_TASKS_WITHOUT_PAIR", names=("40 of the 40", "a worked solution that says the answer")):
        method(tasks=JsonlTasks(write(tmp_path / "a.jsonl", rows)), model=TINY)


@pytest.mark.parametrize("end", ["", "\n", " So ends it."])
def test_pairs_are_made_of_answers_in_latex_too(end, tmp_path):
    """They once ended in an error of ``re``, in the first step or where the tasks were looked at."""
    rows = [{**row, "answer": "\\sqrt{2}"} for row in sums()]
    rows = [{**row, "solution": f"<step>A root.</step><answer>\\sqrt{{2}}</answer>{end}"} for row in rows]
    tasks = JsonlTasks(write(tmp_path / "a.jsonl", rows))
    dpo(tasks=tasks, model=TINY)
    wanted, unwanted = replies_of(tasks.get("train", 0))
    assert (wanted, unwanted) == (rows[0]["solution"], f"<step>A root.</step><answer>\\sqrt{{2}}0</answer>{end}")


class Talks(Chats):
    """A user's own source, in which some conversations have an unwanted reply."""

    def get(self, split, index):
        task = super().get(split, index)
        return replace(task, rejected="no") if index < self.size(split) - 1 else task


def test_a_later_conversation_without_an_unwanted_reply_is_refused(tmp_path):
    talks = Talks(write(tmp_path / "c.jsonl", [{"prompt": f"{n}?", "completion": f"{n}."} for n in range(30)]))
    with refuses("E_TASKS_WITHOUT_PAIR", names=("3 of the 30", "'chats'", "unwanted reply")):
        dpo(tasks=talks, model=TINY)
