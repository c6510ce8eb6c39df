"""A file is an essay: no source file may grow past 600 lines, and no sentence of the package is broken into pieces of
three words or fewer that go on in the next literal. Run by ``make check``."""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

LIMIT = 600
SHORT = 3  # words
PIECE = re.compile(r'f?"[^|<]*[a-z,;] "$')  # what goes on in the next literal
root = Path(__file__).resolve().parent.parent
long = [
    f"{path.relative_to(root)}: {count} lines (at most {LIMIT}: split it)"
    for folder in ("cotrain", "tests", "benchmarks", "bases")
    for path in sorted((root / folder).rglob("*.py"))
    if (count := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT
]


def broken_sentences(path: Path) -> Iterator[int]:
    """Lines with a short literal that ends in a space and goes on in the literal below."""
    before = None
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.STRING:
            if before and PIECE.match(before.string) and len(before.string.split()) - 1 <= SHORT:
                yield before.start[0]
            before = token
        elif token.type != tokenize.NL:
            before = None


broken = [
    f"{path.relative_to(root)}:{line}: a sentence is broken into short pieces; join them"
    for path in sorted((root / "cotrain").rglob("*.py"))
    for line in broken_sentences(path)
]
if broken:
    print("\n".join(broken))
print("\n".join(long) if long else f"file length: every file has at most {LIMIT} lines")
sys.exit(1 if long or broken else 0)
