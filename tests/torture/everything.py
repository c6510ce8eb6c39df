"""``make torture``: all of it, one part after the other, each with a log of its own under ``runs/torture``.

    python -m tests.torture.everything [--only kills soak] [--share 0.01] [--out runs/torture]

``--share`` makes each part as much smaller, to see that it works. Parts that keep a log of what is done (kills, soak,
mutation, alarms) go on behind it when this is called again. The exit code is the number of parts that
failed. A part prints its figures as a table; ``docs/reliability.md`` says what they mean.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Part = Callable[
    [Callable[[int], str], Path], list[str]
]  # (a number → its share, the folder of the logs) → arguments of Python


def _pytest(*words: str) -> list[str]:
    return ["-m", "pytest", "-q", "-p", "no:cacheprovider", *words]


PARTS: dict[str, Part] = {
    "disk": lambda n, out: _pytest("tests/storage"),
    "regressions": lambda n, out: _pytest("tests/regressions"),
    "power": lambda n, out: ["-m", "tests.torture.power", "--states", n(2000)],
    "memory": lambda n, out: ["-m", "tests.torture.memory", "--cases", n(300)],
    "disk-full": lambda n, out: ["-m", "tests.torture.disk_full", "--sizes", n(100)],
    "hostile-answers": lambda n, out: ["benchmarks/grading.py", "--families"],
    "malformed": lambda n, out: ["benchmarks/fuzz.py", "--texts", n(1_000_000), "--files", n(20_000)],
    "kills": lambda n, out: ["-m", "tests.torture.kills", "--kills", n(1000), "--log", str(out / "kills.jsonl")],
    "signals": lambda n, out: [
        "-m", "tests.torture.kills", "--asked", "--kills", n(210), "--log", str(out / "signals.jsonl"),
    ],
    "processes": lambda n, out: [
        "-m", "tests.torture.processes", "--points", n(10), "--log", str(out / "processes.jsonl"),
    ],
    "processes-at-random": lambda n, out: [
        "-m", "tests.torture.processes", "--kills", n(200), "--log", str(out / "at_random.jsonl"),
    ],
    "mutation": lambda n, out: [
        "-m", "tests.torture.mutation", "--mutants", n(200), "--log", str(out / "mutation.jsonl"),
    ],
    "alarms": lambda n, out: [
        "-m", "tests.torture.alarms", "--sick", n(20), "--sound", n(50), "--log", str(out / "alarms.jsonl"),
    ],
    "soak": lambda n, out: ["-m", "tests.torture.soak", "--steps", n(100_000), "--out", str(out / "soak")],
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "torture")
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    rows = []
    for name in given.only:
        words = PARTS[name](lambda count: str(max(1, int(count * given.share))), given.out)
        print(f"{name}: python {' '.join(words)}", flush=True)
        began = time.monotonic()
        with (given.out / f"{name}.txt").open("w", encoding="utf-8") as log:
            done = subprocess.run(
                [sys.executable, *words], cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT, check=False
            )
        table = [line for line in (given.out / f"{name}.txt").read_text(encoding="utf-8").splitlines() if line]
        print("\n".join(table[-25:]), flush=True)
        rows.append(
            (name, "passed" if done.returncode == 0 else f"failed ({done.returncode})", time.monotonic() - began)
        )
    print("| part | | minutes |\n|---|---|---|")
    for name, verdict, seconds in rows:
        print(f"| {name} | {verdict} | {seconds / 60:.1f} |")
    return sum(verdict != "passed" for _, verdict, _ in rows)


if __name__ == "__main__":
    raise SystemExit(main())
