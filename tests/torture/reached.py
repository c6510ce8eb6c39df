"""Which tests run a line: all of them once under coverage, which notes the test at each line (``contexts.py``)."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 40.0  # of tests for one line, by how long they took; at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What the tests run without a fault."""

    lines: dict[str, dict[int, list[str]]]  # file → line → tests
    seconds: dict[str, float]  # of each test

    def tests(self, file: str, number: int) -> list[str]:
        """The fastest tests that run the line."""
        found, spent = list[str](), 0.0
        for test in sorted(self.lines.get(file, {}).get(number, ()), key=lambda t: (self.seconds[t], t)):
            spent += self.seconds[test]
            if found and spent > BUDGET_S:
                break
            found.append(test)
        return found


def reached(cache: Path) -> Reached:
    """Of this source; found once and kept in ``cache``."""
    digest = hashlib.sha256()
    for file in sorted([*(ROOT / "cotrain").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        digest.update(file.read_bytes())
    kept = cache / f"reached-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        lines, seconds = _measure(cache)
        kept.write_text(json.dumps([lines, seconds]), encoding="utf-8")
    lines, seconds = json.loads(kept.read_text(encoding="utf-8"))
    return Reached(lines={f: {int(n): t for n, t in found.items()} for f, found in lines.items()}, seconds=seconds)


def _measure(cache: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    from coverage.numbits import numbits_to_nums  # here, since tests that only make mutants import this file too

    data, settings, durations = cache / "coverage", cache / "coveragerc", cache / "durations.json"
    settings.write_text(f"[run]\nsource = cotrain\ndata_file = {data}\n", encoding="utf-8")
    words = ["-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p", "tests.torture.contexts"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "COTRAIN_TEST_DURATIONS": str(durations)}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the tests fail without any fault:\n{done.stdout[-2000:]}")
    found: dict[str, dict[int, list[str]]] = {}
    with sqlite3.connect(data) as base:
        rows = base.execute(
            "select file.path, context.context, line_bits.numbits from line_bits join file on file.id = "
            "line_bits.file_id join context on context.id = line_bits.context_id"
        )
        for path, context, bits in rows:
            if not context:
                continue
            lines = found.setdefault(str(Path(path).relative_to(ROOT)), {})
            for line in numbits_to_nums(bits):
                lines.setdefault(line, []).append(context)
    return found, json.loads(durations.read_text(encoding="utf-8"))
