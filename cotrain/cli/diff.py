"""``cotrain diff``: two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cotrain.cli.flags import Parser
from cotrain.reports.diff import compare_runs, lines_of
from cotrain.reports.foreign import as_run_directory
from cotrain.reports.runs import open_run


def diff(words: Sequence[str]) -> int:
    """Two runs side by side: settings and code that differ, final figures, and what both wrote to one problem."""
    parser = Parser(prog="cotrain diff", description=diff.__doc__)
    parser.add_argument("one", metavar="A", help="a run directory, or rollouts of another trainer")
    parser.add_argument("other", metavar="B", help="another")
    parser.add_argument("--rollout", metavar="STEP:TASK:MEMBER", help="which one (default: the last that both have)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_strictly(words)
    with as_run_directory(Path(args.one)) as one, as_run_directory(Path(args.other)) as other:
        comparison = compare_runs(open_run(one), open_run(other), args.rollout)
    print(json.dumps(comparison) if args.json else "\n".join(lines_of(comparison)))
    return 0
