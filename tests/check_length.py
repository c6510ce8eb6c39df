"""A file is an essay: no source file may grow past 600 lines. Run by ``make check``."""

import sys
from pathlib import Path

LIMIT = 600
root = Path(__file__).resolve().parent.parent
long = [
    f"{path.relative_to(root)}: {count} lines (at most {LIMIT}: split it)"
    for folder in ("cotrain", "tests", "benchmarks", "bases")
    for path in sorted((root / folder).rglob("*.py"))
    if (count := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT
]
print("\n".join(long) if long else f"file length: every file has at most {LIMIT} lines")
sys.exit(1 if long else 0)
