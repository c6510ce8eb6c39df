"""Many answers are graded at once, outside of the process, and no batch depends on how long that took."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

import pytest

from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Grade, Sampling
from cotrain.grading.pool import AnswerGrader, GradingPool
from cotrain.inference.local import LocalEngine
from cotrain.recipes.grpo import grpo
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import TINY, CharRenderer, letter_tasks, tiny_model


class InTurn:
    """Judges by the first letter, in this thread."""

    def grade(self, task, text):
        return Grade(value=text[:1] < "M")

    def grade_steps(self, task, steps):
        return None


class Slow(AnswerGrader):
    """Judges by the first letter after up to 5 ms, as ``seed`` draws it."""

    def __init__(self, seed):
        super().__init__()
        self.rng, self.now, self.most = random.Random(seed), 0, 0

    def grade(self, task, text):
        return Grade(value=text[:1] < "M")

    async def agrade(self, task, text):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.rng.random() * 0.005)
        self.now -= 1
        return self.grade(task, text)


@gives(OUTCOME)
async def solve_and_review(task, roles):
    solution = await roles.solver(problem=task.prompt)
    grade = await roles.grade(task, solution.text)
    solution.reward(OUTCOME, float(grade.value))
    if grade.value:
        await roles.verifier.many(2, problem=task.prompt, solution=solution.text)
    await roles.solver(problem=solution.text[:5])


def play(judge):
    roles = {
        "solver": Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=12)),
        "verifier": Role(policy="b", prompt="{problem}|{solution}", sampling=Sampling(max_tokens=8)),
    }
    engine = LocalEngine({"a": tiny_model(seed=0), "b": tiny_model(seed=1)}, max_rows=4)
    tasks = [replace(task, grader=judge) for task in letter_tasks(4)]
    executor = RolloutRunner(engine, {"a": CharRenderer(), "b": CharRenderer()}, roles, 0)
    episodes = executor.collect(solve_and_review, tasks, step=0, group_size=2)
    return episodes, {key: count for key, count in engine.counts().items() if not key.endswith("seconds")}


@pytest.mark.whole
def test_no_batch_depends_on_how_long_a_grade_takes():
    expected = play(InTurn())  # one grade after the other, in this thread
    for seed in (1, 2):
        judge = Slow(seed)
        assert play(judge) == expected
        assert judge.most > 3


@pytest.mark.whole
def test_hostile_answers_of_one_step_are_graded_beside_the_others():
    judge = AnswerGrader(workers=4, deadline_s=1.0)
    task = replace(letter_tasks(1)[0], gold="\\sqrt8", grader=judge)
    bombs = [
        f"\\int_0^1\\int_0^1 \\frac{{\\ln(1+x^{{{n}}}y)}}{{1+xy}} dx dy" for n in range(3, 7)
    ]  # sympy works on for minutes
    good = ["2\\sqrt2"] * 4

    async def grade_all(answers):
        return await asyncio.gather(*(judge.agrade(task, f"\\boxed{{{answer}}}") for answer in answers))

    asyncio.run(grade_all([f"{n}\\sqrt7" for n in range(8)]))  # loads all four
    start = time.perf_counter()
    grades = asyncio.run(grade_all([answer for pair in zip(bombs, good, strict=True) for answer in pair]))
    seconds = time.perf_counter() - start
    judge.close()
    assert [g.value for g in grades[1::2]] == [True] * 4
    assert {(g.value, g.reason) for g in grades[::2]} == {(None, "timeout")}
    assert seconds < 2 * 40.0 + 2.0  # as long as one may take on a busy machine, and not four times as long


@pytest.mark.whole
def test_a_run_grades_outside_and_counts_what_failed(tmp_path, monkeypatch):
    from cotrain.data.files import JsonlTasks

    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"question": "{n} and 1", "answer": "x^{n}"}}\n' for n in range(40)))
    asked = []

    async def agrade(self, gold, answer):
        asked.append(answer)
        return Grade(value=None, reason="timeout")

    monkeypatch.setattr(GradingPool, "agrade", agrade)
    monkeypatch.setattr(GradingPool, "grade", lambda *_: pytest.fail("graded in the loop's thread"))
    monkeypatch.setattr("cotrain.grading.pool.final_answer", lambda text: "y")
    trainer = CoTrainer(grpo(model=TINY, steps=1, tasks=JsonlTasks(path), tasks_per_step=2, group_size=2))
    row = trainer.step().row
    assert len(asked) == 4 and row["failures/solver: timeout"] == 4
