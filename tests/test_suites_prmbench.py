"""The suite PRMBench from a file to its scores, with a verifier that answers by hand."""

from __future__ import annotations

import json

import pytest

from cotrain.analysis.benchmarks import SuiteOptions, evaluate_suite, suite_scores, suite_settings
from cotrain.data.suite_files import load_suite, suite_data
from cotrain.grading.pool import AnswerGrader
from tests.data.test_prmbench import ROW
from tests.test_suites import cast, verdict


def test_known_scores_of_a_verifier_on_prmbench(tmp_path):
    file = tmp_path / "prmbench.jsonl"
    rows = [ROW, {**ROW, "idx": "p1_1", "modified_question": "another"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert suite_data(["prmbench"], [str(tmp_path)]) == {"prmbench": [str(file)]}
    samples = load_suite("prmbench", [str(file)], AnswerGrader())
    # steps 1 and 3 of three are wrong; three reviews each, of which the majority counts
    said = iter(
        (
            *(verdict(False, True, True), verdict(False, False, True), verdict(True, True, False)),  # see below
            *("well …", verdict(False, True, False), "well …"),
        )
    )
    executor, options = cast(None, lambda fields: next(said)), SuiteOptions(reviews=3)
    settings = suite_settings("prmbench", samples, executor, options, {})
    found = evaluate_suite(tmp_path / "suite.jsonl", "prmbench", samples, executor, options, settings)
    assert [row["steps"] for row in found] == [[False, True, True], [False, True, False]]
    scores = {name: figure.value for name, figure in suite_scores("prmbench", found, options).items()}
    # right steps: 2 found, 1 wrong one called right: 4 / 5; wrong steps: 3 found, 1 missed: 6 / 7
    assert scores["confidence/f1"] == pytest.approx(4 / 5) and scores["confidence/negative_f1"] == pytest.approx(6 / 7)
    assert scores["overall/prmscore"] == pytest.approx((4 / 5 + 6 / 7) / 2)
