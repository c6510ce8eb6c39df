"""What a solver will see and say, from rows of every common layout, and from the model's own answers."""

import json

import pytest

from cotrain.cli.main import main
from cotrain.formats.role_prompts import SOLVE_OWN, solve_own
from cotrain.formats.steps import STEPS_AS
from cotrain.pretraining.solutions import ENDS, gold_solutions, open_runner, solver_of
from cotrain.prompts.templates import SOLVE_FULL, fill_template
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

WORK = "3 + 4 = <<3+4=7>>7\n7 * 2 = 14"
TAGGED = "<step>3 + 4 = 7</step><step>7 * 2 = 14</step><answer>14</answer>"
LAYOUTS = {
    "gsm8k": {"question": "Q?", "answer": f"{WORK}\n#### 14"},
    "solution": {"problem": "Q?", "solution": WORK, "answer": "14"},
    "completion": {"prompt": "Q?", "completion": f"{WORK}\n#### 14"},
    "messages": {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": f"{WORK}\n#### 14"}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": f"{WORK}\n#### 14"}]},
}


def corpus(tmp_path, row, answer=None, name="data.jsonl"):
    file = tmp_path / name
    file.write_text(json.dumps([row]) if name.endswith(".json") else json.dumps(row) + "\n")
    return gold_solutions(str(file), solver_of("some/model", answer))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["data.jsonl", "data.json"])
def test_every_layout_is_the_same_conversation(layout, name, tmp_path):
    user, assistant = corpus(tmp_path, LAYOUTS[layout], name=name).get(0)
    assert user["content"] == fill_template(SOLVE_FULL, problem="Q?") and assistant["content"] == TAGGED


def test_csv_with_a_header(tmp_path):
    (tmp_path / "data.csv").write_text('question,answer\n"Two, and two?",4\n')
    user, assistant = gold_solutions(str(tmp_path / "data.csv"), solver_of("some/model")).get(0)
    assert user["content"].endswith("Two, and two?") and assistant["content"] == "<step>4</step><answer>4</answer>"


@pytest.mark.parametrize(
    ("answer", "end"), [("phrase", "The answer is 14."), ("hash", "#### 14"), ("boxed", "The answer is \\boxed{14}.")]
)
def test_other_formats_are_asked_for_and_written(answer, end, tmp_path):
    user, assistant = corpus(tmp_path, LAYOUTS["gsm8k"], answer).get(0)
    assert (
        user["content"] == fill_template(SOLVE_OWN[answer], problem="Q?") and assistant["content"] == f"{WORK}\n{end}"
    )


@pytest.mark.parametrize("answer", ["phrase", "tags"])
@pytest.mark.parametrize("steps", STEPS_AS)
def test_steps_are_written_in_the_way_in_which_they_will_be_read(answer, steps, tmp_path):
    role = solver_of("some/model", answer, steps=steps)
    (tmp_path / "data.jsonl").write_text(json.dumps(LAYOUTS["gsm8k"]) + "\n")
    user, assistant = gold_solutions(str(tmp_path / "data.jsonl"), role).get(0)
    solution = role.parse_reply(assistant["content"], {})
    said = [step.text.split("\n")[0].replace("<<3+4=7>>", "") for step in solution.steps]
    assert solution.answer == "14" and said[:2] == ["3 + 4 = 7", "7 * 2 = 14"]
    if (answer, steps) != ("tags", "tags"):
        assert user["content"] == fill_template(solve_own(answer, steps), problem="Q?")


@pytest.mark.whole
@pytest.mark.parametrize("answer", [*ENDS, "tags", r">(\d+)</answer>"])
@pytest.mark.parametrize("steps", [None, *STEPS_AS])
def test_steps_in_tags_are_written_in_another_way_one_by_one(answer, steps, tmp_path):
    """All of them once became one numbered step, tags and all."""
    row = {"question": "Q?", "answer": "So:\n<step>4*2=8</step><step>3+8\n=11</step>\n<answer>11</answer>"}
    role = solver_of("some/model", answer, steps=steps)
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    said = gold_solutions(str(tmp_path / "data.jsonl"), role).get(0)[1]["content"]
    solution = role.parse_reply(said, {})
    cut = [" ".join(step.text.split("\n")[:2]) for step in solution.steps]
    assert solution.answer == "11" and cut[0] == "4*2=8" and cut[1].startswith("3+8 =11"), said
    assert ("<step>" in said) is (steps == "tags" or (answer, steps) == ("tags", None))


def test_steps_in_tags_are_not_put_into_tags_again(tmp_path):
    row = {"question": "Q?", "answer": "<step>4*2=8</step><step>3+8=11</step>\n#### 11"}
    said = corpus(tmp_path, row).get(0)[1]["content"]
    assert said == "<step>4*2=8</step><step>3+8=11</step><answer>11</answer>"


THOUGHT = "<think>Hm: 3 + 4 = 8?\nNo, \\boxed{8} is wrong.</think>"


@pytest.mark.parametrize("answer", [None, "boxed", "phrase"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gap", ["", "\n\n"])
def test_a_thought_stays_in_front_of_the_solution(answer, layout, gap, tmp_path):
    """Its lines once became steps, of which one began the thought and another ended it."""
    begin = json.dumps(THOUGHT + gap)[1:-1]
    thinking = json.loads(json.dumps(LAYOUTS[layout]).replace("3 + 4 = <<", f"{begin}3 + 4 = <<"))
    plain = corpus(tmp_path, LAYOUTS[layout], answer).get(0)[1]["content"]
    said = corpus(tmp_path, thinking, answer).get(0)[1]["content"]
    assert said == THOUGHT + gap + plain
    solution = solver_of("some/model", answer).parse_reply(said, {})
    assert solution.ok and solution.answer == "14"


def test_a_thought_that_never_ends_is_refused_where_the_solution_is_learned(tmp_path):
    row = {"question": "Q?", "answer": "14", "solution": "<think>Hm: 3 + 4 = 8?"}
    with refuses("E_SOLUTION_IN_THOUGHT", names=("row 1", "</think>")):
        corpus(tmp_path, row)
    with open_runner(TINY, str(tmp_path / "data.jsonl"), {}, device="cpu", seed=0, aside=None, say=print) as (tasks, _):
        assert tasks[0].gold == "14"


def test_an_answer_that_is_worked_text_is_looked_for_in_it(tmp_path):
    row = {"question": "Q?", "answer": "7 * 2 = 14. The answer is 14."}
    assert corpus(tmp_path, row, "phrase").get(0)[1]["content"] == row["answer"]
    assert corpus(tmp_path, row).get(0)[1]["content"] == f"<step>{row['answer']}</step><answer>14</answer>"


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"ask": "Q?"}, "E_FIELD_MISSING: row 1"),
        ({"prompt": "Q?", "completion": "who knows"}, "E_NO_FINAL_ANSWER: row 1 | 'who knows'"),
        ({"messages": [{"role": "user", "content": "Q?"}]}, "E_NOT_ONE_EXCHANGE: row 1 | 1 questions | 0 replies"),
        ({"conversations": [{"from": "robot", "value": "Q?"}]}, "E_MESSAGES_SHAPE: row 1 | robot"),
        (
            {"messages": [{"role": "assistant", "content": "The answer is 4."}, {"role": "user", "content": "Q?"}]},
            "E_NOT_ONE_EXCHANGE: row 1 | the reply stands before its question",
        ),
    ],
    ids=["no question", "no answer", "no reply", "a robot", "reply first"],
)
def test_other_rows_are_refused_with_what_was_expected(row, code, tmp_path):
    with refuses(code):
        corpus(tmp_path, row)


@pytest.mark.whole
def test_the_command_learns_gold_solutions_and_the_models_own(tmp_path, capsys):
    tasks = [EASY.get("train", i) for i in range(24)]
    rows = [json.dumps({"question": task.prompt, "answer": task.gold}) for task in tasks]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    words = ["teach", "solver", "--model", TINY, "--data", str(tmp_path / "data.jsonl"), "--tokens", "4096"]
    words += ["--batch-tokens", "1024", "--length", "256"]
    assert main([*words, "--out", str(tmp_path / "gold")]) == 0
    assert "step 4 of 4" in capsys.readouterr().out
    assert main([*words, "--from-samples", "--out", str(tmp_path / "own")]) == 0
    assert "24 of 24 problems answered" in capsys.readouterr().out
    right = {task.prompt: task for task in tasks}
    kept = [json.loads(line)["messages"] for line in (tmp_path / "own/samples.jsonl").read_text().splitlines()]
    for user, assistant in kept:
        assert right[user["content"].removesuffix("\nSolve:")].grade(assistant["content"]).value is True
    command_refuses(
        ["teach", "solver", "--model", TINY, "--out", str(tmp_path / "no")], "E_COMMAND_LINE: required: --data", capsys
    )
    # What was begun goes on with the same settings alone, which is said before anything is drawn, or read.
    resumed = [*words, "--from-samples", "--out", str(tmp_path / "own"), "--resume"]
    assert main(resumed) == 0
    said = capsys.readouterr().out
    assert "finished before" in said and "problems answered" not in said
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    for more, code in (
        (("--tokens", "8192"), "E_TRAINING_DIFFERS: steps = 4 | 8"),
        (("--lora", "4"), "E_TRAINING_DIFFERS: lora = None"),
        (("--samples", "2"), "E_TRAINING_DIFFERS: sampling samples = None | 2"),
        (("--out", str(tmp_path / "other")), "E_OUT_NOT_TRAINING: other"),
    ):
        command_refuses([*resumed, *more], code, capsys)
        assert not capsys.readouterr().out
    (tmp_path / "data.jsonl").write_text("no rows any more")
    command_refuses(
        [*words, "--out", str(tmp_path / "gold"), "--resume", "--lr", "0.5"], "E_TRAINING_DIFFERS: lr = 0.001", capsys
    )
