"""Paraphrases by a model: what is refused and why, that the writer sees no answer, and that Co-rewarding reads the
file."""

import json

import pytest

from cotrain.config.registry import find_recipe
from cotrain.core.types import Sampling
from cotrain.data.columns import ANY
from cotrain.data.files import cut_into_splits
from cotrain.data.sources import problem_source
from cotrain.pretraining.paraphrases import (
    PARAPHRASE,
    count_numbers,
    read_problems,
    refusal_of,
    save_paraphrases,
    wording_of,
    write_paraphrases,
)
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import TINY, spoken
from tests.sentences import command_refuses, refuses

QUESTION = "Tom has 1,200 apples and sells two of them for 2.50 each. How many are left?"


@pytest.mark.parametrize(
    "text, reason",
    [
        ("There are 1200 apples, of which Tom sells 2 at 2.50 each. How many does he keep?", None),
        ("", "nothing written"),
        ("TOM has 1,200 apples, and sells two of them for 2.50 each! How many are left?", "same wording"),
        ("Tom has “1,200” apples … and sells two of them for 2.50 each. How many are left?", "same wording"),
        ("Tom has 1,200 apples and sells two of them at 2.50 each. How many are left?", "nearly the same wording"),
        ("Ann has 1200 pears and sells 2 for 2.50 each. How many are left?", "another problem"),
        ("There are 1200 apples, of which Tom sells some at 2.50 each. How many does he keep?", "other numbers"),
        ("There are 1200 apples; Tom sells 2 at 2.50 each, and 2 are left. How many does he keep?", "other numbers"),
        ("1200 apples, 2 sold for 2.50: left?", "another length"),
        ("У Тома 1200 яблок, из них продал 2 по цене 2.50 за штуку. Сколько осталось у него?", "another script"),
        ("There are 1200 apples, of which Tom sells 2 at 2.50 each. He keeps the others.", "asks nothing"),
    ],
)
def test_what_is_refused_and_why(text, reason):
    others = {wording_of("Ann has 1200 pears and sells 2 for 2.50 each. How many are left?")}
    assert refusal_of(QUESTION, text, others) == reason


def test_numbers_are_counted_in_digits_and_words():
    assert count_numbers("3 of 1,234,567.5, and three: 12,13") == {"3": 2, "1234567.5": 1, "12": 1, "13": 1}
    assert count_numbers("One ninth of x2, twenty-five") == {"2": 1, "20": 1, "5": 1}


def question(n):
    return f"There are {n} crates, and 2 more come. How many crates are there?"


def file_of(folder, name="own.jsonl", count=40):
    rows = [{"id": n, "question": question(n), "answer": str(n + 2)} for n in range(10, 10 + count)]
    rows[0]["paraphrase"] = "Of 10 crates and 2 crates, how many crates are there?"
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def written(problems, write, tries=3):
    """What this program, the writer, was asked."""
    asked = []

    def speak(fields, rng):
        assert set(fields) == {"problem"}  # no answer
        asked.append(fields["problem"])
        return write(fields["problem"], asked.count(fields["problem"]))

    role = Role(policy="writer", prompt=PARAPHRASE, sampling=Sampling(max_tokens=200))
    player = RolloutRunner(spoken({"writer": speak}), {"writer": ByteRenderer()}, {"writer": role}, 0)
    write_paraphrases(player, problems, tries=tries, say=lambda text: None)
    return asked


@pytest.mark.whole
def test_a_problem_is_asked_for_until_one_is_kept_and_co_rewarding_reads_the_file(tmp_path):
    path = file_of(tmp_path)
    problems = read_problems(str(path), ANY.question, ANY.answer)

    def write(problem, attempt):
        number = problem.split()[2]
        if number == "12":
            return "<problem>There are 13 crates, and 2 more come. How many crates are there?</problem>"
        if attempt == 1:
            return "The answer is clear."
        return f"Sure!\n<problem>Of {number} crates and 2 further crates, how many are there?</problem>"

    asked = written(problems, write)
    splits = cut_into_splits([question(n) for n in range(10, 50)])
    training = [n for n, split in zip(range(10, 50), splits, strict=True) if split == "train"]
    assert 12 in training and len(training) == 32
    assert {problem: asked.count(problem) for problem in asked} == {
        question(n): 3 if n == 12 else 2 for n in training if n != 10
    }  # not what is held out, nor what has one
    result = save_paraphrases(problems, tmp_path / "out.jsonl", tmp_path / "out.quarantine.jsonl")
    present = 10 in training
    assert result["written"] == len(training) - 1 - present and result["refused"] == {"another problem": 1}
    [aside] = [json.loads(line) for line in (tmp_path / "out.quarantine.jsonl").read_text().splitlines()]
    assert (aside["where"], aside["reason"]) == (f"{path}, row 3", "another problem")
    assert json.loads(aside["row"])["paraphrase"].startswith("There are 13 crates")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 39 and rows[1]["id"] == 11 and rows[1]["answer"] == "13"  # all columns stay
    source = problem_source(None, str(tmp_path / "out.jsonl"))
    made = find_recipe("co_rewarding")(
        variant="I", model=TINY, tasks=source, tasks_per_step=3, group_size=2, evaluation_tasks=2, steps=1, kl=0.0
    )
    trainer = CoTrainer(made)
    episodes = trainer.step().episodes
    trainer.close()
    said = [trainer.runner.renderers[t.policy].decode(t.prompt_ids) for e in episodes for t in e.traces]
    assert any("further crates" in prompt for prompt in said)


def test_all_rows_of_a_training_file_are_asked_for_and_none_kept_is_an_error(tmp_path):
    problems = read_problems(str(file_of(tmp_path, "train.jsonl")), ANY.question, ANY.answer)
    asked = written(problems, lambda problem, attempt: "<problem></problem>", tries=1)
    assert asked == [question(n) for n in range(11, 50)]
    out, aside = tmp_path / "out.jsonl", tmp_path / "out.quarantine.jsonl"
    with refuses("E_NO_PARAPHRASE", names=("39 paraphrases", "nothing written")):
        save_paraphrases(problems, out, aside)
    assert not out.exists() and len(aside.read_text().splitlines()) == 39


def test_two_problems_do_not_share_a_paraphrase(tmp_path):
    rows = [{"question": f"How many are 2 and 3 {what}?", "answer": "5"} for what in ("kites", "boats")]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = read_problems(str(tmp_path / "train.jsonl"), ANY.question, ANY.answer)
    written(problems, lambda problem, attempt: "What do 2 and 3 make?", tries=1)
    assert [problem.reason for problem in problems] == [None, "another problem"]


def test_the_command_refuses_what_it_cannot_do(tmp_path, capsys):
    path = str(file_of(tmp_path, "train.jsonl", count=3))

    def refused(code, *words):
        command_refuses(["paraphrase", "--data", path, *words], code, capsys)

    out = str(tmp_path / "out.jsonl")
    refused("E_NOT_CHAT_MODEL: 'shipped'", "--model", "shipped", "--out", out)
    refused("E_OUT_NOT_JSONL: out.csv | .jsonl", "--model", TINY, "--out", str(tmp_path / "out.csv"))
    refused("E_OUT_EXISTS: train.jsonl | --out", "--model", TINY, "--out", path)
    for _ in range(2):  # what the first try has left does not stand in the way of the second
        refused(
            "E_NO_PARAPHRASE: none of 2 | most often: ", "--model", TINY, "--out", out, "--tries", "1", "--threads", "1"
        )
    rows = [json.loads(line) for line in (tmp_path / "out.quarantine.jsonl").read_text().splitlines()]
    assert {row["code"] for row in rows} == {"E_PARAPHRASE_REFUSED"}
