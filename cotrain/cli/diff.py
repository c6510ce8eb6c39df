"""``cotrain diff``: two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cotrain.cli.flags import Parser
from cotrain.reports.diff import compare_runs, lines_of
from cotrain.reports.runs import open_run


def diff(words: Sequence[str]) -> int:
    """Two runs side by side: settings and code that differ, final figures, and what both wrote to one problem."""
    parser = Parser(prog="cotrain diff", description=diff.__doc__)
    parser.add_argument("one", metavar="A", help="a run directory")
    parser.add_argument("other", metavar="B", help="another")
    parser.add_argument("--rollout", metavar="STEP:TASK:MEMBER", help="which one (default: the last that both have)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_strictly(words)
    comparison = compare_runs(open_run(Path(args.one)), open_run(Path(args.other)), args.rollout)
    print(json.dumps(comparison) if args.json else "\n".join(lines_of(comparison)))
    return 0
