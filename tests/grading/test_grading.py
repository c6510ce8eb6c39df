from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.core.types import Grade
from cotrain.grading.compare_texts import quick_grade, read_answer
from cotrain.grading.pool import MOST_RETRIES, RETRIES_PER_GRADE, GradingPool
from tests.sentences import refuses

RIGHT, WRONG = Grade(value=True), Grade(value=False)
SLOW = [  # for sympy, and no number in them is large
    f"\\int_0^1\\int_0^1 \\frac{{\\ln(1+x^{{{n}}}y)}}{{1+xy}} dx dy" for n in range(3, 9)
]


@pytest.fixture(scope="module")
def pool():
    with GradingPool(workers=2) as pool:  # the second begins when two are needed
        yield pool


@pytest.mark.parametrize(
    ("gold", "answer", "grade"),
    [
        ("18", "18", RIGHT),
        ("18", " $18.00 ", RIGHT),
        ("18", "\\boxed{18}.", RIGHT),
        ("18", "18 dollars", RIGHT),
        ("9 (apples)", "9", RIGHT),
        ("1,234", "1234", RIGHT),
        ("-5", "−$5", RIGHT),
        ("50", "50\\%", RIGHT),
        ("0.5", "0.5\\%", WRONG),  # a hundredth
        ("4022", "4.022 \\times 10^{3}", RIGHT),
        ("-0.05", "-5 \\cdot 10^{-2}", RIGHT),
        ("11 (trees)", "117 (pieces of wood)", WRONG),
        ("\\frac{1}{3} E_{1}", "\\dfrac{1}{3} E_{1}", RIGHT),
        ("6", "\\boxed{5} \\boxed{6}", RIGHT),  # the last one counts
        ("5", "\\boxed{5} \\boxed{6}", WRONG),
        ("0.1", "0.10000000000000000000001", WRONG),
        ("18", "-18", WRONG),
        ("18", "", WRONG),
        ("18", "9" * 200_000, WRONG),
        ("18", "5}{18", WRONG),
        ("Monday", "monday", RIGHT),
        ("Monday", "\\text{Monday}", RIGHT),
        ("dynamo", "monday", WRONG),  # the same letters
        (" ", "18", Grade(value=None, reason="gold not readable")),
        ("18", "18 million", WRONG),
        ("18", "1234,5", None),
        ("6", "6x", None),
        ("6", "5 or 6", None),
        ("0.5", "50%", RIGHT),
        ("5 cm", "5 metres", WRONG),
        ("1000", "1e3", RIGHT),
        ("3", "３", RIGHT),
        ("\\frac12", "0.5", RIGHT),
        ("\\frac13", "0.3333333333", None),  # perhaps rounded,
    ],
)
def test_what_needs_no_process(gold, answer, grade):
    assert quick_grade(gold, answer) == grade


@given(value=st.decimals(allow_nan=False, allow_infinity=False, places=3))
def test_numbers_are_read_exactly(value):
    text = f"{value:f}"
    assert read_answer(text).value == value
    assert read_answer(f"${value:,f}".replace("$-", "-$")).value == value


@pytest.mark.whole
@given(gold=st.text(max_size=30), answer=st.text(max_size=30))
def test_quick_grades_never_raise(gold, answer):
    grade = quick_grade(gold, answer)
    if gold.strip().removesuffix(".").strip() and "\\" not in gold and "$" not in gold:
        assert quick_grade(gold, gold) == RIGHT
    assert grade is None or grade.value is not None or grade.reason == "gold not readable"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("\\frac12", "0.5", True),
        ("(x+1)^2", "x^2+2x+1", True),
        ("\\frac{1}{2}", "50\\%", True),
        ("2\\sqrt{2}", "\\sqrt{8}", True),
        ("6", "5 or 6", False),
        ("6", "\\{5,6\\}", False),
        ("6", "6x", False),
        ("6", "\\left(", False),
        ("6", "\x00\ud800", False),
        ("\\frac{1}{2}", "\\frac{1}{3}", False),
        ("0.5", "0.5\\%", False),
        ("7 + \\frac\\pi 2", "7 + \\frac{\\pi}{2}", True),
        ("\\frac{15}{2}", "2 \\left(\\frac{11}{2}\\right)", False),  # not a mixed number
        ("2 \\left(\\frac{11}{2}\\right)", "11", True),
        ("2 a", "2 a b c", False),  # math-verify drops letters behind a space as units
        ("x^{2}", "x^{2} h", False),
        ("\\sin 2", "\\sin 2 t", False),
        ("\\sin^2 t", "\\sin^{2}(t)", True),
        ("a + b + c", "c+b+a", True),
        ("5", "5 m", True),  # a unit
        ("(a, b, c)", "(a,b,c)", True),
        ("p \\text{ or } q", "q \\text{ or } p", True),  # no set in a set
        ("\\begin{pmatrix} a & b \\\\ c & f \\end{pmatrix}", "\\begin{pmatrix}a&b\\\\c&f\\end{pmatrix}", True),
        ("\\dfrac{2469}{20,\\!000}", "\\frac{2469}{20000}", True),
        ("-1./3", "-\\frac{1}{3}", True),
    ],
)
def test_mathematics(pool, gold, answer, value):
    assert pool.grade(gold, answer) == Grade(value=value)


def test_a_gold_answer_that_cannot_be_read_is_no_wrong_answer(pool):
    assert pool.grade("\\frac{", "x") == Grade(value=None, reason="gold not readable")


@pytest.mark.whole
def test_hostile_answers_end_at_the_deadline_and_the_next_one_is_right():
    with GradingPool(workers=1, deadline_s=0.5) as pool:
        assert pool.grade("\\sqrt8", "2\\sqrt2") == RIGHT  # loads the worker
        for bomb in ("9^{9^{9^9}}", "(10^9)!", "(" * 3000 + "1" + ")" * 3000, *SLOW[:2]):
            start = time.perf_counter()
            grade = pool.grade_in_process("6", bomb)
            assert grade in (Grade(value=None, reason="timeout"), Grade(value=None, reason="too large"), WRONG)
            assert bomb not in SLOW or grade.reason == "timeout"
            assert time.perf_counter() - start < 2 * 20.0 + 1.0  # 0.5 s of CPU time, on however busy a machine
            assert pool.grade("\\sqrt8", "2\\sqrt2") == RIGHT


@pytest.mark.whole
def test_slow_answers_have_the_whole_deadline_as_long_as_few_of_them_are_hopeless():
    with GradingPool(workers=1, deadline_s=0.4) as pool:
        assert pool.grade("\\sqrt8", "2\\sqrt2") == RIGHT
        assert pool._retries_left == MOST_RETRIES  # grades that are given save nothing beyond
        for n, bomb in enumerate(SLOW[: int(MOST_RETRIES) + 1], start=1):
            assert pool.grade_in_process("6", bomb) == Grade(value=None, reason="timeout")
            assert pool._retries_left == pytest.approx(max(0, MOST_RETRIES - n))
        assert pool.grade_in_process("\\sqrt8", "2\\sqrt2") == RIGHT
        assert pool._retries_left == pytest.approx(RETRIES_PER_GRADE)
        pool._retries_left = 1.0
        assert pool.grade_in_process("\\frac{1}{2}", "\\int_0^1 x dx").value is not False  # a slow one, and a right one
        assert pool._retries_left >= 1.0


def test_long_answers_to_short_questions_are_not_tried():
    with GradingPool() as pool:
        assert pool.grade("\\frac12", "+".join(["x"] * 400)) == Grade(value=None, reason="too large")
        gold = "+".join(f"x^{{{n}}}" for n in range(90))
        assert pool.grade(gold, gold + " ") == RIGHT  # the same text, of any length
        assert pool._idle.get() is None  # nothing was started
        pool._idle.put(None)


@pytest.mark.whole
def test_a_process_that_dies_is_replaced_and_its_answer_tried_again():
    with GradingPool(workers=1) as pool:
        pool.grade("\\sqrt8", "2\\sqrt2")
        worker = pool._idle.get()
        assert worker is not None
        os.kill(worker._process.pid, 9)
        pool._idle.put(worker)
        assert pool.grade("\\sqrt8", "2\\sqrt2") == RIGHT
        assert pool.grade("\\sqrt8", "3\\sqrt2") == WRONG


@pytest.mark.whole
def test_several_at_once(pool):
    async def grade_all() -> list[Grade]:
        return await asyncio.gather(*(pool.agrade("\\sqrt8", f"{n}\\sqrt2") for n in range(6)))

    assert [g.value for g in asyncio.run(grade_all())] == [False, False, True, False, False, False]


@pytest.mark.whole
def test_no_process_outlives_its_pool_or_its_parent_nor_inherits_secrets(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "canary")
    program = (
        "import os\nfrom cotrain.grading.pool import GradingPool\n"
        "pool = GradingPool()\npool.grade(r'\\sqrt8', r'2\\sqrt2')\n"
        "print(pool._idle.queue[0]._process.pid, flush=True)\nos._exit(0)"  # no clean-up of any kind
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert _ends(int(done.stdout))
    threads = threading.active_count()
    pool = GradingPool()
    pool.grade("\\sqrt8", "2\\sqrt2")
    worker = pool._idle.queue[0]
    environment = Path(f"/proc/{worker._process.pid}/environ")
    assert not environment.exists() or b"canary" not in environment.read_bytes()
    pool.close()
    pool.close()
    assert _ends(worker._process.pid)
    until = time.monotonic() + 30
    while threading.active_count() > threads and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= threads
    with pytest.raises(RuntimeError, match="closed"):
        pool.grade("\\sqrt8", "2\\sqrt2")


def _ends(pid: int) -> bool:
    for _ in range(3000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{pid}/status")
        if status.exists() and "State:\tZ" in status.read_text():
            return True  # dead, and its new parent has not asked for it yet
        time.sleep(0.01)
    return False


@pytest.mark.whole
def test_settings_are_checked():
    for workers, deadline_s in ((0, 5.0), (1, 0.0)):
        with refuses("E_GRADING_POOL_RANGE"):
            GradingPool(workers=workers, deadline_s=deadline_s)
