"""Which training problems have labels: a number, a share, or those of a source of their own."""

import json

import pytest

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.types import UNLABELLED
from cotrain.tasks.labelled import refuse_unlabelled, with_labels
from cotrain.tasks.sources import problem_source
from cotrain.tasks.words.source import WordProblems, study_problems


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


@pytest.mark.parametrize("labelled", ["0", "-3", "2.5", "60", "100%", "0%", "nan"])
def test_numbers_that_cannot_be(file, labelled):
    with pytest.raises((ConfigError, UnknownName), match=r"labelled|task source"):
        with_labels(problem_source("jsonl", file), labelled, seed=0)


def test_a_share_of_what_has_no_end_is_refused():
    with pytest.raises(ConfigError, match="no end"):
        with_labels(WordProblems(), "10%", seed=0)


def test_a_method_that_wants_problems_without_labels_is_refused_where_all_have_one():
    with pytest.raises(ConfigError, match="--labelled"):
        refuse_unlabelled(WordProblems(), "phase 'generator'")
