"""A checker of steps for ``cotrain run alphaproof --checker "python examples/own/assertion_checker.py"``.

A step is right where every assertion in it holds: ``12 * 3 = 36``, ``a = 4 + 1 = 5``. A chain is complete and right
where all its steps are and its answer is the number that the last one ends on. Lines of JSON go in and out.
"""

import ast
import json
import operator
import re
import sys
from fractions import Fraction

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
TERM = re.compile(r"[\d\s.+*/()-]*\d[\d\s.+*/()-]*")
LONGEST = 200  # characters of a step


def value_of(node: ast.AST) -> Fraction:
    """The value of an expression of numbers and + - * /. Raises ValueError for anything else."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value_of(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    raise ValueError("not arithmetic")


def fault_of(step: str) -> str:
    """Why a step is wrong, "" where it is right."""
    sides = [side.strip() for side in step.split("=")]
    terms = [side for side in sides if TERM.fullmatch(side)]
    if len(step) > LONGEST or len(terms) < 2:
        return "no assertion"
    try:
        values = {value_of(ast.parse(term, mode="eval").body) for term in terms}
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return "not arithmetic"
    return "" if len(values) == 1 else "does not hold"


def check_chain(question: dict) -> dict:
    """The answer to one question."""
    steps = question["steps"]
    answer = question["answer"]
    reasons = [fault_of(step) for step in steps]

    last_number = None
    if steps:
        _, _, right_side = steps[-1].rpartition("=")
        last_number = right_side.strip()
    is_right = not any(reasons)
    is_complete = answer is not None and answer.strip() == last_number
    return {
        "id": question["id"],
        "ok": [not reason for reason in reasons],
        "reasons": reasons,
        "done": is_right and is_complete,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(check_chain(json.loads(line))), flush=True)
