"""What training changed: pass@k at small and large k, the entropy of every role, and how many weights moved.

    python benchmarks/what_changed.py RUNS/all/trained RUNS/all/frozen --problems 64 --samples 64

Each folder is an arm of a comparison or study and holds ``seed-N``. Start and end of every run answer the same test
problems ``--samples`` times (``cotrain eval RUN --samples K``; an answer that is there already is not asked for again).
If pass@1 rises while pass@K at the largest K does not, the policy was sharpened and solves nothing that it could not
solve before (arXiv 2504.13837). Entropy is that of the sampled tokens in training, mean of the first and of the last
``--batches`` batches in which a role speaks. The last table is the share of weights that are the same number in
bfloat16 as at the start (arXiv 2505.11711). Intervals are Student's over seeds, of differences paired by seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, DataError
from cotrain.core.input_files import parse_json
from cotrain.core.statistics import Estimate, mean_interval, paired_difference
from cotrain.runs import opening
from cotrain.storage.jsonl import read_jsonl

SPARSITY = "/update_sparsity"


def seeds_of(arm: Path) -> list[Path]:
    """The finished runs of an arm. Raises DataError for a folder without any."""
    found = sorted(path.parent for path in arm.glob("seed-*/summary.json"))
    if not found:
        raise DataError(f"{arm} holds no finished seed-N; expected the folder of an arm")
    return found


def opened(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON file of a run. Raises DataError for one that cannot be read or lacks a key."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; expected what a finished run or cotrain eval wrote") from None
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            raise DataError(f"{path} has no {key!r}; expected what a finished run or cotrain eval wrote")
    return dict(found)


def passing(run: Path, step: int | None, problems: int, samples: int) -> dict[str, float]:
    """pass@k of a run's solver by key, at the start (step 0) or the end (None)."""
    written = run / f"eval-test{'' if step is None else f'-step-{step}'}-{samples}-samples.json"
    if written.is_file():
        figures = opened(written, "figures")["figures"]
        if figures.get(f"solver/pass@{samples}", {}).get("n") != problems:
            raise DataError(
                f"{written} is of other problems than {problems}; move it away, or give --problems as there"
            )
    else:
        figures = opening.evaluate(run, tasks=problems, samples=samples, step=step)["figures"]
    return {key.split("/")[1]: one["value"] for key, one in figures.items() if key.startswith("solver/pass@")}


def passed(arms: Mapping[str, Sequence[Path]], problems: int, samples: int) -> list[str]:
    lines = ["| arm | figure | start | end | difference |", "|---" * 5 + "|"]
    for arm, runs in arms.items():
        before = [passing(run, 0, problems, samples) for run in runs]
        after = [passing(run, None, problems, samples) for run in runs]
        for k in sorted((int(name.removeprefix("pass@")) for name in before[0]), key=int):
            name = f"pass@{k}"
            start, end = [found[name] for found in before], [found[name] for found in after]
            change = paired_difference(end, start)
            lines.append(
                f"| {arm} | {name} | {sum(start) / len(start):.3f} | {shown(mean_interval(end))} "
                f"| {shown(change, '+')} |"
            )
    return lines


def entropies(arms: Mapping[str, Sequence[Path]], batches: int) -> list[str]:
    lines = ["| arm | role | entropy, nats: first batches | last batches | difference |", "|---" * 5 + "|"]
    for arm, runs in arms.items():
        rows = [[row for row in read_jsonl(run / "metrics.jsonl") if "kind" not in row] for run in runs]
        roles = sorted(
            {key.split("/")[0] for row in rows[0] for key in row if key.count("/") == 1 and key.endswith("/entropy")}
        )
        for role in roles:
            said = [
                [float(row[f"{role}/entropy"]) for row in found if row.get(f"{role}/entropy") is not None]
                for found in rows
            ]
            if not all(said):
                continue
            first = [sum(values[:batches]) / len(values[:batches]) for values in said]
            last = [sum(values[-batches:]) / len(values[-batches:]) for values in said]
            lines.append(
                f"| {arm} | {role} | {sum(first) / len(first):.3f} | {sum(last) / len(last):.3f} "
                f"| {shown(paired_difference(last, first), '+')} |"
            )
    return lines


def unchanged(arms: Mapping[str, Sequence[Path]]) -> list[str]:
    lines = ["| arm | policy | weights as at the start |", "|---|---|---|"]
    for arm, runs in arms.items():
        found: dict[str, list[float]] = {}
        for run in runs:
            after: dict[str, Any] = opened(run / "summary.json", "after")["after"]
            for key, one in after.items():
                if key.endswith(SPARSITY):
                    found.setdefault(key.removesuffix(SPARSITY), []).append(one["value"])
        lines += [f"| {arm} | {policy} | {shown(mean_interval(values))} |" for policy, values in found.items()]
    return lines


def shown(found: Estimate, sign: str = "") -> str:
    """A figure with its interval, where there are seeds enough for one."""
    return f"{found.value:{sign}.3f}" + (f" [{found.low:.3f}, {found.high:.3f}]" if found.n > 2 else "")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What training changed: pass@k, entropy, weights.")
    parser.add_argument("arms", nargs="+", type=Path, metavar="ARM", help="a folder with seed-N, of a comparison")
    parser.add_argument("--problems", type=int, default=64, metavar="N", help="test problems (default: 64)")
    parser.add_argument("--samples", type=int, default=64, metavar="K", help="answers of each (default: 64)")
    parser.add_argument("--batches", type=int, default=5, metavar="N", help="first and last ones (default: 5)")
    given = parser.parse_args(words)
    if min(given.problems, given.samples, given.batches) < 1:
        parser.error("--problems, --samples and --batches are at least 1")
    try:
        arms = {f"{arm.parent.parent.name}: {arm.name}": seeds_of(arm) for arm in given.arms}
        tables = (unchanged(arms), entropies(arms, given.batches), passed(arms, given.problems, given.samples))
        print("\n\n".join("\n".join(table) for table in tables))
    except CotrainError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
