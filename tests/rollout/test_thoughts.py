"""What stands in a thought is no answer: not for the grader, in no format, and whoever opened the thought."""

import math

import pytest

from cotrain.analysis.benchmarks import SuiteOptions, attempt_rows
from cotrain.core.types import Completion, Grade, Sampling, Task
from cotrain.data.programs import ProgramGrader, mbpp_problem
from cotrain.data.programs import task_of as program_task
from cotrain.formats.answers import final_answer
from cotrain.formats.role_replies import self_check
from cotrain.formats.solutions import Solution, parse_solution, tagged_solution
from cotrain.grading.pool import AnswerGrader
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.protocols import plurality_answer, solve
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.evaluation import collect_at_once

STEPS = "<step>6 * 7 = 42</step>"


class Says:
    def __init__(self, text):
        self.text = text

    async def sample(self, request):
        ids = ByteRenderer().encode(self.text)
        logprobs = (math.log(0.9),) * len(ids)
        return Completion(token_ids=ids, logprobs=logprobs, finish="length", policy="p", version=0)

    def advance(self):
        return False

    def publish(self, policy, version): ...

    def counts(self):
        return {}


@pytest.fixture(scope="module")
def judge():
    with AnswerGrader(workers=1)._pool as pool:
        grader = AnswerGrader(workers=1)
        grader._pool.close()
        grader._pool = pool
        yield grader


def player(form, text, prompt="{problem}"):
    role = Role(policy="p", prompt=prompt, sampling=Sampling(max_tokens=400), parse=parse_solution, answer_format=form)
    return RolloutRunner(Says(text), {"p": ByteRenderer()}, {"solver": role}, 0)


def question(judge, **more):
    given = {"gold": "42", "solution": None, "difficulty": 0.0, "grader": judge} | more
    return Task(id="t", prompt="6 * 7?", **given)


def paid(judge, form, text, prompt="{problem}"):
    (episode,) = player(form, text, prompt).collect(solve, [question(judge)], step=0, group_size=1)
    (trace,) = episode.traces
    return [s.value for s in trace.rewards if s.name == "outcome"], trace.findings.get("failure")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("boxed", "<think>Perhaps \\boxed{42}? No, let me try"),
        ("tags", "<think>I might write <answer>42</answer>, but"),
        ("tags", f"<think>{STEPS}<answer>42</answer>"),
        ("tags", f"<think>{STEPS}<answer>42</answer></think>"),
        ("tags", f"<think>hm</think>{STEPS}<answer>41</answer><think>or <answer>42</answer>"),
        ("tags", "It is \\boxed{42}."),
        ("tags", "#### 42"),
        ("hash", "<think>\n#### 42\n"),
        ("hash", "<think>\n#### 42\n</think>I give up."),
        ("hash", "So it is \\boxed{42}."),
        ("phrase", "<think>The answer is 42. Wait,"),
        ("phrase", "<think>so \\boxed{42}</think>I give up."),
        ("phrase", "So \\boxed{42} it might be."),
        ("last-number", "<think>6 times 7 is 42"),
        ("last-number", "<think>42</think>I do not know."),
        ("boxed", "<think>The task says: put the answer into \\boxed{42}."),
        ("boxed", "<think>a</think>b<think>\\boxed{42}"),
        ("boxed", "<think>\\boxed{42}</think>I do not know."),
        ("boxed", "#### 42"),
        (r"A: (\d+)", "<think>A: 42"),
        (r"A: (\d+)", "\\boxed{42}"),
    ],
)
def test_what_the_reader_does_not_find_is_not_paid(judge, form, text):
    outcome, why = paid(judge, form, text)
    assert outcome == [0.0] and why


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("boxed", "<think>six times seven</think>It is \\boxed{42}."),
        ("boxed", "six times seven</think>It is \\boxed{42}."),
        ("boxed", "<think>a</think>b<think>c</think>It is \\boxed{42}."),
        ("boxed", "Well. <think>\\boxed{41}</think>It is \\boxed{42}."),
        ("phrase", "<think>hm</think>So the answer is 42."),
        ("hash", "<think>#### 41</think>\n#### 42"),
        ("tags", "<think>hm</think><answer>42</answer>"),
        ("tags", f"<think><answer>41</answer></think>{STEPS}<answer>42</answer>"),
        ("tags", f"<think>{STEPS}</think><answer>42</answer>"),
        ("tags", f"{STEPS}<answer>41</answer><answer>42</answer>"),
        ("tags", "six times seven <answer>42</answer>"),
        (r"A: (\d+)", "<think>A: 41</think>A: 42"),
    ],
)
def test_an_answer_behind_a_thought_is_paid(judge, form, text):
    assert paid(judge, form, text)[0] == [1.0]


def test_a_thought_that_the_prompt_opened_is_one(judge):
    prompt = "{problem}\n<think>\n"
    assert paid(judge, "boxed", "Perhaps \\boxed{42}? No, let me", prompt) == ([0.0], "unclosed think")
    assert paid(judge, "boxed", "Perhaps.</think>\\boxed{42}", prompt) == ([1.0], None)


def test_a_suite_counts_what_is_paid_and_votes_for_nothing_else(judge):
    options = SuiteOptions(samples=2)
    for text, answer, correct in (
        ("<think>\\boxed{42}? No", None, False),
        ("<think>\\boxed{42}</think>no idea", None, False),
        ("<think>a</think>b<think>c</think>\\boxed{42}", "42", True),
        ("\\boxed{42}", "42", True),
    ):
        rows = attempt_rows(player("boxed", text), [question(judge)], options, split="s", collect=collect_at_once)
        assert [(row["answer"], row["correct"]) for row in rows] == [(answer, correct)] * 3
        assert not any(row["answer"] is None and row["correct"] for row in rows)


def test_a_vote_hears_no_thought(judge):
    async def ask(task, roles):
        turns = await roles.solver.many(3, problem=task.prompt)
        assert plurality_answer(turns) is None

    (episode,) = player("boxed", "<think>\\boxed{42}").collect(ask, [question(judge)], step=0, group_size=1)
    assert episode.failure is None


def test_a_text_that_is_graded_without_a_role_has_no_answer_in_a_thought(judge):
    assert final_answer("<think>\\boxed{42}") is None
    assert final_answer("<think>\\boxed{41}</think>\\boxed{42}") == "42"
    assert judge.grade(question(judge), "<think>#### 42").value is False


def test_a_grader_of_whole_texts_gets_them_unless_they_end_in_a_thought():
    class Whole:
        def grade(self, task, text):
            return Grade(value="42" in text)

        def grade_steps(self, task, steps):
            return None

    def outcome(text, **more):
        (episode,) = player("tags", text).collect(solve, [question(Whole(), **more)], step=0, group_size=1)
        return [s.value for s in episode.traces[0].rewards if s.name == "outcome"]

    for more in ({"whole": True}, {"gold": None}):
        assert (outcome("so 42", **more), outcome("<think>so 42", **more)) == ([1.0], [0.0])
    assert outcome("so 42") == [0.0]


@pytest.mark.whole
def test_a_program_in_a_thought_is_none():
    row = {"text": "Add.", "code": "def add(a, b):\n    return a + b", "test_list": ["assert add(1, 2) == 3"]}
    problem = mbpp_problem(row, "row 1")
    block = "```python\ndef add(a, b):\n    return a + b\n```"
    grader = ProgramGrader({"p": problem}, 1, 3.0, None)
    task = program_task(problem, "p", grader)
    try:
        for text, right in ((f"<think>{block}\nNo,", False), (f"<think>{block}</think>I give up", False)):
            assert grader.grade(task, text).value is right
        wrong = block.replace("+", "-")
        assert grader.grade(task, f"<think>{wrong}</think>{block}").value is True
        assert grader.grade(task, f"<think>{block}</think>{wrong}").value is False
    finally:
        grader.close()


def test_steps_of_a_thought_stand_where_they_are():
    text = f"<think>Is it <answer>41</answer>? {STEPS}</think>\n<answer>42</answer>"
    solution = tagged_solution(text)
    assert isinstance(solution, Solution) and solution.answer == "42"
    assert all(text[s.start : s.end] == s.text for s in solution.steps)


def test_a_solution_with_its_own_check_is_read_behind_the_thought():
    said = "<step>1 CORRECT</step><final>CORRECT</final>"
    read = self_check(f"<think>or <answer>41</answer></think>{STEPS}<answer>42</answer>{said}")
    assert read.ok and read.answer == "42"
    assert self_check(f"<think>{STEPS}<answer>42</answer>{said}").tagged is None
    assert self_check(f"{STEPS}<answer>42</answer>{said[:5]}").tagged == f"{STEPS}<answer>42</answer>"
