"""The same answers of a model graded in three ways: by cotrain's formats, by math-verify alone, by
lm-evaluation-harness.

    pip install --no-deps --target HARNESS lm-eval sacrebleu portalocker colorama tabulate lxml
    python -m benchmarks.agreement HARNESS evals/*/suite-*.jsonl     # of lm-eval its filters and its exact_match

The files are those that ``cotrain eval MODEL --suite …`` leaves: each row has a text and the gold answer. The harness's
side is its task gsm8k (version 3): "strict-match", "flexible-extract" and ``exact_match`` with the patterns of its YAML
file. Pairs that read the same thing are compared: ``hash`` with strict-match, ``last-number`` with flexible-extract,
``phrase`` with both it and math-verify. Where they read another answer the cause is found by rules, and the first of
them are printed, to be read.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cotrain.data.columns import Row
from cotrain.data.files import task_of
from cotrain.formats.answers import free_solution
from cotrain.formats.solutions import Solution
from cotrain.grading.pool import AnswerGrader

KINDS = ("hash", "boxed", "phrase", "last-number")
PAIRS = (
    ("hash", "strict-match"),
    ("last-number", "flexible-extract"),
    ("phrase", "flexible-extract"),
    ("phrase", "math-verify"),
)
STRICT, FLEXIBLE = "#### (\\-?[0-9\\.\\,]+)", "(-?[$0-9.,]{2,})|(-?[0-9]+)"
IGNORED = [",", "\\$", "(?s).*#### ", "\\.$"]
UNIT = re.compile(r"(?<=\d) \([^()]*\)$")  # ASDiv's golds end in one, which only cotrain's grader reads
SHOWN = 12  # disagreements of a pair that are printed


def harness() -> dict[str, Callable[[str, str], tuple[str | None, bool]]]:
    """The harness's two ways of reading and grading."""
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    def way(pattern: str, group: int) -> Callable[[str, str], tuple[str | None, bool]]:
        regex = RegexFilter(regex_pattern=pattern, group_select=group)

        def grade(text: str, gold: str) -> tuple[str | None, bool]:
            ((found,),) = regex.apply([[text]], [{}])
            score = exact_match_hf_evaluate([found], [f"#### {gold}"], regexes_to_ignore=IGNORED, ignore_case=True)
            return (None if found == "[invalid]" else found), bool(score["exact_match"])

        return grade

    return {"strict-match": way(STRICT, 0), "flexible-extract": way(FLEXIBLE, -1)}


def graded(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each row what every way reads and whether it calls it right."""
    from math_verify import parse, verify  # here, as only this function needs it: it loads parsers of LaTeX

    verifier, ways, found = AnswerGrader(), harness(), []
    for row in ({**row, "gold": UNIT.sub("", row["gold"])} for row in rows):
        task = task_of(Row(question=row["problem"], answer=row["gold"], solution=None), "agreement/0", verifier)
        mine: dict[str, tuple[str | None, bool]] = {}
        for kind in KINDS:
            said = free_solution(row["text"], kind)
            read = said if isinstance(said, Solution) else None
            mine[kind] = (None, False) if read is None else (read.answer, task.grade(read.tagged).value is True)
        for name, way in ways.items():
            mine[name] = way(row["text"], row["gold"])
        parsed = parse(row["text"])
        mine["math-verify"] = (str(parsed[-1]) if parsed else None, bool(verify(parse(f"${row['gold']}$"), parsed)))
        found.append(row | {"graded": mine})
    verifier.close()
    return found


def same(row: dict[str, Any], ours: str, theirs: str) -> bool:
    """Whether two ways read the same answer: the same text, or the same number in another writing."""
    (mine, _), (other, _) = row["graded"][ours], row["graded"][theirs]
    if mine is None or other is None:
        return mine is other
    return mine == other or (_number(mine) is not None and _number(mine) == _number(other))


def cause(row: dict[str, Any], ours: str, theirs: str) -> str:
    """Why two ways read another answer."""
    (mine, _), (other, _) = row["graded"][ours], row["graded"][theirs]
    if mine is None:
        cut = ", of a text that was cut off" if row["finish"] == "length" else ""
        return f"{ours} finds no answer; {theirs} takes the last number{cut}"
    if other is None:
        return f"{theirs} finds nothing"
    if not re.search(r"\d", other):
        return f"{theirs} takes signs for a number"
    if not re.search(r"\d", mine):
        return f"{ours} reads words; {theirs} takes a number"
    if _number(mine) is None:
        return f"{ours} reads an expression or a unit with the number"
    if _number(other) is None:
        return f"{theirs} reads a part of a fraction, date or sum"
    if abs(_number(mine) or 0.0) == abs(_number(other) or 0.0):
        return "one of them takes a dash for a minus"
    return f"{ours} reads what is said to be the answer; {theirs} a number that stands after it"


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("$", "").rstrip("."))
    except ValueError:
        return None


def main(words: Sequence[str]) -> None:
    sys.path.insert(1, words[0])
    rows = []
    for path in words[1:]:
        lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
        rows += [row for row in lines if row.get("text")]
    found = graded(rows)
    print(f"{len(found)} answers, {sum(row['finish'] == 'length' for row in found)} of them cut off")
    for way in found[0]["graded"]:
        read = sum(row["graded"][way][0] is not None for row in found)
        right = sum(row["graded"][way][1] for row in found)
        print(f"  {way:18s} reads {read:5d}, right {right:5d}")
    for ours, theirs in PAIRS:
        apart = [row for row in found if not same(row, ours, theirs)]
        verdicts = sum(row["graded"][ours][1] != row["graded"][theirs][1] for row in found)
        print(
            f"\n{ours} and {theirs}: read the same in {len(found) - len(apart)} of {len(found)}; other verdicts: "
            f"{verdicts}"
        )
        for why, count in Counter(cause(row, ours, theirs) for row in apart).most_common():
            print(f"  {count:4d}  {why}")
        judged = [row for row in found if row["graded"][ours][1] != row["graded"][theirs][1]]
        for title, some in (("another verdict", judged), ("read otherwise", apart[:SHOWN])):
            for row in some:
                end = " ".join(row["text"].split())[-90:]
                print(
                    f"        {title}: gold {row['gold']}: {row['graded'][ours]!r} {row['graded'][theirs]!r} …{end!r}"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
