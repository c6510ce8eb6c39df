"""The task source: addresses, splits that cannot overlap, settings that round-trip, grading."""

from __future__ import annotations

import json
import re

import pytest

from cotrain.data.word_problems import WordProblems, word_problems, wording
from cotrain.data.word_problems.problem import assemble_problem
from cotrain.data.word_problems.source import BUCKETS, text_bucket
from tests.sentences import refuses

SOURCE = WordProblems()


def test_the_same_address_gives_the_same_task():
    again = WordProblems(operations=(2, 8))
    for split in BUCKETS:
        assert SOURCE.get(split, 7) == again.get(split, 7)
    first = SOURCE.get("train", 0)
    assert first.id == "words/train/0"
    assert first.solution.endswith(f"<answer>{first.gold}</answer>")
    assert len({SOURCE.get("train", i).prompt for i in range(200)}) == 200


def test_an_address_means_the_same_problem_in_every_version():
    """A fixed value: whoever changes the generator changes published results, and should know it."""
    assert SOURCE.get("validation", 3).prompt == PINNED


PINNED = (
    "The boxes equal the keys less the forks. The cakes equal the keys less the boxes. The pies equal the"
    " cakes and the nuts combined. We counted 5 cats. The keys outnumber the cats by 5. The melons are 2 "
    "times as many as the pies. The forks equal the nuts less the shoes. We counted 15 shoes. We counted "
    "18 nuts. How many melons did we count?"
)


@pytest.mark.whole
def test_splits_are_disjoint_by_construction():
    texts = {split: {SOURCE.get(split, i).prompt for i in range(100)} for split in BUCKETS}
    for split, range_ in BUCKETS.items():
        assert all(text_bucket(text) in range_ for text in texts[split])
    assert set(BUCKETS["train"]) | set(BUCKETS["validation"]) | set(BUCKETS["test"]) == set(range(100))
    short = WordProblems(operations=(1, 1), distractors=(0, 0))  # the smallest space: collisions would show here
    few = {split: {short.get(split, i).prompt for i in range(300)} for split in ("train", "validation", "test")}
    assert not few["train"] & few["validation"] and not few["train"] & few["test"]
    assert not few["validation"] & few["test"]


@pytest.mark.whole
def test_out_of_distribution_splits():
    source = WordProblems(operations=(2, 5))
    assert {source.get("ood_length", i).difficulty for i in range(40)} == {6.0, 7.0}
    assert {WordProblems(operations=(3, 9)).get("ood_length", i).difficulty for i in range(10)} == {10.0}
    assert {source.get("test", i).difficulty for i in range(100)} == {2.0, 3.0, 4.0, 5.0}
    assert {source.problem("ood_template", i).family for i in range(40)} == set(wording.UNSEEN)
    assert {source.problem("test", i).family for i in range(80)} == set(wording.FAMILIES)
    assert len(wording.FAMILIES) >= 4 and len(wording.UNSEEN) >= 2


def family_of(text: str) -> str:
    """The wording whose question ends the text."""
    question = text.split(". ")[-1]
    return next(
        n for n, f in wording.EVERY.items() if re.fullmatch(re.escape(f.question).replace(r"\{t\}", r"\w+"), question)
    )


@pytest.mark.whole
def test_a_paraphrase_says_the_same_facts_in_another_wording_of_its_split():
    for split in BUCKETS:
        for index in range(25):
            task, problem = SOURCE.get(split, index), SOURCE.problem(split, index)
            (paraphrase,) = task.paraphrases
            assert task.paraphrases == SOURCE.get(split, index).paraphrases
            family = family_of(paraphrase)
            assert family != problem.family and family in (
                wording.UNSEEN if split == "ood_template" else wording.FAMILIES
            )
            again = assemble_problem(problem.facts, problem.question, family=family)
            assert (paraphrase, str(again.answer), again.solution) == (again.text, task.gold, task.solution)
            assert split != "train" or text_bucket(paraphrase) in BUCKETS["train"]


def test_with_two_wordings_every_training_problem_has_a_paraphrase_of_the_training_buckets():
    source = WordProblems(families=("plain", "owner"), distractors=(0, 0))
    reordered = 0
    for index in range(60):
        task, problem = source.get("train", index), source.problem("train", index)
        (paraphrase,) = task.paraphrases
        assert text_bucket(paraphrase) in BUCKETS["train"]
        family = wording.family_named(family_of(paraphrase))
        said = wording.render_problem(family, problem.facts, problem.question, None)
        assert sorted(paraphrase.split(". ")) == sorted(said.split(". "))
        reordered += paraphrase != said
    assert 0 < reordered < 40  # one in ten falls into another bucket as it stands
    assert WordProblems(families=("plain",)).get("train", 0).paraphrases == ()


def test_settings_round_trip_through_json():
    source = word_problems(operations=(3, 4), modulus=11, distractors=(1, 1), families=("plain", "owner"), cancel=0.5)
    assert WordProblems(**json.loads(json.dumps(source.describe()))["settings"]) == source
    assert WordProblems(**SOURCE.describe()["settings"]) == SOURCE
    assert source.describe()["kind"] == source.name == "words"
    assert {source.problem("train", i).family for i in range(30)} == {"plain", "owner"}


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"operations": (0, 3)}, "E_WORDS_SETTING_RANGE: operations"),
        ({"operations": (5, 3)}, "E_WORDS_SETTING_RANGE: operations"),
        ({"operations": (5, 10)}, "E_WORDS_SETTING_RANGE: operations"),
        ({"modulus": 2}, "E_WORDS_SETTING_RANGE: modulus"),
        ({"max_value": 5}, "E_WORDS_SETTING_RANGE: max_value"),
        ({"distractors": (0, 50)}, "E_WORDS_SETTING_RANGE: distractors"),
        ({"shuffle": 1.5}, "E_WORDS_SETTING_RANGE: shuffle"),
        ({"cancel": -0.1}, "E_WORDS_SETTING_RANGE: cancel"),
        ({"families": ()}, "E_WORDS_SETTING_RANGE: families"),
    ],
)
def test_settings_that_make_no_sense(settings, code):
    with refuses(code):
        WordProblems(**settings)


def test_unknown_names_and_indices():
    with refuses("E_UNKNOWN_SPLIT", names="'train'"):
        SOURCE.get("trian", 0)
    with refuses("E_UNKNOWN_SPLIT"):
        SOURCE.size("dev")
    with refuses("E_UNKNOWN_WORDING_FAMILY"):
        WordProblems(families=("compare",))  # an unseen one would leak into training
    with pytest.raises(IndexError, match="-1"):
        SOURCE.get("train", -1)
    assert SOURCE.size("train") is None


def test_grading():
    task = SOURCE.get("test", 0)
    assert task.grade(task.solution).value is True
    answer = int(task.gold)
    body = task.solution.partition("<answer>")[0]
    assert task.grade(f"{body}<answer> {answer} </answer>").value is True
    assert task.grade(f"{body}<answer>{answer + 1}</answer>").value is False
    assert task.grade(f"{body}<answer>{answer + 1}</answer>").reason is None
    for unreadable in ("", body, f"{body}<answer>many</answer>", f"{body}<answer>{answer}</answer>" * 2, str(answer)):
        grade = task.grade(unreadable)
        assert (grade.value, grade.reason) == (False, "no answer")


def test_the_task_judges_its_own_steps():
    task = SOURCE.get("test", 1)
    steps = SOURCE.problem("test", 1).steps
    assert task.grade_steps(steps).ok == (True,) * len(steps)
    assert task.grade_steps(("", *steps)).reasons[0] == "malformed"
    assert len(steps) == task.difficulty


@pytest.mark.parametrize("settings", [{"max_value": 20}, {"modulus": 5}, {"distractors": (6, 6), "cancel": 1.0}])
def test_extreme_settings_still_draw(settings):
    source = WordProblems(operations=(9, 9), **settings)
    assert all(source.get("ood_length", i).difficulty == 10.0 for i in range(5))
