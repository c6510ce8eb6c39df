"""Two commands in turn, A B A B …, and the ratio of what they report, with its spread.

    python benchmarks/harness.py --rounds 5 --key seconds "COMMAND A" "COMMAND B"

Each command's last line is JSON. The ratio is taken within each pair, whose halves ran one after the other, so that a
machine that is slower for a while is slower for both; reported are the median of the ratios, and the least and the
largest. Each run is a process of its own: neither side has the other's memory, caches or libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]
EQUAL = ("parameters", "sampled_tokens", "learned_tokens", "optimizer_steps", "threads")  # on both sides
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """B over A: how many times as much B reports."""

    a: float  # medians
    b: float
    middle: float  # median of the pairs' ratios
    low: float
    high: float
    pairs: int


def ask(command: Sequence[str]) -> Answer:
    """Run a command and return what its last line says. Raises RuntimeError with its complaint when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | OFFLINE, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def alternate(a: Sequence[str], b: Sequence[str], rounds: int) -> list[tuple[Answer, Answer]]:
    """A B A B …: one pair of answers a round."""
    return [(ask(a), ask(b)) for _ in range(rounds)]


def ratio(pairs: Sequence[tuple[Answer, Answer]], key: str) -> Ratio:
    """Of one figure."""
    of_a, of_b = [a[key] for a, _ in pairs], [b[key] for _, b in pairs]
    ratios = [b / a for a, b in zip(of_a, of_b, strict=True)]
    return Ratio(
        a=statistics.median(of_a),
        b=statistics.median(of_b),
        middle=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        pairs=len(pairs),
    )


def check_same(a: Answer, b: Answer) -> None:
    """Both sides did the same work, or there is no ratio."""
    differing = [f"{key}: {a[key]} and {b[key]}" for key in EQUAL if a[key] != b[key]]
    if differing:
        raise RuntimeError(f"the two sides did not do the same work: {'; '.join(differing)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", metavar="A", help="a command, quoted")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--key", default="seconds")
    given = parser.parse_args()
    found = ratio(alternate(shlex.split(given.a), shlex.split(given.b), given.rounds), given.key)
    print(f"{given.key}: A {found.a:.4g}, B {found.b:.4g}")
    print(f"B / A: {found.middle:.2f} ({found.low:.2f}–{found.high:.2f}, {found.pairs} pairs)")


if __name__ == "__main__":
    main()
