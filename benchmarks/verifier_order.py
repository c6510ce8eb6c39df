"""How well a verifier orders the answers to one problem, from the rows of a suite: gates one and two of gsm8k.toml.

    cotrain eval MODEL --suite gsm8k --data test.jsonl --samples 8 --verdict words … --out DIR
    python benchmarks/verifier_order.py DIR/suite-gsm8k.jsonl …

Counted are pairs of a right and a wrong sampled answer to one problem. A tie teaches nothing; of the others counts in
how many the right answer has the higher score. Scores are:

    steps      share of the steps that the verifier calls right, which is what RL Tango pays; unread: 0
    verdict    its final verdict; unread: 0
    confidence the probability of a right answer by the word of that verdict
    equations  minus the equations that a program finds wrong (gsm8k_equations.py): what perfect computing would order
    vote       how many of the samples have this answer
    greedy     whether the model's own greedy answer is the same

The interval of the share in order is over problems, by resampling them 2,000 times. Rows written before a suite kept
verdicts on steps have no line ``steps``.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from gsm8k_equations import equations_in

from cotrain.core.errors import CotrainError, DataError
from cotrain.storage.jsonl import read_jsonl

Row = dict[str, Any]
Group = list[Row]  # the sampled answers to one problem
DRAWS = 2000
GREEDY = -1


def groups_of(file: Path) -> tuple[list[Group], dict[str, tuple[str | None, bool]]]:
    """The sampled and graded answers of each problem, and its greedy answer. Raises DataError for another file."""
    try:
        rows = [row for row in read_jsonl(file) if "sample" in row]
        found: dict[str, Group] = defaultdict(list)
        greedy: dict[str, tuple[str | None, bool]] = {}
        for row in rows:
            if row["sample"] == GREEDY:
                greedy[row["problem"]] = (row["answer"], bool(row["correct"]))
            elif row["correct"] is not None:
                found[row["problem"]].append(row)
    except (OSError, KeyError, TypeError) as error:
        raise DataError(f"{file}: {type(error).__name__}: {error}; expected suite-NAME.jsonl") from error
    if not found:
        raise DataError(f"{file}: no sampled answers; expected a suite that was run with --samples")
    return list(found.values()), greedy


def share_of_steps(row: Row) -> float:
    reviews = [steps for steps in row.get("step_verdicts") or () if steps]
    shares = [sum(steps) / len(steps) for steps in reviews]
    return sum(shares) / len(shares) if shares else 0.0


def share_of_verdicts(row: Row) -> float:
    said = [verdict for verdict in row.get("verdicts") or () if verdict is not None]
    return sum(said) / len(said) if said else 0.0


def wrong_equations(row: Row) -> float:
    lines = row["text"].splitlines()
    return -float(sum(not equation.is_right for line in lines for equation in equations_in(line)))


def count_pairs(group: Group, score: Callable[[Row], float]) -> Counter[str]:
    """``pairs``, ``ties`` among them, and those in ``order``."""
    counts: Counter[str] = Counter()
    for better in (score(row) for row in group if row["correct"]):
        for worse in (score(row) for row in group if not row["correct"]):
            counts += Counter(pairs=1, ties=int(better == worse), order=int(better > worse))
    return counts


def share_in_order(counts: Sequence[Counter[str]]) -> float | None:
    """Of the untied pairs of some problems; None where all are tied."""
    untied = sum(count["pairs"] - count["ties"] for count in counts)
    return sum(count["order"] for count in counts) / untied if untied else None


def interval(counts: Sequence[Counter[str]]) -> tuple[float, float] | None:
    """Of the share in order, 95 %, over problems."""
    draw = Random(0)
    shares = [share_in_order(draw.choices(counts, k=len(counts))) for _ in range(DRAWS)]
    known = sorted(share for share in shares if share is not None)
    if not known:
        return None
    return known[int(0.025 * len(known))], known[int(0.975 * len(known)) - 1]


def accuracy_lines(groups: Sequence[Group], greedy: dict[str, tuple[str | None, bool]]) -> list[str]:
    """Gate one: the shares of right greedy and right sampled answers."""
    sampled = [bool(row["correct"]) for group in groups for row in group]
    right = [is_right for _, is_right in greedy.values()]
    return [
        f"greedy: {sum(right)} of {len(right)} right, {sum(right) / max(len(right), 1):.3f}",
        f"sampled: {sum(sampled)} of {len(sampled)} right, {sum(sampled) / max(len(sampled), 1):.3f}",
        "",
    ]


def table(groups: Sequence[Group], greedy: dict[str, tuple[str | None, bool]]) -> list[str]:
    """A line for each score."""
    votes = {id(group): Counter(row["answer"] for row in group) for group in groups}
    scores: dict[str, Callable[[Group], Callable[[Row], float]]] = {}
    if any(row.get("step_verdicts") for group in groups for row in group):
        scores["steps"] = lambda group: share_of_steps
    if any(row.get("verdicts") for group in groups for row in group):
        scores["verdict"] = lambda group: share_of_verdicts
        scores["confidence"] = lambda group: lambda row: row["score"] or 0.0
    scores["equations"] = lambda group: wrong_equations
    scores["vote"] = lambda group: lambda row: votes[id(group)][row["answer"]]
    scores["greedy"] = lambda group: lambda row: float(row["answer"] == greedy[row["problem"]][0])
    lines = ["| score | problems | pairs | tied | of the others in order |", "|---|---|---|---|---|"]
    for name, score in scores.items():
        counts = [count for group in groups if (count := count_pairs(group, score(group)))["pairs"]]
        pairs = sum(count["pairs"] for count in counts)
        ties = sum(count["ties"] for count in counts)
        share, around = share_in_order(counts), interval(counts)
        found = "–" if share is None or around is None else f"{share:.2f} [{around[0]:.2f}, {around[1]:.2f}]"
        lines.append(f"| {name} | {len(counts)} | {pairs} | {ties / max(pairs, 1):.2f} | {found} |")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suite", type=Path, nargs="+", help="suite-NAME.jsonl of `cotrain eval`, each of other problems"
    )
    given = parser.parse_args(argv)
    try:
        groups: list[Group] = []
        greedy: dict[str, tuple[str | None, bool]] = {}
        for file in given.suite:
            more, of_these = groups_of(file)
            groups += more
            greedy |= of_these
        print("\n".join(accuracy_lines(groups, greedy)))
        print("\n".join(table(groups, greedy)))
    except CotrainError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
