"""The problems and lessons of docs/gsm8k.md: GSM8K for a start that answers shortly.

    python benchmarks/gsm8k_lessons.py gsm8k/ --out runs/gsm8k

GSM8K (Cobbe et al. 2021, arXiv 2110.14168; MIT): a folder with ``train.jsonl`` and ``test.jsonl``, whose answers are
worked texts with ``<<48/2=24>>`` behind each equation and ``#### 72`` at the end. Written to --out:

    lessons.jsonl         128 short training problems with their own solutions, without ``<<…>>``: conversations
    reviewed/train.jsonl  1,024 other training problems, on which a verifier is taught
    problems/train.jsonl  all others, for RL
    problems/test.jsonl   those of the test set
    ask.txt               how the solver is asked

Problems of training and of the test have at most 3 equations, lessons apart: the easier two thirds, of which a small
model solves some.
The order is that of a hash of the question, so it depends on no version of Python. As lessons are the first short ones,
the reviewed problems are taken from the end: among the first all short ones are gone.
"""

from __future__ import annotations

import argparse
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.input_files import parse_json

Row = dict[str, Any]
LESSONS, REVIEWED = 128, 1024
SHORT = 300  # characters of a lesson's question, and of its solution
EQUATIONS = 3  # at most, of the solution of a problem that is reviewed or for RL
CALCULATOR = re.compile(r"<<[^<>]*>>")
ASK = (
    'Solve the problem in short steps, one line each, with one equation a line. End with a line "#### " and the '
    "answer.\n\n{problem}"
)


def read_problems(file: Path) -> list[Row]:
    """Rows in the order of a hash of their questions. Raises DataError for a file that is not GSM8K."""
    try:
        rows = [parse_json(line) for line in file.read_text(encoding="utf-8").splitlines()]
        bad = [row for row in rows if "####" not in row["answer"] or not row["question"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: {type(error).__name__}: {error}; expected rows of GSM8K") from error
    if bad:
        raise DataError(f"{file}: an answer without ####: {bad[0]['answer']!r:.60}; expected rows of GSM8K")
    return sorted(rows, key=lambda row: sha256(row["question"].encode()).hexdigest())


def short_solution(answer: str) -> str:
    """A worked answer without the calculator's marks, its last line "#### 1200"."""
    work, _, last = answer.rpartition("####")
    lines = [line.strip() for line in CALCULATOR.sub("", work).splitlines() if line.strip()]
    return "\n".join([*lines, "#### " + last.strip().replace(",", "")])


def is_short(row: Row) -> bool:
    return len(row["question"]) < SHORT and len(short_solution(row["answer"])) < SHORT


def is_easy(row: Row) -> bool:
    return len(CALCULATOR.findall(row["answer"])) <= EQUATIONS


def conversation(asked: str, said: str) -> Row:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}


def split_problems(train: list[Row], test: list[Row]) -> dict[str, list[Row]]:
    """The rows of each file that is written. Raises DataError where there are too few."""
    taught = [row for row in train if is_short(row)][:LESSONS]
    if len(taught) < LESSONS or len(train) < 2 * (LESSONS + REVIEWED):
        raise DataError(f"{len(train)} training problems, {len(taught)} of them short; expected all of GSM8K")
    questions = {row["question"] for row in taught}
    others = [row for row in train if row["question"] not in questions and is_easy(row)]
    lessons = [conversation(ASK.replace("{problem}", row["question"]), short_solution(row["answer"])) for row in taught]
    return {
        "lessons": lessons,
        "reviewed/train": others[-REVIEWED:],
        "problems/train": others[:-REVIEWED],
        "problems/test": [row for row in test if is_easy(row)],
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gsm8k", type=Path, help="folder with train.jsonl and test.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    try:
        files = split_problems(read_problems(given.gsm8k / "train.jsonl"), read_problems(given.gsm8k / "test.jsonl"))
    except CotrainError as error:
        parser.error(str(error))
    for name, rows in files.items():
        file = given.out / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{file}: {len(rows)} rows")
    (given.out / "ask.txt").write_text(ASK, encoding="utf-8")


if __name__ == "__main__":
    main()
