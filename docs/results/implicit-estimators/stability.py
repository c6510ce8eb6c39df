"""How stable PRIME's estimators are: what the two study files announce, from the folders of their runs.

    python docs/results/implicit-estimators/stability.py runs/studies/implicit-estimators/all \
      runs/studies/implicit-estimators-slower/all

For each folder it prints a table of the arms, and the differences in greedy accuracy between all pairs of arms. A
folder needs its runs, ``compare.json`` and ``problems.json.gz``.
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from cotrain.core.statistics import Estimate, mean_interval, over_seeds_and_problems, smallest_significant
from cotrain.storage.jsonl import read_jsonl

WINDOW = 5  # batches
# 2.5 % and 97.5 % points of chi-square, by degrees of freedom
CHI_SQUARE = {2: (0.0506, 7.378), 3: (0.2158, 9.348), 4: (0.4844, 11.143), 5: (0.8312, 12.833)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    start: float  # greedy accuracy on the test problems
    end: float
    fall: float  # its best ``WINDOW`` batches minus its last ones, in the share of right training answers
    last_right: float  # share of right training answers in the last batches
    peak_norm: float  # the largest gradient norm over the run's median
    kept_groups: float  # problems that passed the filter, mean of a batch
    unreadable: float  # share of the answers in the last batches
    entropy: float  # nats a token, in the last batches
    seconds: float


def run_of(folder: Path) -> Run:
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = [row for row in read_jsonl(folder / "metrics.jsonl") if "kind" not in row]
    right = [row["solver/accuracy"] for row in rows]
    windows = [statistics.fmean(right[first : first + WINDOW]) for first in range(len(right) - WINDOW + 1)]
    norms = [row["generator/grad_norm"] for row in rows if row.get("generator/grad_norm") is not None]
    last = rows[-WINDOW:]
    timings = read_jsonl(folder / "timings.jsonl")
    return Run(
        start=summary["before"]["solver/greedy"]["value"],
        end=summary["after"]["solver/greedy"]["value"],
        fall=max(windows) - windows[-1],
        last_right=windows[-1],
        peak_norm=max(norms) / statistics.median(norms),
        kept_groups=statistics.fmean(row["generator/kept_groups"] for row in rows),
        unreadable=statistics.fmean(row["solver/parse_failures"] for row in last),
        entropy=statistics.fmean(row["solver/entropy"] for row in last),
        seconds=sum(row["rollout"] + row["update"] + row["annotate"] + row["credit"] for row in timings),
    )


def spread_in_words(values: list[float]) -> str:
    """The standard deviation and its 95 % interval."""
    degrees = len(values) - 1
    deviation = statistics.stdev(values)
    low, high = CHI_SQUARE[degrees]
    ends = deviation * math.sqrt(degrees / high), deviation * math.sqrt(degrees / low)
    return f"{deviation:.3f} [{ends[0]:.3f}, {ends[1]:.3f}]"


def in_words(estimate: Estimate, *, signed: bool = False) -> str:
    form = "+.3f" if signed else ".3f"
    return f"{estimate.value:{form}} [{estimate.low:.3f}, {estimate.high:.3f}]"


def arm_rows(name: str, runs: list[Run]) -> str:
    gains = [run.end - run.start for run in runs]
    cells = [
        name,
        in_words(mean_interval(gains), signed=True),
        spread_in_words(gains),
        f"{sum(run.end < run.start for run in runs)} of {len(runs)}",
        f"{sum(run.end < run.start / 2 for run in runs)} of {len(runs)}",
        ", ".join(f"{run.fall:.2f}" for run in runs),
        ", ".join(f"{run.peak_norm:.1f}" for run in runs),
        f"{statistics.fmean(run.last_right for run in runs):.3f}",
        f"{statistics.fmean(run.kept_groups for run in runs):.1f}",
        f"{statistics.fmean(run.unreadable for run in runs):.3f}",
        f"{statistics.fmean(run.entropy for run in runs):.3f}",
        f"{statistics.fmean(run.seconds for run in runs):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "arm",
    "gain",
    "its standard deviation",
    "below the start",
    "below half of it",
    "fall, by seed",
    "largest norm over median, by seed",
    "right, last batches",
    "problems kept of a batch",
    "unreadable",
    "entropy",
    "seconds of training",
)


def difference(one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]) -> Estimate:
    """Of two arms: seed → problem → greedy accuracy."""
    by_seed = []
    for seed, problems in one.items():
        pairs = [value - other[seed][problem] for problem, value in problems.items()]
        by_seed.append((statistics.fmean(pairs), pairs))
    return over_seeds_and_problems(by_seed)


def main(folders: list[str]) -> None:
    greedy: dict[str, dict[str, dict[str, float]]] = {}  # arm and folder → seed → problem → right
    for folder in map(Path, folders):
        print(f"{folder}\n\n| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
        saved = json.loads(gzip.decompress((folder / "problems.json.gz").read_bytes()))
        for arm, seeds in saved.items():
            runs = [run_of(folder / arm / f"seed-{seed}") for seed in seeds]
            print(arm_rows(arm, runs))
            greedy[f"{arm} in {folder.parent.name}"] = {s: figures["solver/greedy"] for s, figures in seeds.items()}
        print()
    print("| difference | greedy | significant from |\n|---|---|---|")
    for (one, of_one), (other, of_other) in combinations(greedy.items(), 2):
        if of_one.keys() == of_other.keys():
            change = difference(of_other, of_one)
            print(f"| {other} minus {one} | {in_words(change, signed=True)} | {smallest_significant(change):.3f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
