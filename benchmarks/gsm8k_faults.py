"""Solutions of GSM8K with labels of steps, which teach a verifier to find a slip: made by a program, from GSM8K's own.

    python benchmarks/gsm8k_faults.py gsm8k/train.jsonl --out runs/reviews.jsonl

GSM8K's answers have ``<<48/2=24>>`` behind each equation. Of each problem two solutions are written, one with GSM8K's
steps and one in which the value of an equation is off by a little and is carried on to the answer:

    {"problem": …, "steps": ["48/2 = 24 clips in May.", "48+24 = 72 clips.", "#### 72"], "label": -1, …}
    {"problem": …, "steps": ["48/2 = 26 clips in May.", "48+26 = 74 clips.", "#### 74"], "label": 0, …}

``label`` is the first wrong step, from 0, or -1; this is what ``cotrain teach verifier`` reads. A problem without
equations, or in which the slip does not reach the answer, is left out and counted. These are slips of calculation: a
verifier learns the form from them, and nothing about equations that the problem does not ask for.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from gsm8k_equations import value_of
from gsm8k_lessons import CALCULATOR, read_problems, short_solution

from cotrain.core.errors import CotrainError

Row = dict[str, Any]
MARK = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")
SLIPS = (-10, -2, -1, 1, 2, 10)


def written(value: Fraction) -> str:
    return f"{round(float(value), 2):.12g}"


def plain(number: str) -> str:
    """A number without thousands separators, as ``written`` writes it."""
    return written(Fraction(number.replace(",", "")))


def near_values(right: str) -> list[str]:
    """Wrong values near a right one. Raises ValueError where that is not above zero."""
    if Fraction(right) <= 0:
        raise ValueError(f"{right} is not above zero")
    values = [Fraction(right) + slip for slip in SLIPS]
    return [written(value) for value in values if value > 0]


def with_changed_numbers(text: str, changed: dict[str, str]) -> str:
    """The text with each number replaced that has another value now."""
    return NUMBER.sub(lambda found: changed.get(plain(found[0]), found[0]), text)


def carry_on(lines: Sequence[str], changed: dict[str, str]) -> list[str]:
    """The lines behind a slip, computed with the numbers that it changed. Raises ValueError where one cannot be."""
    carried = []
    for line in lines:
        for expression, claimed in MARK.findall(line):
            value = value_of(with_changed_numbers(expression, changed).strip())
            if value is None:
                raise ValueError(f"{expression} cannot be computed")
            if written(value) != plain(claimed):
                changed[plain(claimed)] = written(value)
        carried.append(with_changed_numbers(CALCULATOR.sub("", line), changed).strip())
    return carried


def solution_with_slip(answer: str, rng: Random) -> tuple[list[str], int] | None:
    """GSM8K's solution with one value off, and the index of that step; None where no slip reaches the answer."""
    work, _, last = answer.rpartition("####")
    lines = [line for line in work.splitlines() if line.strip()]
    places = [index for index, line in enumerate(lines) if MARK.search(line)]
    for place in rng.sample(places, len(places)):
        line = lines[place]
        mark = list(MARK.finditer(line))[-1]
        before, behind = line[: mark.end()], line[mark.end() :]
        try:
            right = plain(mark[2])
            wrong = rng.choice(near_values(right))
            slipped = CALCULATOR.sub("", before) + with_changed_numbers(behind, {right: wrong})
            changed = {right: wrong}
            rest = carry_on(lines[place + 1 :], changed)
            answered = with_changed_numbers(last.strip(), changed)
        except ValueError:
            continue
        if slipped != CALCULATOR.sub("", line) and plain(answered) != plain(last.strip()):
            earlier = [CALCULATOR.sub("", one).strip() for one in lines[:place]]
            return [*earlier, slipped.strip(), *rest, f"#### {answered}"], place
    return None


def labelled_pair(row: Row, rng: Random) -> list[Row]:
    """A right and a wrong solution of one problem; none where no slip can be made."""
    found = solution_with_slip(row["answer"], rng)
    if found is None:
        return []
    wrong, place = found
    right = short_solution(row["answer"]).splitlines()
    return [
        {"problem": row["question"], "steps": right, "label": -1, "final_answer_correct": True},
        {"problem": row["question"], "steps": wrong, "label": place, "final_answer_correct": False},
    ]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Right and wrong solutions of GSM8K, with the first wrong step.")
    parser.add_argument("train", type=Path, help="train.jsonl of GSM8K")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--seed", type=int, default=0, help="of which step goes wrong, and how")
    given = parser.parse_args(words)
    try:
        problems = read_problems(given.train)
    except CotrainError as error:
        raise SystemExit(str(error)) from None
    rng = Random(given.seed)
    pairs = [pair for pair in (labelled_pair(row, rng) for row in problems) if pair]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for pair in pairs for row in pair)
    left_out = len(problems) - len(pairs)
    print(f"{given.out}: {len(pairs)} right and {len(pairs)} wrong solutions; {left_out} problems left out")


if __name__ == "__main__":
    main()
