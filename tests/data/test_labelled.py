"""Which training problems have labels: a number, a share, or those of a source of their own."""

import json
from pathlib import Path

import pytest

from cotrain.config.evaluation import held_out
from cotrain.config.recipe import check_problems
from cotrain.core.types import UNLABELLED
from cotrain.data.labels import check_unlabelled, with_labels
from cotrain.data.sources import from_description, problem_source
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.recipes.grpo import grpo
from cotrain.recipes.votes import ttrl
from tests.sentences import refuses


@pytest.fixture
def file(tmp_path):
    rows = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(60)]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prompts(source, split):
    return [source.get(split, i).prompt for i in range(source.size(split))]


@pytest.mark.parametrize(("labelled", "count"), [("5", 5), ("25%", None)])
def test_a_finite_source_is_parted_in_two(file, labelled, count):
    whole = problem_source("jsonl", file)
    parted = with_labels(whole, labelled, seed=3)
    count = count or round(whole.size("train") / 4)
    assert parted.size("train") == count and parted.size(UNLABELLED) == whole.size("train") - count
    with_label, without = prompts(parted, "train"), prompts(parted, UNLABELLED)
    assert sorted(with_label + without) == sorted(prompts(whole, "train"))
    assert all(parted.get("train", i).labelled for i in range(count))
    assert not any(parted.get(UNLABELLED, i).labelled for i in range(parted.size(UNLABELLED)))
    assert prompts(parted, "test") == prompts(whole, "test")
    assert set(prompts(with_labels(whole, labelled, seed=4), "train")) != set(with_label)
    with pytest.raises(IndexError):
        parted.get("train", count)


def test_an_endless_source_has_as_many_labelled_problems_as_were_asked_for():
    parted = with_labels(study_problems((2, 3)), "4", seed=0)
    assert (parted.size("train"), parted.size(UNLABELLED), parted.size("test")) == (4, None, None)
    assert len(set(prompts(parted, "train"))) == 4
    assert parted.get(UNLABELLED, 7).prompt == study_problems((2, 3)).get("train", 7).prompt


@pytest.mark.whole
def test_labels_of_an_easier_source():
    parted = with_labels(study_problems((7, 8)), "words:2-3", seed=0)
    assert {parted.get("train", i).difficulty for i in range(40)} == {2.0, 3.0}
    assert {parted.get("validation", i).difficulty for i in range(40)} == {2.0, 3.0}
    assert {parted.get(UNLABELLED, i).difficulty for i in range(40)} == {7.0, 8.0}
    assert {parted.get("test", i).difficulty for i in range(40)} == {7.0, 8.0}
    assert parted.get("train", 5).id != parted.get(UNLABELLED, 5).id
    assert problem_source("words:2-3", None) == study_problems((2, 3))


def test_labels_in_a_file_of_their_own(file):
    parted = with_labels(study_problems(), file, seed=0)
    assert parted.get("train", 0).prompt.startswith("What is")
    assert parted.get(UNLABELLED, 0).prompt == study_problems().get("train", 0).prompt


@pytest.fixture
def partly_answered(tmp_path):
    """Of 200 questions every other one has an answer; the last ones have a column without one."""
    rows = [{"question": f"What is {i} + {i}?"} | ({"answer": 2 * i} if i % 2 else {}) for i in range(180)]
    rows += [{"question": f"What is {i} + {i}?", "answer": None if i % 2 else " "} for i in range(180, 200)]
    path = tmp_path / "partly.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_without_an_answer_are_refused_unless_labels_are_said_to_be_few(partly_answered, file):
    with refuses("E_FIELD_MISSING", names=("row 1", "'answer'", "--labelled")):
        problem_source(None, partly_answered)
    with refuses("E_NO_UNLABELLED_PROBLEMS", names="'jsonl'"):
        with_labels(problem_source(None, file, labelled="answers"), "answers", seed=0)


def test_rows_without_an_answer_are_problems_without_labels(partly_answered):
    source = with_labels(problem_source(None, partly_answered, labelled="answers"), "answers", seed=0)
    without = [source.get(UNLABELLED, i) for i in range(source.size(UNLABELLED))]
    assert len(without) == 110 and not any(task.labelled or task.gradable for task in without)
    answered = [source.get(split, i) for split in ("train", "validation", "test") for i in range(source.size(split))]
    assert len(answered) == 90 and all(task.labelled and task.gradable and task.gold for task in answered)
    assert "110 problems have no answer" in source.notes[0]
    assert from_description(source.describe()).size(UNLABELLED) == 110


def test_a_number_of_labels_leaves_rows_without_an_answer_among_the_others(partly_answered):
    targets = problem_source(None, partly_answered, labelled="answers")
    parted = with_labels(targets, "5", seed=0)
    assert parted.size(UNLABELLED) == targets.size("train") - 5 + 110
    everything = prompts(targets, "train") + prompts(targets, UNLABELLED)
    assert sorted(prompts(parted, "train") + prompts(parted, UNLABELLED)) == sorted(everything)
    assert not any(parted.get(UNLABELLED, i).labelled for i in range(parted.size(UNLABELLED)))


def test_targets_without_answers_are_measured_on_labelled_problems(partly_answered, file):
    parted = with_labels(problem_source(None, partly_answered, labelled=file), file, seed=0)
    targets, labels = problem_source(None, partly_answered, labelled="answers"), problem_source(None, file)
    assert parted.size(UNLABELLED) == targets.size("train") + 110  # none of them has its label from here
    assert not any(parted.get(UNLABELLED, i).labelled for i in range(parted.size(UNLABELLED)))
    assert prompts(parted, "test") == prompts(targets, "test")  # as some targets have an answer
    bare = Path(partly_answered).with_name("bare.jsonl")
    bare.write_text("".join(json.dumps({"question": f"How much is {i}?"}) + "\n" for i in range(30)))
    parted = with_labels(problem_source(None, str(bare), labelled=file), file, seed=0)
    assert parted.size(UNLABELLED) == 30 and prompts(parted, "test") == prompts(labels, "test")


def test_a_question_that_is_held_out_is_not_learned_from_without_its_answer(tmp_path):
    rows = [{"question": f"What is {i} + {i}?", "answer": 2 * i} for i in range(60)]
    path = tmp_path / "twice.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *({"question": r["question"]} for r in rows)]))
    source = problem_source(None, str(path), labelled="answers")
    held_out = set(prompts(source, "validation") + prompts(source, "test"))
    assert held_out and held_out.isdisjoint(prompts(source, UNLABELLED))


@pytest.mark.parametrize("endless", [True, False])
def test_test_problems_may_be_trained_on_without_their_answers(file, endless):
    """Those that the end is measured on, and other ones for each seed."""
    whole = study_problems((2, 3)) if endless else problem_source("jsonl", file)
    parted = with_labels(whole, "test:3", seed=1)
    assert (parted.size("train"), parted.size(UNLABELLED), parted.size("test")) == (0, 3, 3)
    tested = held_out(parted, "test", 256, seed=1)
    assert sorted(task.prompt for task in tested) == sorted(prompts(parted, UNLABELLED)) and len(tested) == 3
    assert tested == held_out(whole, "test", 3, seed=1)  # as in an arm that learns from other problems
    assert all(task.labelled for task in tested)
    assert not any(parted.get(UNLABELLED, i).labelled for i in range(3))
    assert parted.get("validation", 2) == whole.get("validation", 2)
    assert prompts(with_labels(whole, "test:3", seed=2), "test") != prompts(parted, "test")
    assert "3 test problems are trained on" in parted.notes[0]
    with pytest.raises(IndexError):
        parted.get("train", 0)


def test_a_method_that_needs_labels_does_not_train_on_the_test():
    with refuses("E_SPLIT_EMPTY"):
        check_problems(grpo(labelled="test:4"))
    check_problems(ttrl(labelled="test:4"))


@pytest.mark.parametrize(
    ("labelled", "code"),
    [
        *((text, "E_LABELLED_TEST") for text in ("test:0", "test:-1", "test:", "test:9999", "test:2.5")),
        *((text, "E_LABELLED_NUMBER") for text in ("0", "-3", "2.5", "60", "100%", "0%")),
        ("nan", "E_UNKNOWN_TASK_SOURCE"),
    ],
)
def test_numbers_that_cannot_be(file, labelled, code):
    with refuses(code, names=f"'{labelled}'"):
        with_labels(problem_source("jsonl", file), labelled, seed=0)


def test_a_share_of_what_has_no_end_is_refused():
    with refuses("E_LABELLED_SHARE_ENDLESS"):
        with_labels(WordProblems(), "10%", seed=0)


def test_a_method_that_wants_problems_without_labels_is_refused_where_all_have_one():
    with refuses("E_NO_UNLABELLED_PROBLEMS"):
        check_unlabelled(WordProblems(), "phase 'generator'")
