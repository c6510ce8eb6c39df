"""Two judges on the same solutions, over seeds: what ``cotrain xplay`` found in pairs of runs, as a table.

    for k in 5 6 7; do cotrain xplay RUNS/frozen/seed-$k RUNS/trained/seed-$k --every 75 --json > crossed/$k.json; done
    python benchmarks/crossed.py crossed/*.json

Each file is one seed: generators and judges of the first run and of the second, at their start and at their last step.
Differences are the second judge minus the first, paired by seed; the interval is Student's over seeds. "Significant
from": the smallest difference that is (``statistics.smallest_significant``).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import DataError
from cotrain.core.input_files import parse_json
from cotrain.core.statistics import paired_difference, smallest_significant

FIGURES = ("balanced_accuracy", "false_positive_rate", "true_positive_rate", "best_of_n")


def places(file: Mapping[str, Any], kind: str) -> tuple[int, int, int]:
    """Of "generators" or "verifiers": where the start, the end of the first run and that of the second stand."""
    found = file[kind]
    runs = list(dict.fromkeys(one["run"] for one in found))
    if len(runs) != 2:
        raise DataError(f"{len(runs)} runs in a file; expected 2: cotrain xplay FIRST SECOND --every N --json")
    last = {run: max(i for i, one in enumerate(found) if one["run"] == run) for run in runs}
    return 0, last[runs[0]], last[runs[1]]


def figure(file: Mapping[str, Any], name: str, generator: int, verifier: int) -> float:
    [cell] = [c for c in file["cells"] if (c["generator"], c["verifier"]) == (generator, verifier)]
    return float(cell[name]["value"])


def rows(files: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| figure | solutions of | start's judge | first | second | difference | significant from |",
        "|---" * 7 + "|",
    ]
    for name in FIGURES:
        for at, whose in enumerate(("the start", "the first", "the second")):
            by_verifier = [
                [figure(f, name, places(f, "generators")[at], places(f, "verifiers")[verifier]) for f in files]
                for verifier in range(3)
            ]
            found = paired_difference(by_verifier[2], by_verifier[1])
            means = " | ".join(f"{sum(values) / len(values):.3f}" for values in by_verifier)
            lines.append(
                f"| {name} | {whose} | {means} | {found.value:+.3f} [{found.low:.3f}, {found.high:.3f}] "
                f"| {smallest_significant(found):.3f} |"
            )
    return lines


def opened(path: str) -> dict[str, Any]:
    """What ``cotrain xplay --json`` wrote. Raises DataError for a file that is missing or is something else."""
    try:
        found = parse_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; expected what cotrain xplay --json prints") from None
    if not isinstance(found, dict) or not {"generators", "verifiers", "cells"} <= found.keys():
        raise DataError(f"{path} has no generators, verifiers and cells; expected what cotrain xplay --json prints")
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Two judges on the same solutions, as a table over seeds.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="one of each seed, written by cotrain xplay --json")
    given = parser.parse_args(words)
    if len(given.files) < 2:
        parser.error("one file; expected at least two seeds for an interval")
    try:
        print("\n".join(rows([opened(path) for path in given.files])))
    except DataError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
