"""An agent that printed without end took the memory of its run; readers walked over each character of what it said."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from cotrain.formats.answers import READERS, final_answer, last_boxed
from cotrain.formats.solutions import MAX_CHARS
from cotrain.grading import grade_process
from cotrain.grading.grade_process import LineProcess
from cotrain.grading.step_checker import StepChecker
from cotrain.rollout.tools import calls
from cotrain.rollout.tools.calls import ToolError, read_output

PATIENCE_S = 60.0


def program(code):
    return [sys.executable, "-u", "-c", code]


def test_a_line_without_an_end_is_no_reply(monkeypatch):
    monkeypatch.setattr(grade_process, "MOST_LINE", 1 << 16)
    process = LineProcess(program("import sys\nwhile True: sys.stdout.write('x' * 65536)"))
    assert process.replies.get(timeout=PATIENCE_S) is None
    process.kill()


def test_lines_that_nobody_reads_wait_in_the_pipe():
    process = LineProcess(program("i = 0\nwhile True: print(i); i += 1"))
    assert [process.replies.get(timeout=PATIENCE_S) for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
    time.sleep(0.2)
    assert process.replies.qsize() <= grade_process.MOST_UNREAD
    process.kill()
    until = time.monotonic() + PATIENCE_S
    while process.replies.get(timeout=PATIENCE_S) is not None:
        assert time.monotonic() < until


def test_a_checker_that_floods_says_nothing(tmp_path):
    (tmp_path / "flood.py").write_text("import sys\nsys.stdin.readline()\nwhile True: print('{\"id\": 0}')\n")
    checker = StepChecker(f"{sys.executable} {tmp_path / 'flood.py'}")
    assert asyncio.run(checker.check("2 + 2", ("4",), "4")) == "checker: unreadable line"
    checker.close()


@pytest.mark.parametrize("size", [calls.MOST_READ, calls.MOST_READ + 1])
def test_a_tool_that_returns_too_much_has_failed(size):
    if size <= calls.MOST_READ:
        assert read_output("x" * size) == "x" * calls.MAX_OUTPUT + calls.CUT
        return
    with pytest.raises(ToolError) as raised:
        read_output("x" * size)
    assert raised.value.reason == "too much output"


HOSTILE = {
    "boxed": r"\boxed{",
    "nested": r"\boxed{ { ",
    "closed": r"\boxed{1}, ",
    "escaped": "\\{",
    "answers": "<answer>",
    "answer blocks": "<answer>1</answer>",
    "hashes": "#### 1\n",
    "thoughts": "<think>",
    "phrases": "The answer is ",
    "spaces": " ",
    "numbers": "1,",
    "brackets": "{}" * 3,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reading_an_answer_takes_time_in_proportion_to_its_length(name):
    """Twice as much text, about twice as much time: a square would be four times, and of this size minutes."""
    piece = HOSTILE[name]
    for reader in (final_answer, *READERS.values()):
        text = (piece * (MAX_CHARS // len(piece) + 1))[:MAX_CHARS]
        began = time.process_time()
        reader(text)
        reader(text + "}" * (MAX_CHARS // 4))
        assert time.process_time() - began < 2.0, reader


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{ } \boxed{{4}}", "{4}"),
        (r"\boxed{5", None),
        ("\\boxed{6}\\", "6"),
        (r"\boxed 7", "7"),
    ],
)
def test_boxes_are_read_as_before(text, inside):
    assert last_boxed(text) == inside
