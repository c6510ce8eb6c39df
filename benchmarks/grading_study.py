r"""How often the grader is right: ``python benchmarks/grading_study.py --data DIR [--pairs 3000] [--seed 0]``.

From the gold answers of every ``.jsonl`` file under a directory are made answers of which it is known by construction
whether they are right: the same value written in another way (right), and values that are nearly the same (wrong). As
many of each kind are drawn as there are, up to an equal share, evenly over the files. Printed are

- a table by kind: graded right, wrong, not graded (with reasons);
- every disagreement;
- for each file: gold answers that equal themselves when read by math-verify (without the shortcut for equal texts),
  worked solutions whose last answer is graded right, and the gold answer of another row, graded right (it should not
  be).

The line printed last is JSON. A variant that happens to be right after all (a set with one member in the other order)
is not made: each rule says when it applies. Left out: answers with an allowed error, several correct golds, units that
convert.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from cotrain.core.errors import DataError
from cotrain.core.types import Grade
from cotrain.tasks.grading import GradingPool, plain_number, quick_grade, vote_key
from cotrain.tasks.rows import ANY, lines_of, object_of, row_of
from cotrain.text.parsers import final_answer

FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
TUPLE = re.compile(r"\(([^()\[\],]+),\s*([^()\[\],]+)\)")
LIST = re.compile(r"[-\d./]+(,\s[-\d./]+)+")  # 3, 5, 7: several values; without a space they may be one number


def number(gold: str) -> Decimal | None:
    """A gold answer that is a plain number without unit."""
    found = plain_number(gold)
    return found[0] if found is not None and not found[1] and len(gold) < 16 and "\\" not in gold else None


def plain(value: Decimal) -> str:
    return f"{value:f}"


def fraction(gold: str) -> tuple[str, int, int] | None:
    found = FRACTION.fullmatch(gold.strip())
    if found is None or not int(found[3]):
        return None
    return found[1], int(found[2]), int(found[3])


Rule = Callable[[str], str | None]  # an answer made of a gold answer; None where the rule does not apply


def of_number(rule: Callable[[Decimal], str | None]) -> Rule:
    def made(gold: str) -> str | None:
        value = number(gold)
        return None if value is None else rule(value)

    return made


def of_fraction(rule: Callable[[str, int, int], str | None]) -> Rule:
    def made(gold: str) -> str | None:
        parts = fraction(gold)
        return None if parts is None else rule(*parts)

    return made


def of_list(rule: Callable[[list[str]], list[str] | None]) -> Rule:
    def made(gold: str) -> str | None:
        if not LIST.fullmatch(gold):
            return None
        values = re.split(r",\s", gold)
        changed = rule(values) if len(set(values)) == len(values) else None
        return None if changed is None else ", ".join(changed)

    return made


def of_pair(rule: Callable[[str, str], str | None]) -> Rule:
    def made(gold: str) -> str | None:
        found = TUPLE.fullmatch(gold)
        return None if found is None or found[1].strip() == found[2].strip() else rule(found[1], found[2])

    return made


def expression(gold: str) -> bool:
    """Algebra in one piece: something of TeX, no list, interval, equation, text or inequality."""
    bad = (
        ",",
        "=",
        "text",
        "mbox",
        "infty",
        "cup",
        "in ",
        "<",
        ">",
        "le",
        "ge",
        "pm",
        "begin",
        "^\\circ",
        "\\%",
        "_",
        "and",
        "$",
        "circ",
    )
    return ("\\" in gold or "^" in gold) and not any(word in gold for word in bad) and len(gold) < 80


def of_expression(rule: Callable[[str], str]) -> Rule:
    return lambda gold: rule(gold) if expression(gold) else None


def terminating(sign: str, top: int, bottom: int) -> str | None:
    value = Fraction(top, bottom)
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return sign + plain(Decimal(value.numerator) / Decimal(value.denominator)) if rest == 1 and bottom > 1 else None


def endless(sign: str, top: int, bottom: int) -> str | None:
    return None if terminating(sign, top, bottom) or not top % bottom else f"{sign}{top / bottom:.2f}"


def last_digit(value: Decimal) -> str | None:
    text = plain(value)
    return text[:-1] + str((int(text[-1]) + 3) % 10) if text[-1].isdigit() else None


def rounded(value: Decimal) -> str | None:
    return plain(value.to_integral_value()) if value != value.to_integral_value() else None


def transposed(value: Decimal) -> str | None:
    text = plain(value)
    tail = text[-2:]
    return text[:-2] + tail[::-1] if len(tail) == 2 and tail.isdigit() and tail[0] != tail[1] else None


SWAPS = ((r"\dfrac", r"\frac"), (r"\tfrac", r"\frac"), (r"\frac", r"\dfrac"))
SAME: dict[str, Rule] = {
    "boxed": lambda gold: f"\\boxed{{{gold}}}" if gold.count("{") == gold.count("}") else None,
    "dollars and a stop": lambda gold: f" ${gold}$. " if "$" not in gold else None,
    "an equation x =": lambda gold: f"x = {gold}" if number(gold) is not None or fraction(gold) else None,
    "trailing zeros": of_number(lambda n: plain(n) + (".00" if n == n.to_integral_value() else "0")),
    "thousands separators": of_number(lambda n: f"{n:,f}" if abs(n) >= 1000 else None),
    "TeX thousands separators": of_number(lambda n: f"{n:,f}".replace(",", "{,}") if abs(n) >= 1000 else None),
    "a unit behind": of_number(lambda n: f"{n:f} apples"),
    "TeX unit behind": of_number(lambda n: f"{n:f}\\text{{ cm}}"),
    "currency": of_number(lambda n: f"\\${n:f}" if n > 0 else None),
    "number as a fraction": of_number(lambda n: f"\\frac{{{n * 6:f}}}{{6}}" if n == n.to_integral_value() else None),
    "power of ten": of_number(lambda n: f"{n / 1000:f} \\times 10^{{3}}" if abs(n) >= 10 else None),
    "other fraction command": lambda gold: next((gold.replace(a, b) for a, b in SWAPS if a in gold), None),
    "fraction with a slash": of_fraction(lambda s, a, b: f"{s}{a}/{b}"),
    "scaled fraction": of_fraction(lambda s, a, b: f"{s}\\frac{{{3 * a}}}{{{3 * b}}}"),
    "fraction as a decimal": of_fraction(terminating),
    "list in another order": of_list(lambda values: values[::-1]),
    "list in braces": of_list(lambda values: ["\\{" + values[0], *values[1:-1], values[-1] + "\\}"]),
    "pair with left and right": of_pair(lambda a, b: f"\\left({a}, {b}\\right)"),
    "sum with zero": of_expression(lambda gold: f"0 + {gold}"),
    "times two over two": of_expression(lambda gold: f"\\frac{{2 \\left({gold}\\right)}}{{2}}"),
}
OTHER: dict[str, Rule] = {
    "one more": of_number(lambda n: plain(n + 1)),
    "one less": of_number(lambda n: plain(n - 1)),
    "other sign": of_number(lambda n: plain(-n) if n else None),
    "other last digit": of_number(last_digit),
    "digits transposed": of_number(transposed),
    "ten times": of_number(lambda n: plain(n * 10) if n else None),
    "rounded": of_number(rounded),
    "a percentage": of_number(lambda n: f"{n:f}\\%" if n and abs(n) < 1 else None),
    "million": of_number(lambda n: f"{n:f} million" if n else None),
    "two answers": of_number(lambda n: f"{n:f} or {n + 1:f}"),
    "a set around it": of_number(lambda n: f"\\{{{n:f}, {n + 1:f}\\}}"),
    "a variable behind": of_number(lambda n: f"{n:f}x" if n else None),
    "fraction upside down": of_fraction(lambda s, a, b: f"{s}\\frac{{{b}}}{{{a}}}" if a and a != b else None),
    "fraction, other sign": of_fraction(lambda s, a, b: f"{'' if s else '-'}\\frac{{{a}}}{{{b}}}" if a else None),
    "fraction, top plus one": of_fraction(lambda s, a, b: f"{s}\\frac{{{a + 1}}}{{{b}}}"),
    "fraction rounded": of_fraction(endless),
    "list, one missing": of_list(lambda values: values[:-1]),
    "list, one too many": of_list(lambda values: [*values, "1234567"]),
    "pair in another order": of_pair(lambda a, b: f"({b}, {a})"),
    "expression plus one": of_expression(lambda gold: f"{gold} + 1"),
    "expression doubled": of_expression(lambda gold: f"2 \\left({gold}\\right)"),
    "expression, other sign": of_expression(lambda gold: f"-\\left({gold}\\right)"),
    "nothing readable": lambda gold: "I do not know" if number(gold) is not None else None,
    "the unclosed gold": lambda gold: gold[:-1] if gold.endswith("}") and expression(gold) else None,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="How often the grader is right.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument(
        "--rows", type=int, default=500, help="rows of each file, at equal distances, for the table by file"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--deadline", type=float, default=5.0, help="CPU seconds of a grade; four times as long by the clock"
    )
    given = parser.parse_args()
    files = dict(gold_answers(given.data))
    pairs = drawn(files, given.pairs, random.Random(given.seed))
    with (
        GradingPool(workers=given.workers, deadline_s=given.deadline) as pool,
        ThreadPoolExecutor(given.workers) as threads,
    ):
        start = time.perf_counter()
        grades = list(threads.map(lambda pair: pool.grade(pair[2], pair[3]), pairs))
        clock = time.perf_counter() - start
        kinds = table(pairs, grades)
        by_file = {name: of_file(rows, given.rows, pool, threads) for name, rows in files.items()}
    needed = sum(quick_grade(gold, answer) is None for _, _, gold, answer in pairs)
    right = sum(grade.value is expected for (_, expected, _, _), grade in zip(pairs, grades, strict=True))
    ungraded = sum(grade.value is None for grade in grades)
    print(f"\n{len(pairs)} pairs, {needed} by math-verify: {right} as expected, {ungraded} not graded, {clock:.0f} s")
    print(json.dumps({"pairs": len(pairs), "right": right, "ungraded": ungraded, "kinds": kinds, "files": by_file}))


def gold_answers(folder: Path) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The gold answers of each file, with the worked text that leads to them where there is one."""
    for path in sorted([*folder.rglob("*.jsonl"), *folder.rglob("*.jsonl.gz")]):
        rows, left_out = [], 0
        for count, line in lines_of(path):
            try:
                content = object_of(line, f"row {count}")
                gold = row_of(content, ANY.question, ANY.answer, f"row {count}").answer
            except DataError:
                left_out += 1
                continue
            worked = content.get("answer") if "####" in str(content.get("answer")) else content.get("solution")
            rows.append((gold, worked if isinstance(worked, str) and final_answer(worked) else None))
        name = str(path.relative_to(folder))
        if rows:
            yield name, rows
        if left_out:
            print(f"{name}: {left_out} rows without a question and an answer are left out")


def drawn(
    files: dict[str, list[tuple[str, str | None]]], count: int, rng: random.Random
) -> list[tuple[str, bool, str, str]]:
    """``count`` pairs (kind, right, gold, answer): kinds in turn, and for each kind files in turn, none twice."""
    queues: dict[str, dict[str, list[tuple[str, bool, str, str]]]] = defaultdict(dict)
    for name, rows in files.items():
        golds = sorted({gold for gold, _ in rows})
        rng.shuffle(golds)
        for expected, rules in ((True, SAME), (False, OTHER)):
            for kind, rule in rules.items():
                made = [(kind, expected, gold, answer) for gold in golds if (answer := rule(gold)) not in (None, gold)]
                queues[kind][name] = made[:count]
    chosen: list[tuple[str, bool, str, str]] = []
    seen: set[tuple[str, str]] = set()
    while len(chosen) < count and any(rest for by_file in queues.values() for rest in by_file.values()):
        for kind, by_file in queues.items():
            names = [name for name, rest in by_file.items() if rest]
            if not names or len(chosen) == count:
                continue
            name = names[0]
            pair = by_file[name].pop()
            queues[kind] = {other: rest for other, rest in by_file.items() if other != name} | {name: by_file[name]}
            if (kind, pair[2]) not in seen:
                seen.add((kind, pair[2]))
                chosen.append(pair)
    return chosen


def table(pairs: list[tuple[str, bool, str, str]], grades: list[Grade]) -> dict[str, list[int]]:
    """Print the table by kind and the disagreements; returns [expected, right, wrong, not graded] by kind."""
    found: dict[str, list[int]] = {}
    odd = []
    for (kind, expected, gold, answer), grade in zip(pairs, grades, strict=True):
        mine = found.setdefault(kind, [int(expected), 0, 0, 0])
        mine[1 if grade.value else 3 if grade.value is None else 2] += 1
        if grade.value is not expected:
            odd.append(f"  {kind:28s} gold {gold!r}, answer {answer!r}: {grade.value} {grade.reason or ''}")
    print(f"{'kind':28s} {'expected':>9s} {'right':>6s} {'wrong':>6s} {'none':>5s}")
    for kind, (expected, *counts) in found.items():
        print(f"{kind:28s} {'right' if expected else 'wrong':>9s} {counts[0]:6d} {counts[1]:6d} {counts[2]:5d}")
    print(f"\n{len(odd)} disagreements:")
    print("\n".join(sorted(odd)))
    return found


def of_file(
    rows: list[tuple[str, str | None]], most: int, pool: GradingPool, threads: ThreadPoolExecutor
) -> dict[str, list[int]]:
    """Counts [right, wrong, not graded] of a file: gold with itself, worked solutions, the gold of another row."""
    step = max(1, len(rows) // most)
    some = rows[::step][:most]
    golds = sorted({gold for gold, _ in some})
    worked = [(gold, final_answer(text) or "") for gold, text in some if text]
    others = [(a, b) for a, b in zip(golds, golds[1:] + golds[:1], strict=True) if vote_key(a) != vote_key(b)]
    asked = {
        "itself": list(threads.map(lambda gold: pool.ask(gold, gold), golds)),
        "worked": list(threads.map(lambda pair: pool.grade(*pair), worked)),
        "another": list(threads.map(lambda pair: pool.grade(*pair), others)),
    }
    counts = {}
    for name, grades in asked.items():
        found = Counter(grade.value for grade in grades)
        counts[name] = [found[True], found[False], found[None]]
    for (gold, answer), grade in zip(worked, asked["worked"], strict=True):
        if grade.value is not True:
            print(f"  worked: gold {gold!r}, answer {answer!r}: {grade.value} {grade.reason or ''}")
    for gold, grade in zip(golds, asked["itself"], strict=True):
        if grade.value is not True:
            print(f"  itself: gold {gold!r}: {grade.value} {grade.reason or ''}")
    for (gold, answer), grade in zip(others, asked["another"], strict=True):
        if grade.value is not False:
            print(f"  another: gold {gold!r}, answer {answer!r}: {grade.value} {grade.reason or ''}")
    print(f"{len(rows)} rows, {len(some)} looked at: {counts}")
    return counts


if __name__ == "__main__":
    main()
