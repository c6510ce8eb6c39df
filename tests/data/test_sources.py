from __future__ import annotations

import json

import pytest

from cotrain.data.sources import from_description, problem_source, task_source
from tests.sentences import refuses


def test_sources_by_name(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{n}", "answer": "#### 4"}) + "\n" for n in range(30)))
    assert task_source("words").name == "words"
    assert task_source("gsm8k", str(path)).name == "gsm8k"
    assert task_source("jsonl", str(path)).name == "jsonl"


def test_wrong_names_and_data():
    with refuses("E_TASKS_NEED_DATA"):
        task_source("gsm8k")
    with refuses("E_GENERATED_TASKS_WITH_DATA"):
        task_source("words", "x")
    with refuses("E_UNKNOWN_TASK_SOURCE", names="'gsm8k'"):
        task_source("gsm8", "x")
    with refuses("E_UNKNOWN_TASK_SOURCE"):
        task_source("gym")


def test_word_problems_of_so_many_steps_go_with_neither_a_file_nor_another_number():
    assert problem_source("words:2-4", None).operations == (2, 4)
    with refuses("E_GENERATED_TASKS_WITH_DATA", names="--data x.jsonl"):
        problem_source("words:2-4", "x.jsonl")
    with refuses("E_GENERATED_TASKS_LENIENT"):
        problem_source("words:2-4", None, lenient=True)
    with refuses("E_OPERATIONS_NEED_WORDS", names="'words:2-4'"):
        problem_source("words:2-4", None, (2, 3))


def test_settings_of_reasoning_gym_in_the_name():
    pytest.importorskip("reasoning_gym")
    source = task_source("gym:chain_sum:max_terms=2,max_digits=1")
    assert source.describe()["settings"]["settings"] == {"max_terms": 2, "max_digits": 1}
    assert from_description(source.describe()).get("test", 3) == source.get("test", 3)
    assert all(len(source.get("train", index).prompt.split("problem: ")[1]) <= len("9 - 9 =") for index in range(20))
    with refuses("E_GYM_SETTINGS", names="{'max_trems': 2}"):
        task_source("gym:chain_sum:max_trems=2")


@pytest.mark.parametrize("spec", ["max_terms", "max_terms=", "=2", "max_terms=2,", "max_terms=2,min_terms"])
def test_settings_that_are_none(spec):
    with refuses("E_TASKS_SETTING_SHAPE"):
        task_source(f"gym:chain_sum:{spec}")
    with refuses("E_TASKS_SETTING_TWICE", names="max_terms"):
        task_source("gym:chain_sum:max_terms=2,max_terms=3")


@pytest.mark.parametrize("spec", ["words", "jsonl"])
def test_descriptions_build_the_same_source(tmp_path, spec):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{n}", "answer": "#### 4"}) + "\n" for n in range(30)))
    source = task_source(spec, str(path) if spec == "jsonl" else None)
    description = json.loads(json.dumps(source.describe()))
    again = from_description(description)
    assert again.describe() == description
    assert [again.get("train", i).prompt for i in range(5)] == [source.get("train", i).prompt for i in range(5)]


def test_descriptions_that_do_not_fit():
    with refuses("E_STATE_MISFIT", names="['settings']"):
        from_description({"kind": "words"})
    with refuses("E_SOURCE_SETTINGS_MISFIT"):
        from_description({"kind": "words", "settings": {"colour": 3}})
    with refuses("E_UNKNOWN_KIND", names="'words'"):
        from_description({"kind": "wodrs", "settings": {}})
