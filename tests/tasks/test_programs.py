from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from cotrain.core.errors import ConfigError, DataError
from cotrain.core.types import Grade
from cotrain.tasks import program_worker
from cotrain.tasks.grading import GradingPool
from cotrain.tasks.jsonl import split_of
from cotrain.tasks.programs import JUDGING, MEMORY_BYTES, ProgramTasks, humaneval_problem, program_of, whole
from cotrain.tasks.sources import from_description, task_source

RIGHT = Grade(value=True)
TESTS = "assert twice(2) == 4\nassert twice(-1) == -2"
GOOD = "def twice(x):\n    return 2 * x"
HUMAN = {
    "task_id": "HumanEval/900",
    "prompt": 'from math import floor\n\ndef half(x: float) -> int:\n    """Half of x, rounded down."""\n',
    "entry_point": "half",
    "canonical_solution": "    return floor(x / 2)\n",
    "test": "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(4) == 2\n",
}


def wrong(reason: str) -> Grade:
    return Grade(value=False, reason=reason)


def mbpp(path: Path, numbers=range(595, 605)) -> Path:
    rows = [
        {
            "task_id": n,
            "text": f"Write a function: {n}.",
            "code": GOOD,
            "test_list": TESTS.split("\n"),
            "test_setup_code": "",
        }
        for n in numbers
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def pool():
    with GradingPool(workers=1, deadline_s=0.3, judging=(JUDGING,), memory=MEMORY_BYTES) as pool:
        yield pool


@pytest.mark.parametrize(
    ("program", "grade"),
    [
        (GOOD, RIGHT),
        ("def twice(x):\n    return x + 2", wrong("test failed")),
        ("def twice(x):\n    return y", wrong("NameError")),
        ("def twice(x) return", wrong("syntax error")),
        ("class Mine(Exception): pass\nraise Mine('hello')", wrong("error")),
        ("import sys; sys.exit(0)", wrong("SystemExit")),
        ("if __name__ == '__main__': raise ValueError\n" + GOOD, RIGHT),
    ],
)
def test_verdicts(program, grade):
    value, reason = program_worker.run(TESTS, program)
    assert Grade(value=value, reason=reason) == grade


def test_tests_that_cannot_be_read_are_no_verdict():
    assert program_worker.run("assert (", GOOD) == (None, "tests not readable")


BOMBS = {
    "os._exit": ("import os; os._exit(0)", ("program died",)),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", ("program died",)),
    "kills its group": ("import os; os.killpg(0, 9)", ("program died",)),
    "never ends": ("while True: pass", ("timeout",)),
    "ignores signals": (
        "import signal\nfor s in (15, 27, 24): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        ("timeout", "program died"),
    ),
    "sleeps": ("import time; time.sleep(1000)", ("timeout",)),
    "closes files and sleeps": ("import os, time; os.closerange(0, 1000); time.sleep(1000)", ("program died",)),
    "takes memory": ("x = bytearray(1 << 33)", ("MemoryError",)),
    "floods output": ("import sys\nwhile True: sys.stdout.write('x' * 100000)", ("timeout",)),
    "fills a file": ("open('f', 'w').write('x' * (1 << 22))", ("OSError",)),
    "reads input": ("input()", ("EOFError",)),
    "regular expression": ("import re; re.match('(a+)+$', 'a' * 40 + 'b')", ("timeout",)),
    "recurses": ("def f(): f()\nf()", ("RecursionError",)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_whatever_a_program_does_ends_in_time_and_the_next_is_graded_right(pool, name):
    program, reasons = BOMBS[name]
    pool.ask(TESTS, GOOD)  # loads the worker
    start = time.perf_counter()
    assert pool.ask(TESTS, program) in [wrong(reason) for reason in reasons]
    assert time.perf_counter() - start < 4 * 0.3 + 3.0  # 1.2 s, on however busy a machine
    assert pool.ask(TESTS, GOOD) == RIGHT


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="orphans are found by /proc")
@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root may start processes there")
def test_processes_that_leave_the_group_are_ended_too(pool, tmp_path):
    mark = tmp_path / "pid"
    program = (
        f"import os, time\nif not os.fork():\n    os.setsid()\n    open({str(mark)!r}, 'w').write(str(os.getpid()))\n"
    )
    program += (
        f"    time.sleep(1000)\nwhile not os.path.exists({str(mark)!r}) or not open({str(mark)!r}).read(): pass\n"
    )
    assert pool.ask(TESTS, program + GOOD) == RIGHT
    assert not Path(f"/proc/{mark.read_text()}").exists()


def test_a_program_finds_an_empty_place(pool, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "canary")
    program = "import os\nassert not os.listdir('.') and 'SOME_API_KEY' not in os.environ\nopen('f', 'w').write('x')\n"
    program += "assert os.environ['HOME'] == os.getcwd()\n"
    program += "left = [n for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{n}')]\nassert len(left) <= 1, left\n"
    assert pool.ask(TESTS, program + GOOD) == RIGHT
    assert pool.ask(TESTS, program + GOOD) == RIGHT  # and the next one too


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("Here:\n```python\nx = 1\n```\n", "x = 1"),
        ("<step>a</step><answer>\n```python\nx = 2\n```\n</answer>", "x = 2"),
        ("<answer>x = 3</answer>", "x = 3"),
        ("```python\ndef f(): pass\n```\nIt is used so:\n```\nf()\n```", "def f(): pass"),
        ("```\na\n```\n```\nb\n```", "b"),
        ("```python\nx = 4", "x = 4"),  # cut off
        ("x = 5", None),
        ("<answer> </answer>", None),
        ("```\n```", None),
    ],
)
def test_programs_are_found(text, program):
    assert program_of(text, "f") == program


def test_a_body_continues_the_head_and_a_function_stands_below_the_imports():
    problem = humaneval_problem(HUMAN, "row 1")
    for program in ("    return floor(x / 2)", "def half(x):\n    return floor(x / 2)"):
        assert program_worker.run(problem.tests, whole(problem, program)) == (True, None)
    assert program_worker.run(problem.tests, whole(problem, "    return x / 2")) == (False, "test failed")
    assert program_worker.run(problem.tests, problem.solution) == (True, None)


def test_mbpp_is_a_task_source_with_the_published_splits(tmp_path):
    source = task_source("mbpp", str(mbpp(tmp_path / "mbpp.jsonl", [5, 11, 511, 600, 601, 602])))
    assert [source.size(split) for split in ("train", "validation", "test")] == [2, 2, 1]
    task = source.get("train", 1)
    assert task.prompt.startswith("Write a function: 602.") and TESTS in task.prompt and task.answer == GOOD
    assert task.grade(f"```python\n{GOOD}\n```") == RIGHT
    assert task.grade("I cannot") == wrong("no program")
    assert task.grade("<answer>def twice(x): return 4</answer>") == wrong("test failed")
    description = json.loads(json.dumps(source.describe()))
    assert from_description(description).describe() == description
    source.close()
    with pytest.raises(DataError, match="have changed"):
        mbpp(tmp_path / "mbpp.jsonl", [5, 700])
        from_description(description)


def test_a_sandbox_takes_the_place_of_our_process(tmp_path, monkeypatch):
    (tmp_path / "box.py").write_text(
        "from cotrain.core.types import Grade\n"
        "def run(text):\n    if 'boom' in text: raise RuntimeError\n    return Grade(value='assert twice' in text)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source = task_source("mbpp:box:run", str(mbpp(tmp_path / "mbpp.jsonl")))
    task = source.get("train", 0)
    assert task.grade("<answer>anything</answer>") == RIGHT
    assert task.grade("<answer>boom</answer>") == Grade(value=None, reason="sandbox failed")
    assert source.describe()["settings"]["sandbox"] == "box:run"
    with pytest.raises(ConfigError, match="cannot be imported"):
        ProgramTasks("mbpp", source.path, sandbox="box:nothing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_list": []}, "row 1, field 'test_list': expected at least one test"),
        ({"test_list": "assert"}, "expected a list of texts, found text"),
        ({"code": 3}, "field 'code': expected text"),
        ({"text": None}, "field 'text': expected text"),
    ],
)
def test_faults_say_where(tmp_path, change, message):
    path = mbpp(tmp_path / "mbpp.jsonl", [700])
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        ProgramTasks("mbpp", path)


def test_humaneval_is_cut_by_a_hash(tmp_path):
    rows = [{**HUMAN, "prompt": HUMAN["prompt"].replace("Half", f"{n}: half")} for n in range(40)]
    path = tmp_path / "humaneval.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = task_source("humaneval", str(path))
    assert source.size("train") == sum(split_of(row["prompt"]) == "train" for row in rows)
    path.write_text(json.dumps({**HUMAN, "entry_point": "third"}))
    with pytest.raises(DataError, match="head of the function 'third'"):
        ProgramTasks("humaneval", path)
