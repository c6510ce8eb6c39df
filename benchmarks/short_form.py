"""The data of docs/real-model-runs.md: problems of ASDiv with one equation each, for a short form and for RL.

    python benchmarks/short_form.py ASDiv.xml --out runs/asdiv

ASDiv (Miao et al. 2020, arXiv 2106.15772; CC BY-NC 4.0) gives each problem a formula. Kept are those whose formula is
one expression of numbers that comes to the answer, "47+43=90". Written to --out:

    sft.jsonl    900 problems, answered "47 + 43 = 90. The answer is 90."
    v.jsonl      the first 120 of them, for a verifier's own reviews
    rl.jsonl     all the others, with the answer alone
    ask.txt      the prompt

The order is that of a hash of the question, so that it depends on no version of Python. ``.jsonl`` with ``question``,
``formula`` and ``answer`` is read too.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from fractions import Fraction
from hashlib import sha256
from operator import add, mul, sub, truediv
from pathlib import Path

from cotrain.core.errors import CotrainError, DataError

LESSONS, REVIEWED = 900, 120
ASK = "Solve the problem with one equation, then say the answer.\n{problem}\n"
FORMULA = re.compile(r"([\d\s+*/().-]{3,80})=\s*(-?\d+(?:\.\d+)?)")
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:\s*\(.*\))?")  # with its unit
MARKS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
}


def problems(path: Path) -> Iterator[tuple[str, str, str]]:
    """Question, formula and answer of each problem. Raises DataError for a file that has none."""
    try:
        if path.suffix == ".xml":
            for one in ElementTree.parse(path).iter("Problem"):
                body, question = (" ".join((one.findtext(tag) or "").split()) for tag in ("Body", "Question"))
                yield f"{body} {question}".strip(), one.findtext("Formula") or "", one.findtext("Answer") or ""
        else:
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                yield str(row["question"]), str(row["formula"]), str(row["answer"])
    except (OSError, ValueError, KeyError, TypeError, ElementTree.ParseError) as error:
        raise DataError(f"{path}: {type(error).__name__}: {error}; expected ASDiv.xml") from error


def worked(formula: str, answer: str) -> tuple[str, str] | None:
    """The expression as it is taught, "47 + 43", and what it comes to; None where formula or answer say otherwise, or
    it is no expression."""
    found, said = FORMULA.fullmatch(formula.strip()), NUMBER.fullmatch(answer.strip())
    if found is None or said is None:
        return None
    try:
        value = _value(ast.parse(found[1].strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
    spaced = re.sub(r"\s*([+*/-])\s*", r" \1 ", found[1].strip())
    return (spaced, f"{float(value):.15g}") if value == Fraction(found[2]) == Fraction(said[1]) else None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in MARKS:
        return MARKS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("no arithmetic")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asdiv", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    try:
        found = {text: one for text, formula, answer in problems(given.asdiv) if (one := worked(formula, answer))}
    except CotrainError as error:
        parser.error(str(error))
    if len(found) <= LESSONS:
        parser.error(
            f"{given.asdiv}: {len(found)} problems of one equation, expected more than {LESSONS}: all of ASDiv"
        )
    order = sorted(found, key=lambda question: sha256(question.encode()).hexdigest())
    lessons = [
        {"question": one, "answer": f"{found[one][0]} = {found[one][1]}. The answer is {found[one][1]}."}
        for one in order[:LESSONS]
    ]
    rest = [{"question": one, "answer": found[one][1]} for one in order[LESSONS:]]
    given.out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("sft", lessons), ("v", lessons[:REVIEWED]), ("rl", rest)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (given.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(f"{given.out / name}.jsonl: {len(rows)} problems")
    (given.out / "ask.txt").write_text(ASK, encoding="utf-8")


if __name__ == "__main__":
    main()
