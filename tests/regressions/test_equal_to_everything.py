"""An answer whose ``__eq__`` returns True passed all tests, and so did one that brought its own ``abs``."""

from __future__ import annotations

import pytest

from tests.regressions.conftest import GOOD

YES = "class Yes{base}:\n" + "".join(
    f"    def __{name}__(self, *a): return {value}\n"
    for name, value in {
        "eq": True,
        "ne": False,
        "lt": True,
        "le": True,
        "gt": True,
        "ge": True,
        "bool": True,
        "hash": 1,
    }.items()
)
ALL = "".join(
    f"    def __{name}__(self, *a): return self\n"
    for name in ("abs", "sub", "rsub", "add", "radd", "round", "int", "float")
)
HAS = "    def __contains__(self, x): return True\n"
WRONG = {
    "an object": YES.format(base="") + ALL + HAS + "def twice(x): return Yes()",
    "an int": YES.format(base="(int)") + ALL + "def twice(x): return Yes(0)",
    "a float": YES.format(base="(float)") + ALL + "def twice(x): return Yes(0)",
    "a text": YES.format(base="(str)") + "def twice(x): return Yes('a')",
    "a list": YES.format(base="(list)") + HAS + "def twice(x): return Yes([])",
    "a tuple of it": YES.format(base="") + HAS + "def twice(x): return (Yes(), Yes())",
    "a class": "class Meta(type):\n    def __eq__(self, x): return True\n    __hash__ = None\nclass "
    "Yes(metaclass=Meta): pass\n"
    "def twice(x): return Yes",
    "what it is given": "class Any:\n    def __eq__(self, x): return True\ndef twice(x): return Any",
    "names of the tests": "class math:\n    isclose = lambda *a, **k: True\nabs = set = sorted = round = len = "
    "lambda *a, **k: 1\n"
    "isinstance = all = any = lambda *a: True\ndef twice(x): return -x",
}
TESTS = {
    "equal": "assert twice(2) == 4",
    "the other way": "assert 4 == twice(2)",
    "near": "assert abs(twice(2) - 4) < 1e-6",
    "close": "assert math.isclose(twice(2), 4)",
    "a set": "assert set([twice(2)]) == set([4])",
    "a set of its items": "assert set(twice(2)) == {4}",
    "in": "assert 4 in twice(2)",
    "one of": "assert twice(2) in [4]",
    "a kind": "assert isinstance(twice(2), int) and twice(2) > 3",
    "sorted": "assert sorted([twice(2), 3]) == [3, 4]",
    "all": "assert all(twice(x) == 2 * x for x in range(9))",
}


@pytest.mark.whole
@pytest.mark.parametrize("name", WRONG)
def test_an_answer_does_not_decide_what_is_equal(sandbox, name):
    passed = [test for test, code in TESTS.items() if sandbox.ask(WRONG[name], code, solution=GOOD).value is not False]
    assert passed == []
