from __future__ import annotations

import json

import pytest

from cotrain.data.prmbench import read_samples
from cotrain.metrics.suites import prmbench_scores
from tests.sentences import refuses

ROW = {
    "original_question": "Two pens cost 4. One pen?",
    "modified_question": "Two pens cost 6. One pen?",
    "original_process": ["4 / 2 = 2"],
    "modified_process": ["6 / 2 = 4", "So one pen costs 4.", "Check: 2 * 4 = 6."],
    "modified_steps": [1, 2, 3],
    "error_steps": [1, 3],
    "reason": "6 / 2 is 3",
    "idx": "p1_0",
    "classification": "confidence",
}


def write(path, *rows):
    path.write_text("".join(json.dumps({**ROW, **row}) + "\n" for row in rows))
    return [str(path)]


def test_rows_become_samples_with_every_wrong_step(tmp_path):
    same = {"classification": "multi_solutions", "error_steps": []}
    first, other = read_samples(write(tmp_path / "a.jsonl", {}, {"modified_question": "twice"}, same))
    assert (first.id, first.split, first.problem) == ("confidence/p1_0", "confidence", ROW["modified_question"])
    assert (first.label, first.wrong, first.steps) == (0, (0, 2), tuple(ROW["modified_process"]))
    assert (other.label, other.wrong) == (-1, ())


def test_numbers_behind_the_last_step_are_passed_over(tmp_path):
    assert read_samples(write(tmp_path / "a.jsonl", {"error_steps": [2, 4]}))[0].wrong == (1,)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"error_steps": [0]}, "E_STEP_LABELS: row 1"),
        ({"error_steps": "1"}, "E_STEP_LABELS: text"),
        ({"modified_process": []}, "E_STEPS_NOT_TEXTS: 'modified_process'"),
        ({"classification": " "}, "E_FIELD_BLANK: field 'classification'"),
    ],
)
def test_faults_in_prmbench_say_where(tmp_path, change, code):
    with refuses(code):
        read_samples(write(tmp_path / "a.jsonl", change))


def test_scores_by_hand():
    rows = [
        # right steps 1, wrong steps 0 and 2; called right: 1 and 2 → found 1 right, found 1 wrong, missed 1 wrong
        {"split": "a", "problem": "p", "wrong": [0, 2], "count": 3, "steps": [False, True, True]},
        # no judgement: both right steps count as missed
        {"split": "b", "problem": "q", "wrong": [], "count": 2, "steps": None},
    ]
    scores = {name: figure.value for name, figure in prmbench_scores(rows).items()}
    # of a: right 2·1 / (2·1 + 0 missed + 1 wrong one called right); wrong 2·1 / (2·1 + 1 missed + 0)
    assert scores["a/f1"] == scores["a/negative_f1"] == scores["a/prmscore"] == pytest.approx(2 / 3)
    assert scores["a/step_accuracy"] == pytest.approx(2 / 3)
    # overall: right found 1, missed 2, false 1: 2 / 5; wrong found 1, missed 1, false 2: 2 / 5
    assert scores["overall/f1"] == pytest.approx(2 / 5) and scores["overall/prmscore"] == pytest.approx(2 / 5)
    assert scores["b/step_accuracy"] == 0.0 and "b/prmscore" not in scores
    assert scores["parsed"] == 0.5
