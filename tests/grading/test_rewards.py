"""The graders by themselves: without torch and Ray, as a reward function of TRL, and in a task of verifiers."""

import asyncio
import subprocess
import sys

import pytest

from cotrain.core.errors import ConfigError
from cotrain.grading import AnswerReward, grade_response, grade_responses, score_response
from tests.sentences import refuses

ALONE = """
import sys
from cotrain.grading import AnswerReward, grade_response
assert grade_response("1/2", "So it is \\\\boxed{0.5}.").value is True
assert AnswerReward("gold")(completions=["It is <answer>3</answer>"], gold=["4"]) == [0.0]
sys.exit(bool({"torch", "ray", "transformers", "numpy"} & set(sys.modules)))
"""


def test_it_loads_neither_torch_nor_ray():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "gold, response, answer, right",
    [
        ("1/2", "So \\boxed{0.5}", None, True),
        ("12", "The answer is 12.", None, True),
        ("12", "#### 13", None, False),
        ("12", "I do not know", None, False),
        ("12", "it costs 12 in all", "last-number", True),
        ("2x+1", "\\boxed{1 + 2x}", None, True),
    ],
    ids=["box", "phrase", "hash", "none", "format", "algebra"],
)
def test_responses_are_graded(gold, response, answer, right):
    assert grade_response(gold, response, answer).value is right


def test_what_cannot_be_graded_is_not_wrong():
    endless = "\\boxed{9^{9^{9^{9}}}+x}"
    assert grade_response("7y", endless).value is None
    assert AnswerReward()(completions=[endless, "\\boxed{7y}"], answer=["7y", "7y"]) == [None, 1.0]
    with refuses("E_NOT_GRADED", names="too large"):
        asyncio.run(score_response("7y", endless))


def test_a_reward_of_conversations_and_of_a_missing_column():
    reward = AnswerReward("gold", name="mine")
    assert reward.__name__ == "mine"
    said = [[{"role": "assistant", "content": "\\boxed{4}"}], [{"role": "assistant", "content": None}], []]
    assert reward(prompts=["?"] * 3, completions=said, gold=["4"] * 3) == [1.0, 0.0, 0.0]
    with refuses("E_GOLD_COLUMN_MISSING", names=("'gold'", "answer")):
        reward(completions=["4"], answer=["4"])
    with pytest.raises(ConfigError):
        AnswerReward(answer="(")


def test_as_many_references_as_responses():
    with refuses("E_REFERENCE_COUNT", names=("1 reference", "2 responses")):
        grade_responses(["1"], ["1", "2"])


def test_in_trl(tmp_path):
    """A step of GRPO by TRL, paid by the grader."""
    pytest.importorskip("trl")
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from cotrain.data.word_problems.source import WordProblems

    base = str(__import__("cotrain.reports.detail", fromlist=["ASSETS"]).ASSETS / "base")
    problems = [WordProblems(operations=(2, 2)).get("train", index) for index in range(2)]
    rows = [{"prompt": f"<|user|>{one.prompt}\nSolve:<|end|><|assistant|>", "answer": one.gold} for one in problems]
    config = GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=4, num_generations=2, report_to=[],
        max_completion_length=60, logging_steps=1, log_completions=True, num_completions_to_print=0, use_cpu=True,
        bf16=False, save_strategy="no",
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model, processing_class=AutoTokenizer.from_pretrained(base), reward_funcs=AnswerReward(),
        args=config, train_dataset=Dataset.from_list(rows),
    )  # fmt: skip
    trainer.train()
    from cotrain.runs.foreign_files import read_foreign_run

    run = read_foreign_run([tmp_path])
    assert run.columns.judge == "answer_reward"
    golds = {row["prompt"]: row["answer"] for row in rows}
    for one in run.rollouts:
        assert one.verdict is grade_response(golds[one.prompt], one.response).value


def test_in_verifiers():
    """A task of verifiers whose reward is the grader's."""
    vf = pytest.importorskip("verifiers.v1")
    if not hasattr(vf, "Trace"):
        pytest.skip("a stand-in of verifiers")

    class SumData(vf.TaskData):
        answer: str

    class Sum(vf.Task[SumData]):
        @vf.reward
        async def is_right(self, trace):
            return await score_response(self.data.answer, trace.last_reply)

    def reward_of(said):
        task = Sum(SumData(idx=0, prompt="What is 1/4 + 1/4?", answer="1/2"))
        trace = vf.Trace(
            task=vf.TraceTask(type="Sum", data=task.data, key="sum"), agent=vf.AgentInfo(config=vf.AgentConfig())
        )
        trace.nodes.append(vf.MessageNode(message=vf.UserMessage(content="What is 1/4 + 1/4?")))
        trace.nodes.append(vf.MessageNode(parent=0, message=vf.AssistantMessage(content=said), sampled=True))
        asyncio.run(task.score(trace))
        return trace.reward

    assert reward_of("It is \\boxed{0.5}.") == 1.0
    assert reward_of("It is \\boxed{0.6}.") == 0.0
