"""Which program of an answer is run."""

import time

import pytest

from cotrain.core.types import Grade
from cotrain.data.program_tests import paper_of
from cotrain.grading.fences import defines_name, is_python, program_of
from cotrain.grading.isolation import JUDGING, MEMORY_BYTES, working_sandbox
from cotrain.grading.pool import GradingPool

F, ADD = "```", "def add(a, b):\n    return a + b"
INDENTED = ADD.replace("\n", "\n   ")
DOCUMENTED = f"def add(a, b):\n    '''Adds.\n\n    {F}python\n    add(1, 2)\n    {F}\n    '''\n    return a + b"
AT_THE_EDGE = f'"""How to use it:\n\n{F}\nadd(1, 2)\n{F}\n"""\n{ADD}'


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (f"{F}python\n{DOCUMENTED}\n{F}", DOCUMENTED),
        (f"{F}python\n{AT_THE_EDGE}\n{F}\nIt adds.", AT_THE_EDGE),
        (f"{F}python\ns = '''\n{F}\n'''\n{ADD}\n{F}", f"s = '''\n{F}\n'''\n{ADD}"),
        (f"1. So:\n\n   {F}python\n   {INDENTED}\n   {F}", ADD),
        (f"- {F}python\n  {ADD.replace(chr(10), chr(10) + '  ')}\n  {F}", ADD),
        (f"      {F}python\n      {ADD.replace(chr(10), chr(10) + '      ')}\n      {F}", ADD),
        (f"{F}python\n    {ADD.replace(chr(10), chr(10) + '    ')}\n{F}", ADD),
        (f"````\n{F}python\n{ADD}\n{F}\n````", ADD),
        (f"````markdown\nHere:\n{F}python\n{ADD}\n{F}\nDone.\n````", ADD),
        (f"`````python\n{DOCUMENTED}\n`````", DOCUMENTED),
        (f"~~~python\n{ADD}\n~~~", ADD),
        (f"~~~~\n{ADD}\ns = '''\n~~~\n{F}'''\n~~~~~", f"{ADD}\ns = '''\n~~~\n{F}'''"),
        (f'{F}python title="a.py"\n{ADD}\n{F}', ADD),
        (f"Here it is: {F}python\n{ADD}\n{F}", ADD),
        (f"Use {F} to fence code.\n{F}\n{ADD}\n{F}", ADD),
        (f"<answer>{ADD}\n{F}</answer>", ADD),
        (f"<answer>\n{ADD}\n{F}\n</answer>", ADD),
        (f"{ADD}\n{F}", ADD),
        (f"{ADD}\n{F}\nThis adds two numbers.", ADD),
        (f"{F}python\n# <answer> the sum </answer>\n{ADD}\n{F}", f"# <answer> the sum </answer>\n{ADD}"),
        (f"<answer>{F}python\n{ADD}\n# </answer>\n{F}</answer>", f"{ADD}\n# </answer>"),
        (f"<answer>{ADD}\nx = '<answer>'</answer>", f"{ADD}\nx = '<answer>'"),
        (
            f"{F}python\nadd = lambda a, b: a + b\n{F}\nUse:\n{F}python\nprint(add(1, 2))\n{F}",
            "add = lambda a, b: a + b",
        ),
        (f"{F}\ndef add (a, b): return a + b\n{F}\n{F}\nadd(1, 2)\n{F}", "def add (a, b): return a + b"),
        (f"{F}\nadd: object = max\n{F}\n{F}\nadd(1, 2)\n{F}", "add: object = max"),
        (f"{F}\n{ADD}\n{F}\nShorter:\n{F}\ndef add(a, b): return a +\n{F}", ADD),
        (f"{F}\nassert add == 3\n{F}\n{F}\nprint(1)\n{F}", "print(1)"),
        (f"{F}\n    return a + b\n{F}", "    return a + b"),
        (
            f"{F}python\r\n{ADD}\r\n{F}".replace("\n", "\r\n").replace("\r\r", "\r"),
            f"{ADD}\n".replace("\n", "\r\n")[:-1],
        ),
        (f"{F}python\n{ADD}{F}", ADD),
        (f"{F}python\n{ADD}{F}\n", ADD),
        (f"~~~\n\ufeff{ADD}\n~~~", ADD),
        (f"<think>{F}python\n{ADD}\n{F}\nNo,", None),
        (f"<think>\n{F}python\n{ADD}\n{F}\n</think>I give up.", None),
        ("def add(a, b) is hard.", None),
        (f"It is short.\n{F}", None),
        (f"{F}python\n{ADD}\n{F} That is it.", ADD),
        (f"{F}python\n{ADD}\n{F} So:\n{F}python\nprint(add(1, 2))\n{F}", ADD),
        (f"\\boxed{{{F}python\n{ADD}\n{F}}}", ADD),
        (f"{F}\nfrom operator import add\n{F}\n{F}\nprint(add(1, 2))\n{F}", "from operator import add"),
        (f"{F}\nadd, sub = max, min\n{F}\n{F}\nprint(add(1, 2))\n{F}", "add, sub = max, min"),
    ],
)
def test_the_program_that_is_meant(text, program):
    assert program_of(text, "add") == program


def test_what_is_python_and_what_it_defines():
    assert is_python(ADD) and is_python("    return 1") and not is_python("def f(:") and not is_python("\0")
    assert not is_python("(" * 5000) and not is_python("-" * 90_000 + "1 2")
    for program in (
        ADD,
        "async def add(): ...",
        "class add: ...",
        "add = max",
        "add: int = 3",
        "if 1:\n    def add(): ...",
        "add, sub = max, min",
        "plus = add = max",
        "from operator import add",
        "from operator import (mul, add)",
        "from operator import __add__ as add  # a sum",
    ):
        assert defines_name(program, "add")
    for program in (
        "add == 3",
        "adder = 1",
        "def adds(): ...",
        "x.add = 3",
        "print(add)",
        "x = add",
        "import add",
        "from add import x",
    ):
        assert not defines_name(program, "add")


@pytest.mark.whole
@pytest.mark.parametrize(
    "piece",
    [
        "```\n",
        "~~~ ",
        "a```b",
        " \t",
        "```py\nx\n",
        "`" * 9 + "\n",
        "<answer>",
        "- ```\n",
        "x ```\n",
        "``` a b\n",
        "``` a b\n~~~\n",
        "add, ",
    ],
)
def test_degenerate_answers_are_read_in_a_moment(piece):
    start = time.process_time()
    program_of(piece * (100_000 // len(piece)) + "``` words behind it\n", "add")
    assert time.process_time() - start < 10.0


@pytest.mark.whole
@pytest.mark.parametrize(
    ("gives", "equal", "right"),
    [
        ("d.keys()", "{'a'}", True),
        ("d.keys()", "{'b'}", False),
        ("d.keys()", "['a']", False),
        ("d.items()", "{('a', 1)}", True),
        ("d.values()", "[1]", False),
        ("__import__('collections').Counter('a').keys()", "{'a'}", True),
        ("__import__('collections').OrderedDict(a=1).items()", "{('a', 1)}", True),
    ],
)
def test_a_view_of_a_dictionary_is_what_python_says(gives, equal, right):
    paper = paper_of(before="", tests=f"assert f({{'a': 1}}) == {equal}", solution="def f(d): ...")
    with GradingPool(1, judging=(JUDGING,), memory=MEMORY_BYTES, sandbox=working_sandbox()) as pool:
        grade = pool.grade_in_process(paper, f"def f(d): return {gives}")
        assert grade == (Grade(value=True) if right else Grade(value=False, reason="test failed"))
