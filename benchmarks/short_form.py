"""The data of docs/a-real-model.md: problems of ASDiv with one equation each, for a short form and for RL.

    python benchmarks/short_form.py ASDiv.xml --out runs/asdiv
    python benchmarks/short_form.py ASDiv.xml --mawps mawps.jsonl --out runs/real  # for labels-real-near.toml

ASDiv (Miao et al. 2020, arXiv 2106.15772; CC BY-NC 4.0) gives each problem a formula. Kept are those whose formula is
one expression of numbers that comes to the answer, "47+43=90". Written to --out:

    sft.jsonl    900 problems, answered "47 + 43 = 90. The answer is 90."
    v.jsonl      the first 120 of them, for a verifier's own reviews
    rl.jsonl     all the others, with the answer alone
    ask.txt      the prompt

With --mawps (MAWPS, Koncel-Kedziorski et al. 2016: rows of ``question``, ``answer`` and ``type``) only problems of one
operation are taken from ASDiv, and MAWPS' problems of one equation join them. Written are:

    sft.jsonl       64 problems of ASDiv, answered as above
    reviews.jsonl   four reviews of each: of two right solutions, of one with another operation or the numbers turned
                    round, and of one that slips in the sum. A review works the sum out, then compares. Messages
    problems/       the others of ASDiv and those of MAWPS with two whole numbers and an answer of at most 100, with the
                    answer alone: test.jsonl has 323, train.jsonl the rest
    ask.txt and verifier.txt, the prompts

The order is that of a hash of the question, so that it depends on no version of Python. ``.jsonl`` with ``question``,
``formula`` and ``answer`` is read too.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from hashlib import sha256
from operator import add, mul, sub, truediv
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.input_files import parse_json

Row = dict[str, Any]
LESSONS, REVIEWED, FEW, HELD_OUT = 900, 120, 64, 323
MAWPS = ("addsub", "singleop", "singleeq")  # types of one equation, most of them of one operation
VERIFY = """Work the sum of the problem out, then say whether the solution is right.
Problem: {problem}
Solution: {solution}"""
ASK = "Solve the problem with one equation, then say the answer.\n{problem}\n"
FORMULA = re.compile(r"([\d\s+*/().-]{3,80})=\s*(-?\d+(?:\.\d+)?)")
SUM = re.compile(r"(\S+) ([+*/-]) (\S+) = (\S+)")
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
                row = parse_json(line)
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


def reviews(question: str, solved: str, draw: random.Random) -> list[Row]:
    """Messages of four reviews of a problem whose equation is ``solved``, "47 + 43 = 90"; of fewer where no wrong
    solution can be made."""
    found = SUM.fullmatch(solved)
    if found is None:
        return []
    first, mark, second, value = found.groups()
    right, turned = (first, mark, second, value), (second, mark, first, value)
    made = [(right, True), (turned if mark in "+*" else right, True)]
    for wrong in (_mistaken(first, mark, second, value), _slipped(first, mark, second, value)):
        made += [(draw.choice(wrong), False)] if wrong else []
    rows = []
    for one, is_right in made:
        prompt = VERIFY.format(problem=question, solution=shown_solution(" ".join(one[:3]), one[3]))
        review = f"{solved}. The solution says {one[3]}. Verdict: {'correct' if is_right else 'incorrect'}"
        rows.append({"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": review}]})
    return rows


def _mistaken(first: str, mark: str, second: str, value: str) -> list[tuple[str, str, str, str]]:
    """Another operation on the same numbers, or the same with the numbers turned round."""
    found = []
    for a, sign, b in [(first, sign, second) for sign in "+-*/"] + [(second, sign, first) for sign in "-/"]:
        try:
            other = _value(ast.parse(f"{a} {sign} {b}", mode="eval").body)
        except ZeroDivisionError:
            continue
        if other >= 0 and other != Fraction(value) and other * 100 == int(other * 100):
            found.append((a, sign, b, f"{float(other):.15g}"))
    return found


def _slipped(first: str, mark: str, second: str, value: str) -> list[tuple[str, str, str, str]]:
    """The right operation, and a result that is wrong by 1, 2, 10 or 100."""
    results = [Fraction(value) + slip for slip in (1, -1, 2, -2, 10, -10, 100, -100) if abs(slip) <= _most(value)]
    return [(first, mark, second, f"{float(result):.15g}") for result in results if result >= 0]


def _most(value: str) -> Fraction:
    return max(Fraction(2), Fraction(value) / 2)


def lesson(expression: str, value: str) -> str:
    return f"{expression} = {value}. The answer is {value}."


def shown_solution(expression: str, value: str) -> str:
    """As a run shows it to a verifier: two sentences, each a step, and the answer."""
    return f"<step>{expression} = {value}.</step><step>The answer is {value}.</step><answer>{value}</answer>"


def letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def few_labels(found: dict[str, tuple[str, str]], path: Path) -> dict[str, list[Row]]:
    """The rows of each file for ``--mawps``. Raises DataError for a file that is not MAWPS."""
    single = [one for one in by_hash(found) if len(re.findall(r" [+*/-] ", found[one][0])) == 1]
    if len(single) <= FEW:
        raise DataError(f"{len(single)} problems of one operation, expected more than {FEW}: all of ASDiv")
    seen, target = {letters(one) for one in found}, [{"question": one, "answer": found[one][1]} for one in single[FEW:]]
    try:
        for row in map(parse_json, path.read_text(encoding="utf-8").splitlines()):
            question = " ".join(row["question"].split())
            number = NUMBER.fullmatch(row["answer"])
            if row["type"] in MAWPS and number and letters(question) not in seen:
                seen.add(letters(question))
                target.append({"question": question, "answer": number[1]})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: {type(error).__name__}: {error}; expected rows of question, answer, type") from error
    draw, lessons, reviewed = random.Random(0), [], []
    for one in single[:FEW]:
        lessons.append({"question": one, "answer": lesson(*found[one])})
        reviewed += reviews(one, " = ".join(found[one]), draw)
    draw.shuffle(reviewed)
    small = {row["question"]: row for row in target if is_small(row["question"], row["answer"])}
    rows = [small[question] for question in by_hash(small)]
    return {"sft": lessons, "reviews": reviewed, "problems/test": rows[:HELD_OUT], "problems/train": rows[HELD_OUT:]}


def is_small(question: str, answer: str) -> bool:
    """The question names two numbers in figures, and these and the answer are whole and at most 100."""
    numbers = [*re.findall(r"\d[\d,]*\.?\d*", question), answer]
    values = [Fraction(one.replace(",", "").rstrip(".")) for one in numbers]
    return len(values) == 3 and all(value.denominator == 1 and value <= 100 for value in values)


def many_lessons(found: dict[str, tuple[str, str]]) -> dict[str, list[Row]]:
    """The rows of each file without ``--mawps``. Raises DataError where there are too few."""
    order = by_hash(found)
    if len(order) <= LESSONS:
        raise DataError(f"{len(order)} problems of one equation, expected more than {LESSONS}: all of ASDiv")
    lessons = [{"question": one, "answer": lesson(*found[one])} for one in order[:LESSONS]]
    rest = [{"question": one, "answer": found[one][1]} for one in order[LESSONS:]]
    return {"sft": lessons, "v": lessons[:REVIEWED], "rl": rest}


def by_hash(questions: Iterable[str]) -> list[str]:
    return sorted(questions, key=lambda question: sha256(question.encode()).hexdigest())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asdiv", type=Path)
    parser.add_argument("--mawps", type=Path, help="for the study of a few labels")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    try:
        found = {text: one for text, formula, answer in problems(given.asdiv) if (one := worked(formula, answer))}
    except CotrainError as error:
        parser.error(str(error))
    try:
        files = few_labels(found, given.mawps) if given.mawps else many_lessons(found)
    except CotrainError as error:
        parser.error(str(error))
    for name, rows in files.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (given.out / name).parent.mkdir(parents=True, exist_ok=True)
        (given.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(f"{given.out / name}.jsonl: {len(rows)} {'reviews' if name == 'reviews' else 'problems'}")
    (given.out / "ask.txt").write_text(ASK, encoding="utf-8")
    if given.mawps:
        (given.out / "verifier.txt").write_text(VERIFY, encoding="utf-8")


if __name__ == "__main__":
    main()
