r"""Malformed input by the hundred thousand: ``python benchmarks/fuzz.py [--texts 1000000] [--files 20000] [--seed 0]``.

**Texts** of verdicts and solutions, each read by one of the readers in turn: good ones changed at random places, and
words of the grammars in any order. None may raise; printed are the share that was read, the slowest, and the time for a
megabyte of each kind over that for half of it (2 is linear).

**Files** of JSON lines with ten rows, changed byte by byte, by row or by field. The strict reader either reads all rows
or says which row it is; the lenient one reads the others, and what it read and what it set aside add up to the lines.
The linter, which is given every fortieth file (it starts processes for golds that need algebra), finds a fault just
where the strict reader stops, and counts every row as good or malformed.

The line printed last is JSON. Left out: parquet, and files of other schemas than questions with answers.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cotrain.analysis.check_data import check_file
from cotrain.core.errors import DataError
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.read_rows import read_rows, row_reader
from cotrain.formats.answers import final_answer
from cotrain.formats.preferences import read_gram, read_grm, read_rmr1, read_thinkrm
from cotrain.formats.role_replies import meta_verdict, search_query, self_check, step_verdicts
from cotrain.formats.solutions import tagged_solution
from cotrain.formats.verdicts import read_genprm, read_genrm, read_score

SOLUTION = "<step>2 + 3 = 5</step><step>5 - 1 = 4</step><answer>4</answer>"
REVIEW = "<step>2 + 3 is 5 CORRECT</step><step>5 - 1 is 4 INCORRECT</step><final>INCORRECT</final>"
READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "solution": (tagged_solution, SOLUTION),
    "review": (lambda text: step_verdicts(text, 2), REVIEW),
    "answer": (final_answer, "so it is \\boxed{\\frac{1}{2}}"),
    "self check": (self_check, SOLUTION + REVIEW),
    "meta": (meta_verdict, "<final>CORRECT</final>"),
    "search": (search_query, "<search>apples</search>"),
    "genrm": (read_genrm, "so <verdict>Yes</verdict>"),
    "genprm": (lambda text: read_genprm(text, 1), "<analyze>a</analyze><output>\\boxed{Yes}</output>"),
    "score": (read_score, "so <score>0.5</score>"),
    "rm-r1": (read_rmr1, "<rubric>r</rubric><eval>e</eval><answer>[[A]]</answer>"),
    "think-rm": (read_thinkrm, "<think>t</think><answer>A</answer>"),
    "grm": (lambda text: read_grm(text, 2), "<principles>p</principles><critique>c</critique><scores>[7, 3]</scores>"),
    "gram": (read_gram, "A"),
}
WORDS = sorted({piece for _, good in READERS.values() for piece in re.findall(r"</?\w+>|\w+|[^\w\s]", good)})
WORDS += [
    "\\boxed{",
    "{",
    "}",
    " ",
    "\n",
    "\t",
    "not",
    "n't",
    "\x00",
    "\ud800",
    "é",
    "\u200b",
    "ＣＯＲＲＥＣＴ",
    "[[",
    "]]",
    "####",
    "<",
    ">",
    "</",
]


def text_of(rng: random.Random, good: str) -> str:
    if rng.random() < 0.3:
        return "".join(rng.choices(WORDS, k=rng.randrange(40)))
    text = good
    for _ in range(rng.randrange(1, 4)):
        a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        text = rng.choice(
            (
                text[:a] + rng.choice(WORDS) + text[a:],  # put in
                text[:a] + text[b:],  # taken out
                text[:b] + text[a:b] + text[b:],  # said twice
                text[:a] + rng.choice(WORDS) + text[b:],  # another
                text[:a] + text[a:b].swapcase() + text[b:],
            )
        )
    return text


def texts(count: int, rng: random.Random) -> dict[str, Any]:
    raised, read, slowest = 0, 0, 0.0
    named = list(READERS.items())
    for i in range(count):
        name, (reader, good) = named[i % len(named)]
        text = text_of(rng, good)
        start = time.perf_counter()
        try:
            found = reader(text)
        except Exception as error:  # noqa: BLE001
            raised += 1
            print(f"{name} raised {error!r} on {text!r}", flush=True)
            continue
        slowest = max(slowest, time.perf_counter() - start)
        read += found is not None and getattr(found, "ok", True)
    return {
        "texts": count,
        "raised": raised,
        "read": read,
        "slowest_ms": round(1e3 * slowest, 2),
        "doubling": doubling(),
    }


def doubling() -> dict[str, float]:
    """Of each reader: the longest time for a megabyte of one of its words over that for half of it, where it takes a
    millisecond."""
    worst: dict[str, float] = {}
    for name, (reader, good) in READERS.items():
        for word in (*re.findall(r"</?\w+>|\\boxed\{|\w+", good), "<", "{", " ", good):
            spent = [_least(reader, word * (size // len(word))) for size in (1 << 19, 1 << 20)]
            if spent[1] > 1e-3:
                worst[name] = round(max(worst.get(name, 0.0), spent[1] / spent[0]), 2)
    return worst


def _least(reader: Callable[[str], Any], text: str) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        reader(text)
        times.append(time.perf_counter() - start)
    return min(times)


ROWS = [json.dumps({"question": f"What is {n} and {n + 1}?", "answer": str(2 * n + 1)}).encode() for n in range(10)]
PIECES = (
    b"\x00",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\r",
    b"\n",
    b"{",
    b"}",
    b"[" * 3000,
    b'"',
    b"\\",
    b"\\u",
    b",",
)
PIECES += (b"NaN", b"1e999", b'"answer": 1, ', b"null", "é".encode(), b"\\ud800", b"9" * 5000)
LINTED = 40
READER = row_reader("question", "answer")
ODD: tuple[Any, ...] = (None, "", " ", True, [], {}, [1], 1.5, float("nan"), 10**400, "x" * 10_000)


def file_of(rng: random.Random) -> bytes:
    rows = list(ROWS)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(rows))
        row = rows[at]
        a, b = sorted(rng.randrange(len(row) + 1) for _ in range(2))
        kind = rng.randrange(6)
        if kind == 0:
            rows[at] = row[:a] + rng.choice(PIECES) + row[a:]
        elif kind == 1:
            rows[at] = row[:a] + row[b:]
        elif kind == 2 and row:
            rows[at] = (
                row[: len(row) // 2] + bytes([row[len(row) // 2] ^ (1 << rng.randrange(8))]) + row[len(row) // 2 + 1 :]
            )
        elif kind == 3:
            value = rng.choice(ODD)
            rows[at] = json.dumps(
                {"question": "Q?", "answer": "1", rng.choice(("question", "answer", "other")): value}
            ).encode()
        elif kind == 4:
            rows[at] = json.dumps(rng.choice(ODD)).encode()
        else:
            rows[at] = json.dumps({"question": "Q?"} if rng.random() < 0.5 else {"answer": "1"}).encode()
    return rng.choice((b"\n", b"\r\n", b"\n\n")).join(rows)[: rng.choice((None, None, None, -1, -20))]


def files(count: int, rng: random.Random, folder: Path) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    path = folder / "a.jsonl"
    for number in range(count):
        content = file_of(rng)
        path.write_bytes(content)
        try:
            good, said = len(read_rows(path, READER)), ""
        except DataError as error:
            good, said = -1, str(error)
        aside = Quarantine()
        lines = sum(bool(line.strip()) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
        kept = len(read_rows(path, READER, aside))
        adds_up = kept + len(aside.refused) == lines and (not aside.refused) == (good >= 0)
        outcomes["leniently: adds up" if adds_up else "leniently: does not add up"] += 1
        if not adds_up:
            print(f"{kept} rows read and {len(aside.refused)} set aside of {lines} for {content!r}"[:2000], flush=True)
        told = re.search(r", row (\d+)", said) and len(said.splitlines()) == 1
        outcomes["strictly: read" if good >= 0 else "strictly: row told" if told else "strictly: row not told"] += 1
        if not (good >= 0 or told):
            print(f"{said!r} for {content!r}"[:2000], flush=True)
        if number % LINTED:
            continue
        try:
            report = check_file(path)
        except DataError as error:
            outcomes["refused by the linter"] += 1
            print(f"refused: {error} for {content!r}", flush=True)
            continue
        malformed = sum(len(finding.where) for finding in report.findings if finding.kind == "malformed")
        agree = (report.rows, malformed) == (good, 0) if good >= 0 else malformed > 0
        outcomes["linted: as strictly" if agree else "linted: otherwise"] += 1
        if not agree:
            print(f"{said!r}, {report.findings} for {content!r}"[:2000], flush=True)
    return {"files": count, **outcomes}


def main() -> None:
    parser = argparse.ArgumentParser(description="Malformed texts and files.")
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = {}
    if given.texts:
        found["texts"] = texts(given.texts, random.Random(given.seed))
    if given.files:
        with tempfile.TemporaryDirectory() as folder:
            found["files"] = files(given.files, random.Random(given.seed), Path(folder))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
