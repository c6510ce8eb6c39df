"""MBPP and HumanEval on answers made by hand: the scores are exactly those worked out beside them."""

from __future__ import annotations

import json

import pytest

from cotrain.analysis.benchmarks import SuiteOptions, evaluate_suite, score_lines, suite_scores, suite_settings
from cotrain.data.programs import suite_tasks
from cotrain.data.suite_files import load_suite, suite_data
from cotrain.grading.pool import AnswerGrader
from cotrain.metrics.suites import GREEDY_SAMPLE, program_scores
from tests.sentences import refuses
from tests.test_suites import cast, values, verdict

MBPP = [
    {
        "task_id": 11,
        "text": "Write a function to add.",
        "code": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    },
    {
        "task_id": 510,
        "text": "Write a function to double.",
        "code": "def double(a):\n    return 2 * a",
        "test_list": ["assert double(4) == 8"],
    },
    *(
        {"task_id": n, "text": f"Not for the test, {n}.", "code": f"def {name}(x): ...", "test_list": ["pass"]}
        for n, name in {2: "similar_elements", 511: "find", 602: "first_repeated_char"}.items()
    ),
]
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'import math\n\n\ndef root(x):\n    """The root of x.\n\n    >>> root(4.0)\n    2.0\n    """\n',
    "entry_point": "root",
    "canonical_solution": "    return math.sqrt(x)\n",
    "test": "def check(candidate):\n    assert candidate(9.0) == 3.0\n",
}
ADD, WRONG, DOUBLE = (
    "def add(a, b):\n    return a + b",
    "def add(a, b):\n    return a",
    "def double(a):\n    return a + a",
)
HANGS, BROKEN = "while True:\n    pass", "def add(a, b:\n"
# question: four samples, then the greedy answer; None is text without a program
SHEET = {
    "add": ([ADD, WRONG, f"print(1)\n{ADD}", BROKEN], ADD),  # 2 of 4
    "double": ([None, "double = 3", DOUBLE, None], None),  # 1 of 4
}


@pytest.fixture
def mbpp(tmp_path):
    path = tmp_path / "mbpp.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in MBPP))
    return path


def block(program):
    return "I give up" if program is None else f"<step>so</step><answer>```python\n{program}\n```</answer>"


def answers():
    left = {name: [*samples, greedy] for name, (samples, greedy) in SHEET.items()}
    return lambda fields: block(left["double" if "double" in fields["problem"] else "add"].pop(0))


def test_known_scores_on_mbpp(mbpp, tmp_path):
    tasks = load_suite("mbpp", [str(mbpp)], AnswerGrader())
    assert [task.prompt.split("\n")[0] for task in tasks] == [row["text"] for row in MBPP[:2]]  # 11 to 510 alone
    assert "assert add(1, 2) == 3\nassert add(0, 0) == 0" in tasks[0].prompt
    trusts = ("a + b", "a + a")
    executor = cast(answers(), lambda fields: verdict(True, final=any(text in fields["solution"] for text in trusts)))
    options = SuiteOptions(samples=4)
    settings = suite_settings("mbpp", tasks, executor, options, {})
    rows = evaluate_suite(tmp_path / "rows.jsonl", "mbpp", tasks, executor, options, settings)
    tasks[0].grader.close()
    assert [row["correct"] for row in rows] == [True, False, True, False, True, False, False, True, False, False]
    assert values(suite_scores("mbpp", rows, options)) == {
        "greedy": 1 / 2,
        "pass@1": (2 / 4 + 1 / 4) / 2,
        "pass@4": 1.0,
        "best@4": 1.0,
        "answered": 7 / 10,
        "graded": 1.0,
    }
    assert rows[0]["answer"] == ADD and rows[5]["answer"] is None
    shown = score_lines({"suite": "mbpp", "settings": settings | {"step": 3, "data": ["F"]}, "figures": {}})
    assert shown[:2] == [
        "mbpp: 2 problems, 4 samples, 1 reviews, after step 3, data F",
        "  graded by the problem's tests, 3 s of CPU time",
    ]


def test_known_scores_on_humaneval(tmp_path):
    path = tmp_path / "humaneval.jsonl"
    path.write_text(json.dumps(HUMANEVAL) + "\n")
    tasks = load_suite("humaneval", [str(path)], AnswerGrader())
    assert HUMANEVAL["prompt"].rstrip() in tasks[0].prompt and "assert" not in tasks[0].prompt
    said = [
        "    return math.sqrt(x)",  # the body alone goes on where the prompt ends, with its imports
        "def root(x):\n    return x ** 0.5",  # the whole function stands in its place
        "    return x",
        "import math\ndef root(x):\n    raise ValueError",
        "    return math.sqrt(x)",
    ]
    executor, options = cast(lambda fields: block(said.pop(0))), SuiteOptions(samples=4)
    rows = evaluate_suite(
        tmp_path / "r.jsonl",
        "humaneval",
        tasks,
        executor,
        options,
        suite_settings("humaneval", tasks, executor, options, {}),
    )
    tasks[0].grader.close()
    expected = {"greedy": 1.0, "pass@1": 1 / 2, "pass@4": 1.0, "answered": 1.0, "graded": 1.0}
    assert values(suite_scores("humaneval", rows, options)) == expected


def test_pass_at_k_is_unbiased_by_hand():
    right = {"a": 1, "b": 0, "c": 20}  # of 20 samples each
    rows = [
        {"id": name, "sample": i, "answer": "x", "correct": i < count, "score": None}
        for name, count in right.items()
        for i in range(20)
    ]
    rows += [{"id": name, "sample": GREEDY_SAMPLE, "answer": None, "correct": None, "score": None} for name in right]
    assert values(program_scores(rows, 20)) == pytest.approx(
        {
            "greedy": 0.0,
            "pass@1": (1 / 20 + 0 + 1) / 3,
            "pass@10": (1 / 2 + 0 + 1) / 3,  # 1 − C(19, 10)/C(20, 10) = 1 − 10/20
            "pass@20": 2 / 3,
            "answered": 60 / 63,
            "graded": 60 / 63,
        },
        abs=1e-15,
    )
    assert list(values(program_scores([row for row in rows if row["sample"] == GREEDY_SAMPLE], 0))) == [
        "greedy",
        "answered",
        "graded",
    ]


def test_a_program_that_hangs_is_wrong_and_the_next_one_is_graded_right(mbpp, tmp_path):
    tasks = suite_tasks("mbpp", [str(mbpp)], deadline_s=0.2)[:1]
    said = [HANGS, ADD]

    def say(fields):
        if len(said) == 1:  # it is to answer, on however busy a machine
            tasks[0].grader._pool.deadline_s = 3.0
        return block(said.pop(0))

    executor, options = cast(say), SuiteOptions(samples=1)
    rows = evaluate_suite(
        tmp_path / "r.jsonl", "mbpp", tasks, executor, options, suite_settings("mbpp", tasks, executor, options, {})
    )
    tasks[0].grader.close()
    assert [row["correct"] for row in rows] == [False, True]


def test_where_the_data_comes_from(mbpp, tmp_path):
    assert suite_data(["mbpp", "humaneval"], []) == {
        "mbpp": ["google-research-datasets/mbpp:full"],
        "humaneval": ["openai/openai_humaneval"],
    }
    assert suite_data(["mbpp"], [str(tmp_path)]) == {"mbpp": [str(mbpp)]}
    rows = [{key: value for key, value in row.items() if key != "task_id"} for row in MBPP]
    mbpp.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(load_suite("mbpp", [str(mbpp)], AnswerGrader())) == 5  # without published numbers: all
    mbpp.write_text("".join(json.dumps(row | {"task_id": n}) + "\n" for n, row in enumerate(rows)))
    assert len(load_suite("mbpp", [str(mbpp)], AnswerGrader())) == 5  # numbers of one's own: all
    mbpp.write_text(json.dumps(MBPP[-1]) + "\n")
    with refuses("E_NO_TEST_ROWS", names="mbpp"):
        load_suite("mbpp", [str(mbpp)], AnswerGrader())
