from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotrain.core.types import Grade
from cotrain.data.files import split_of
from cotrain.data.program_tests import paper_of
from cotrain.data.programs import ProgramTasks, humaneval_problem, mbpp_problem, whole_program
from cotrain.data.sources import from_description, task_source
from cotrain.grading.fences import program_of
from cotrain.grading.isolation import JUDGING, MEMORY_BYTES, working_sandbox
from cotrain.grading.pool import GradingPool
from tests.sentences import refuses

RIGHT = Grade(value=True)
TESTS = "assert twice(2) == 4\nassert twice(-1) == -2"
GOOD = "def twice(x):\n    return 2 * x"
FIELDS = "from dataclasses import dataclass, fields\n@dataclass\nclass Point:\n    x: int"
PAPER = paper_of(before="", tests=TESTS, solution=GOOD)
HUMAN = {
    "task_id": "HumanEval/900",
    "prompt": 'from math import floor\n\ndef half(x: float) -> int:\n    """Half of x, rounded down."""\n',
    "entry_point": "half",
    "canonical_solution": "    return floor(x / 2)\n",
    "test": "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(4) == 2\n",
}


def wrong(reason: str) -> Grade:
    return Grade(value=False, reason=reason)


def mbpp(path: Path, numbers=range(595, 605), names: Mapping[int, str] | None = None) -> Path:
    """Rows in MBPP's layout; ``names``: number → the function that its program has besides, such as MBPP's own."""
    names = names or {}
    rows = [
        {
            "task_id": n,
            "text": f"Write a function: {n}.",
            "code": f"def {names[n]}(x): ..." if n in names else GOOD,
            "test_list": TESTS.split("\n"),
            "test_setup_code": "",
        }
        for n in numbers
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def pool():
    with GradingPool(workers=1, judging=(JUDGING,), memory=MEMORY_BYTES, sandbox=working_sandbox()) as pool:
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
        ("def twice(x: Unknown):\n    return 2 * x", wrong("NameError")),  # annotations are evaluated
        ("from __future__ import annotations\ndef twice(x: Unknown):\n    return 2 * x", RIGHT),
        (f"{FIELDS}\ndef twice(x):\n    return 2 * x if fields(Point)[0].type is int else 0", RIGHT),
        (f"from __future__ import annotations\n{FIELDS}\ndef twice(x):\n    return 2 * Point(x).x", RIGHT),
        ("import typing\nclass A:\n    x: 'B'\nclass B: pass\ntyping.get_type_hints(A)\n" + GOOD, RIGHT),
    ],
)
def test_verdicts(pool, program, grade):
    assert pool.grade_in_process(PAPER, program) == grade


@pytest.mark.parametrize("tests", ["assert (", "assert twice(object())"])
def test_tests_that_cannot_be_read_are_no_verdict(pool, tests):
    paper = paper_of(before="", tests=tests, solution=GOOD)
    assert pool.grade_in_process(paper, GOOD) == Grade(value=None, reason="tests not readable")


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
def test_whatever_a_program_does_ends_in_time_and_the_next_is_graded_right(pool, name, monkeypatch):
    program, reasons = BOMBS[name]
    pool.grade_in_process(PAPER, GOOD)  # loads the worker
    deadline_s = 0.15 if "timeout" in reasons else pool.deadline_s
    monkeypatch.setattr(pool, "deadline_s", deadline_s)
    start = time.perf_counter()
    assert pool.grade_in_process(PAPER, program) in [wrong(reason) for reason in reasons]
    assert time.perf_counter() - start < 4 * deadline_s + 10.0  # on however busy a machine
    monkeypatch.undo()
    assert pool.grade_in_process(PAPER, GOOD) == RIGHT


def test_a_program_finds_an_empty_place(pool, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "canary")
    program = "import os\nassert not os.listdir('.') and 'SOME_API_KEY' not in os.environ\nopen('f', 'w').write('x')\n"
    program += "assert os.environ['HOME'] == os.getcwd()\n"
    program += "def opened(n):\n    try: return bool(os.fstat(n))\n    except OSError: return False\n"
    program += "left = [n for n in range(3, 64) if opened(n)]\nassert len(left) <= 1, left\n"
    assert pool.grade_in_process(PAPER, program + GOOD) == RIGHT
    assert pool.grade_in_process(PAPER, program + GOOD) == RIGHT  # and the next one too


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


def test_a_body_continues_the_head_and_a_function_stands_below_the_imports(pool):
    problem = humaneval_problem(HUMAN, "row 1")
    paper = paper_of(before=problem.before, tests=problem.tests, solution=problem.solution)
    for program in ("    return floor(x / 2)", "def half(x):\n    return floor(x / 2)"):
        assert pool.grade_in_process(paper, whole_program(problem, program)) == RIGHT
    assert pool.grade_in_process(paper, whole_program(problem, "    return x / 2")) == wrong("test failed")
    assert pool.grade_in_process(paper, problem.solution) == RIGHT


def test_what_an_answer_makes_of_a_test_s_function_is_its_own_fault(pool):
    program = "def f(g): return g({})"
    paper = paper_of(before="", tests="assert f(lambda x: x.keys()) == 1", solution=program)
    assert pool.grade_in_process(paper, program) == wrong("TypeError")


SETUPS = {  # of the answer's own things in tests: reference, setup and test
    "a class": (
        "class P:\n    def __init__(self, a): self.a = a\ndef f(p): return p.a + p.b",
        "x = P(1)\nx.b = 2",
        "f(x) == 3",
    ),
    "a list that is changed": ("def f(x): x.sort()", "x = [3, 1]\nf(x)", "x == [1, 3]"),
    "a dictionary that is changed": ("def f(x): x['b'] = {x.pop('a')}", "x = {'a': 1}\nf(x)", "x == {'b': {1}}"),
    "a generator": ("def f(n): yield from range(n)", "", "list(f(700)) == list(range(700)) and next(f(1)) == 0"),
    "a function": ("def f(g): return lambda x: g(g(x))", "", "f(lambda x: x + 1)(2) == 4 and f(abs)(-2) == 2"),
    "an iterator": ("def f(x): return sum(x)", "", "f(i for i in range(4)) == 6"),
    "an exception": ("def f(x): raise KeyError(x)", "try: f(1)\nexcept LookupError: x = 1", "x == 1"),
    "a built-in name": ("def sum(a, b): return a + b", "", "sum(1, 2) == 3"),
    "a module": ("import math\ndef f(x): return x", "", "math.isclose(f(1.0), 1.0)"),
    "a module that nobody imports": ("def f(x): return x", "", "math.isclose(f(1.0), 1.0)"),
    "its items": (
        "class P:\n    def __getitem__(self, i): return i\n    def __len__(self): return 7",
        "",
        "P()[2] + len(P()) == 9",
    ),
    "a text of it": ("class P:\n    def __str__(self): return 'p'", "", "str(P()) == 'p'"),
}


@pytest.mark.parametrize("name", SETUPS)
def test_tests_that_use_more_than_values(pool, name):
    solution, setup, test = SETUPS[name]
    assert (
        pool.grade_in_process(paper_of(before="", tests=f"{setup}\nassert {test}", solution=solution), solution)
        == RIGHT
    )
    assert pool.grade_in_process(
        paper_of(before="", tests=f"{setup}\nassert not ({test})", solution=solution), solution
    ) == wrong("test failed")


def test_what_mbpp_sets_up_may_use_what_the_answer_defines(pool):
    row = {
        "text": "Height.",
        "code": "class Node: pass\ndef height(n): return n.h",
        "test_list": ["assert height(root) == 3"],
    }
    problem = mbpp_problem({**row, "test_setup_code": "root = Node()\nroot.h = 3"}, "row 1")
    assert "root" not in whole_program(problem, problem.solution) and "root = " not in problem.question
    assert (
        pool.grade_in_process(
            paper_of(before=problem.before, tests=problem.tests, solution=problem.solution), problem.solution
        )
        == RIGHT
    )


def test_mbpp_is_a_task_source_with_the_published_splits(tmp_path):
    path = mbpp(tmp_path / "mbpp.jsonl", [5, 11, 511, 600, 601, 602], names={11: "remove_Occ"})
    source = task_source("mbpp", str(path))
    assert [source.size(split) for split in ("train", "validation", "test")] == [2, 2, 1]
    task = source.get("train", 1)
    assert task.prompt.startswith("Write a function: 602.") and TESTS in task.prompt and task.gold == GOOD
    assert task.grade(f"```python\n{GOOD}\n```") == RIGHT
    assert task.grade("I cannot") == wrong("no program")
    assert task.grade("<answer>def twice(x): return 4</answer>") == wrong("test failed")
    description = json.loads(json.dumps(source.describe()))
    assert from_description(description).describe() == description
    source.close()
    with refuses("E_DATA_CHANGED"):
        mbpp(tmp_path / "mbpp.jsonl", range(700, 730))
        from_description(description)


@pytest.mark.parametrize("column", ["code", "test_imports"])
def test_a_description_notices_another_reference_and_other_imports(column, tmp_path):
    path = mbpp(tmp_path / "own.jsonl", range(700, 730))
    source = task_source("mbpp", str(path))
    description = json.loads(json.dumps(source.describe()))
    source.close()

    others = {"code": GOOD + "  # doubled", "test_imports": ["import math"]}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, column: others[column]}) + "\n" for row in rows))
    with refuses("E_DATA_CHANGED", names="own.jsonl"):
        from_description(description)


@pytest.mark.parametrize("start", [0, 1, 11, 480, 601], ids=str)
def test_own_tasks_are_split_by_their_questions_whatever_their_numbers(start, tmp_path):
    source = task_source("mbpp", str(mbpp(tmp_path / "own.jsonl", range(start, start + 30))))
    sizes = {split: source.size(split) for split in ("train", "validation", "test")}
    assert sizes == {"train": 24, "validation": 3, "test": 3}
    assert "task_id is not MBPP's own" in source.notes[0]
    source.close()


def test_a_directory_of_own_tasks_keeps_its_test_split(tmp_path):
    mbpp(tmp_path / "train.jsonl", range(30))
    mbpp(tmp_path / "test.jsonl", [0, 40, 41])  # the first is asked in training too
    source = task_source("mbpp", str(tmp_path))
    assert source.size("test") == 3 and source.size("train") + source.size("validation") == 29
    source.close()


def test_columns_of_programs_are_read_refused_or_told(tmp_path):
    rows = [json.loads(line) for line in mbpp(tmp_path / "a.jsonl", range(30)).read_text().splitlines()]
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps(row | {"system": "Be short.", "level": 2}) + "\n" for row in rows))
    source = task_source("mbpp", str(path))
    assert source.notes[-1] == f"note: {path}: columns not read: level (30 rows)"
    assert source.get("train", 0).prompt.startswith("Be short.\n\nWrite a function")
    source.close()
    path.write_text("".join(json.dumps(row | {"context": "The helper h is given."}) + "\n" for row in rows))
    with refuses("E_COLUMN_NOT_ASKED", names=("row 1", "'context'")):
        task_source("mbpp", str(path))


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
    with refuses("E_SANDBOX_NOT_IMPORTABLE"):
        ProgramTasks("mbpp", source.path, sandbox="box:nothing")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"test_list": []}, "E_TESTS_EMPTY: row 1"),
        ({"test_list": "assert"}, "E_FIELD_NOT_TEXTS: text"),
        ({"code": 3}, "E_FIELD_NOT_TEXT: field 'code'"),
        ({"text": None}, "E_FIELD_NOT_TEXT: field 'text'"),
    ],
)
def test_faults_say_where(tmp_path, change, code):
    path = mbpp(tmp_path / "mbpp.jsonl", [700])
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with refuses(code):
        ProgramTasks("mbpp", path)


def test_humaneval_is_cut_by_a_hash(tmp_path):
    rows = [{**HUMAN, "prompt": HUMAN["prompt"].replace("Half", f"{n}: half")} for n in range(200)]
    path = tmp_path / "humaneval.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = task_source("humaneval", str(path))
    assert source.size("train") == sum(split_of(row["prompt"]) == "train" for row in rows)
    path.write_text(json.dumps({**HUMAN, "entry_point": "third"}))
    with refuses("E_FUNCTION_HEAD_MISSING", names="'third'"):
        ProgramTasks("humaneval", path)
