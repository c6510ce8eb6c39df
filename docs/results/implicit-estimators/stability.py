"""How stable PRIME's estimators are: what the two study files announce, from the folders of their runs.

    python docs/results/implicit-estimators/stability.py runs/studies/implicit-estimators/all \
      runs/studies/implicit-estimators-slower/all

For each folder it prints a table of the arms, and a second one of what might explain them, which was added after the
runs had been seen. Then come the differences in greedy accuracy between all pairs of arms. A folder needs its runs and
``problems.json.gz``.
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
from cotrain.reports.compare_words import slug_of
from cotrain.storage.jsonl import read_jsonl

WINDOW = 5  # batches
CLIP_NORM = 1.0  # a gradient with a larger norm is scaled down to it
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a run's reward model knew and what the generator's gradient was like."""

    pairs: list[float | None]  # share of pairs of answers in order: batches 2 to 6, 7 to 11, 12 to 16; None: no pair
    cross_entropy: float | None  # of the reward model in the last batches, before it learns from them; None: no model
    step_pairs: float | None  # share of pairs of a right and a wrong step in order, held out, at the end
    without_update: int  # batches of which no problem passed the filter
    first_norm: float | None  # gradient norm in the first batch, in which all process rewards are 0
    later_norms: list[float]
    wrong_at_first: float  # share of the steps with a wrong relation, such as a minus for a plus: first two batches
    wrong_at_last: float  # the same in the last batches


def explanation_of(folder: Path) -> Explanation:
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = [row for row in read_jsonl(folder / "metrics.jsonl") if "kind" not in row]
    pairs = [_mean_of(rows[first : first + WINDOW], "generator/process/pair_accuracy") for first in (1, 6, 11)]
    step_pairs = summary["after"].get("prm/step_pair_accuracy")
    later = [row.get("generator/grad_norm") for row in rows[1:]]
    return Explanation(
        pairs=pairs,
        cross_entropy=_mean_of(rows[-WINDOW:], "prm/prm/loss"),
        step_pairs=step_pairs["value"] if step_pairs else None,
        without_update=sum(row["generator/kept_groups"] == 0 for row in rows),
        first_norm=rows[0].get("generator/grad_norm"),
        later_norms=[norm for norm in later if norm is not None],
        wrong_at_first=wrong_relations(folder, range(2)),
        wrong_at_last=wrong_relations(folder, range(len(rows) - WINDOW, len(rows))),
    )


def wrong_relations(folder: Path, batches: range) -> float:
    """Of the steps that were written in these batches, the share whose relation is not the problem's."""
    reasons: list[str] = []
    with gzip.open(folder / "episodes" / "episodes.jsonl.gz", "rt", encoding="utf-8") as lines:
        for episode in map(json.loads, lines):
            if episode["step"] not in batches:
                continue
            for trace in episode["traces"]:
                reasons += trace["metadata"].get("step_reasons", [])  # an unreadable answer has none
    return reasons.count("relation") / len(reasons)


def _mean_of(rows: list[dict[str, float]], figure: str) -> float | None:
    values = [row[figure] for row in rows if row.get(figure) is not None]
    return statistics.fmean(values) if values else None


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


EXPLANATION_HEAD = (
    "arm",
    "pairs in order, batches 2 to 6",
    "7 to 11",
    "12 to 16",
    "reward model's cross-entropy, last batches",
    "pairs of steps in order, at the end",
    "batches without an update",
    "gradient norm, first batch",
    "later batches",
    "updates clipped",
    "steps with a wrong relation, first two batches",
    "last batches, by seed",
)


def explanation_row(name: str, runs: list[Explanation]) -> str:
    norms = [norm for run in runs for norm in run.later_norms]
    n_clipped = sum(norm > CLIP_NORM for norm in norms)
    cells = [
        name,
        *(mean_in_words([run.pairs[third] for run in runs]) for third in range(3)),
        mean_in_words([run.cross_entropy for run in runs]),
        mean_in_words([run.step_pairs for run in runs]),
        str(sum(run.without_update for run in runs)),
        f"{statistics.median(run.first_norm for run in runs if run.first_norm is not None):.2f}",
        f"{statistics.median(norms):.2f}",
        f"{n_clipped} of {len(norms)}",
        f"{statistics.fmean(run.wrong_at_first for run in runs):.2f}",
        ", ".join(f"{run.wrong_at_last:.2f}" for run in runs),
    ]
    return f"| {' | '.join(cells)} |"


def mean_in_words(values: list[float | None]) -> str:
    """The mean over the runs that have the figure; a dash where fewer than five have."""
    found = [value for value in values if value is not None]
    return in_words(mean_interval(found)) if len(found) >= 5 else "–"


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
            runs = [run_of(folder / slug_of(arm) / f"seed-{seed}") for seed in seeds]
            print(arm_rows(arm, runs))
            greedy[f"{arm} in {folder.parent.name}"] = {s: figures["solver/greedy"] for s, figures in seeds.items()}
        print(f"\n| {' | '.join(EXPLANATION_HEAD)} |\n{'|---' * len(EXPLANATION_HEAD)}|")
        for arm, seeds in saved.items():
            print(explanation_row(arm, [explanation_of(folder / slug_of(arm) / f"seed-{seed}") for seed in seeds]))
        print()
    print("| difference | greedy | significant from |\n|---|---|---|")
    for (one, of_one), (other, of_other) in combinations(greedy.items(), 2):
        if of_one.keys() == of_other.keys():
            change = difference(of_other, of_one)
            print(f"| {other} minus {one} | {in_words(change, signed=True)} | {smallest_significant(change):.3f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
