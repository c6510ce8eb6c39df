"""A figure of runs, arms side by side, paired by seed: of the last training batches, or of a later evaluation.

    python benchmarks/batch_figures.py RUNS/frozen RUNS/online --figure generator/process/pair_accuracy --last 30
    python benchmarks/batch_figures.py RUNS/frozen RUNS/online --figure solver/greedy --split ood_length

Each folder is an arm of a comparison or study and holds ``seed-N``. A seed's figure is the mean over those of its last
``--last`` batches that have one, or with ``--split`` what ``cotrain eval seed-N --split …`` found. Differences are an
arm's minus the first arm's; the interval is Student's over seeds. "Significant from": the smallest
difference that is (``statistics.smallest_significant``).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.input_files import parse_json
from cotrain.core.statistics import mean_interval, paired_difference, smallest_significant
from cotrain.storage.jsonl import read_jsonl


def by_seed(arm: Path, figure: str, last: int, until: int | None = None) -> dict[str, float]:
    """The mean figure of each run of an arm, over ``last`` batches before step ``until`` (None: the end). Raises
    DataError for a folder without runs, and for a run without the figure there."""
    found: dict[str, float] = {}
    for run in sorted(arm.glob("seed-*/metrics.jsonl")):
        rows = [row for row in read_jsonl(run) if "kind" not in row and (until is None or row["step"] < until)]
        values = [float(row[figure]) for row in rows[-last:] if row.get(figure) is not None]
        if not values:
            raise DataError(f"{run}: no batch of the last {last} has {figure}; expected a name that the file has")
        found[run.parent.name] = sum(values) / len(values)
    if not found:
        raise DataError(f"{arm} holds no seed-N/metrics.jsonl; expected the folder of an arm")
    return found


def evaluated(arm: Path, figure: str, split: str) -> dict[str, float]:
    """What an evaluation of each run of an arm found. Raises DataError for a run without it."""
    found: dict[str, float] = {}
    for run in sorted(arm.glob("seed-*/")):
        path = run / f"eval-{split}.json"
        try:
            found[run.name] = float(parse_json(path.read_text(encoding="utf-8"))["figures"][figure]["value"])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{path}: no {figure} ({error}); expected what cotrain eval RUN --split wrote") from None
    if not found:
        raise DataError(f"{arm} holds no seed-N; expected the folder of an arm")
    return found


def rows(arms: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A table: the first arm is what the others are compared with. Raises DataError where arms have other seeds."""
    first, *others = arms.items()
    lines = ["| arm | mean | difference | significant from | by seed |", "|---|---|---|---|---|"]
    for name, figures in (first, *others):
        if figures.keys() != first[1].keys():
            raise DataError(f"{name} has other seeds than {first[0]}; expected the same ones in every arm")
        mean = mean_interval(list(figures.values()))
        against = " | | "
        if name != first[0]:
            found = paired_difference([figures[seed] for seed in first[1]], list(first[1].values()))
            against = f" | {found.value:+.3f} [{found.low:.3f}, {found.high:.3f}] | {smallest_significant(found):.3f}"
        listed = ", ".join(f"{value:.3f}" for value in figures.values())
        lines.append(f"| {name} | {mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}]{against} | {listed} |")
    return lines


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A figure of the last training batches, arms side by side.")
    parser.add_argument("arms", nargs="+", type=Path, metavar="ARM", help="a folder with seed-N, of a comparison")
    parser.add_argument("--figure", required=True, metavar="NAME", help="a key of metrics.jsonl")
    parser.add_argument("--last", type=int, default=20, metavar="N", help="batches (default: 20)")
    parser.add_argument("--until", type=int, metavar="STEP", help="batches before this step (default: the end)")
    parser.add_argument("--split", metavar="NAME", help="read what cotrain eval found on this split instead")
    given = parser.parse_args(words)

    def found(arm: Path) -> dict[str, float]:
        if given.split is not None:
            return evaluated(arm, given.figure, given.split)
        return by_seed(arm, given.figure, given.last, given.until)

    try:
        print("\n".join(rows({str(arm): found(arm) for arm in given.arms})))
    except CotrainError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
