"""Malformed rows of judged suites and of programs are set aside, and read and refused rows add up."""

from __future__ import annotations

import json

import pytest

from cotrain.data.malformed_rows import Quarantine
from cotrain.data.suite_files import load_suite
from cotrain.grading.pool import AnswerGrader
from tests.data.test_prmbench import ROW
from tests.sentences import refuses
from tests.test_suites_programs import HUMANEVAL, MBPP

GIVEN = {"id": "a", "split": "gsm8k", "problem": "1 + 1?", "steps": ["1 + 1 = 2"], "label": -1}
BROKEN = b'{"problem": '
CASES = {
    "processbench": (
        [GIVEN, {**GIVEN, "id": "b", "label": 7}, {**GIVEN, "id": "c"}],
        "E_STEP_LABELS",
        "field 'label'",
        2,
    ),
    "prmbench": ([ROW, {**ROW, "error_steps": "1"}, {**ROW, "idx": "q"}], "E_STEP_LABELS", "field 'error_steps'", 2),
    "mbpp": ([*MBPP[:2], {**MBPP[0], "task_id": 12, "test_list": []}], "E_TESTS_EMPTY", "field 'test_list'", 2),
    "humaneval": (
        [HUMANEVAL, {**HUMANEVAL, "test": 1}, {**HUMANEVAL, "task_id": "HumanEval/2"}],
        "E_FIELD_NOT_TEXT",
        "'test'",
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_malformed_rows_of_a_suite_are_set_aside_with_place_and_reason(tmp_path, name):
    rows, code, reason, good = CASES[name]
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    with refuses(code, names=(f"{name}.jsonl, row ", reason)):
        load_suite(name, [str(path)], AnswerGrader())
    aside = Quarantine()
    assert len(load_suite(name, [str(path)], AnswerGrader(), aside)) == good
    (refused,) = aside.refused
    assert "row " in refused.where and reason in refused.reason and aside.read + 1 == len(rows)


def test_broken_json_in_a_suite_is_set_aside_and_a_wrong_file_is_not(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(json.dumps(GIVEN).encode() + b"\n" + BROKEN + b"\n")
    aside = Quarantine()
    assert len(load_suite("processbench", [str(path)], AnswerGrader(), aside)) == 1
    assert aside.refused[0].row == BROKEN.decode()
    path.write_text('{"question": "?"}\n' * 3)
    with refuses("E_TOO_MANY_BAD_ROWS", names="3 rows"):
        load_suite("processbench", [str(path)], AnswerGrader(), Quarantine())
