"""A tiny model, tiny adapters and sums in GSM8K's format, with which ``gsm8k_card.py`` is rehearsed.

    python benchmarks/gsm8k_tiny.py DIR

The package's base is taught on one processor core within a minute or two to answer and to review in the words of
``gsm8k.toml``, so that its texts can be read as a real model's are; most of its answers are wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from gsm8k_lessons import ASK, conversation, short_solution
from gsm8k_reviews import lesson_of

HERE = Path(__file__).resolve().parent
NAMES = ("Ann", "Ben", "Cid", "Dan", "Eve", "Flo")
CONTEXT = 4096  # tokens
FEW = 16  # conversations that an adapter is taught
THINGS = ("apples", "pens", "cups", "hats")


def sum_problem(draw: Random) -> dict[str, Any]:
    """A row in GSM8K's format."""
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    a, b = draw.randrange(2, 40), draw.randrange(2, 40)
    question = f"{name} has {a} {thing} and gets {b}. How many?"
    return {"question": question, "answer": f"{name} has {a}+{b} = <<{a}+{b}={a + b}>>{a + b}.\n#### {a + b}"}


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def wrong_solution(row: dict[str, Any], draw: Random) -> str:
    text = short_solution(row["answer"])
    answer = text.rpartition("#### ")[2]
    return text.replace(f"= {answer}", f"= {int(answer) + draw.choice((1, 2))}").rpartition("#### ")[0] + "#### 1"


def widen_context(model: Path) -> None:
    """Reviews may be as long as a real model's."""
    file = model / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["max_position_embeddings"] = CONTEXT
    file.write_text(json.dumps(config, indent=1), encoding="utf-8")


def make_tiny(folder: Path) -> None:
    """Problems, a base, and two adapters, in the places where ``gsm8k_card.py pack`` looks."""
    draw = Random("tiny")
    rows = list({row["question"]: row for row in (sum_problem(draw) for _ in range(400))}.values())
    write_rows(folder / "problems" / "train.jsonl", rows[:-40])
    write_rows(folder / "problems" / "test.jsonl", rows[-40:])
    lessons = [conversation(ASK.replace("{problem}", r["question"]), short_solution(r["answer"])) for r in rows[:-40]]
    made = [lesson_of(r["question"], short_solution(r["answer"]), True, r["answer"]) for r in rows[:-40:2]]
    made += [lesson_of(r["question"], wrong_solution(r, draw), False, r["answer"]) for r in rows[1:-40:2]]
    reviews = [lesson for lesson in made if lesson is not None]
    write_rows(folder / "lessons.jsonl", lessons[:FEW])
    write_rows(folder / "reviews.jsonl", reviews[:FEW])
    write_rows(folder / "both.jsonl", [*lessons, *reviews])
    cotrain = [sys.executable, "-m", "cotrain", "sft", "--model", "shipped", "--data", str(folder / "both.jsonl")]
    sizes = ["--tokens", "900000", "--batch-tokens", "8192", "--length", "768", "--optimizer", "muon", "--lr", "0.01"]
    subprocess.run([*cotrain, *sizes, "--out", str(folder / "base")], check=True)
    widen_context(folder / "base")
    teach = [sys.executable, str(HERE / "teach_adapter.py")]
    few = ["--rank", "4", "--batch", "8", "--length", "768"]
    for start, data, out in (("base", "lessons", "first"), ("first", "reviews", "second")):
        places = [str(folder / start), "--data", str(folder / f"{data}.jsonl"), "--out", str(folder / out)]
        subprocess.run([*teach, *places, *few], check=True)


if __name__ == "__main__":
    make_tiny(Path(sys.argv[1]))
