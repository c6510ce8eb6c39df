"""``cotrain diff``: two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cotrain.cli.flags import Parser
from cotrain.reports.diff import changed_code_lines, code_differences, compare_runs, lines_of
from cotrain.reports.foreign import as_run_directory
from cotrain.reports.runs import open_run


def diff(words: Sequence[str]) -> int:
    """Two runs side by side: settings and code that differ, final figures, and what both wrote to one problem. Of one
    run alone: how the code that made it differs from what is on the disk now."""
    parser = Parser(prog="cotrain diff", description=diff.__doc__)
    parser.add_argument("one", metavar="A", help="a run directory, or rollouts of another trainer")
    parser.add_argument("other", metavar="B", nargs="?", help="another run, or other rollouts")
    parser.add_argument(
        "--rollout", metavar="STEP:TASK:MEMBER", help="rollout whose texts are shown (default: the last that both have)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_strictly(words)
    if args.other is None and args.rollout is not None:
        parser.error("--rollout is of two runs; name the other one")
    if args.other is None:
        with as_run_directory(Path(args.one)) as one:
            run = open_run(one)
            code = code_differences(run, run)
        print(json.dumps({"code": code}) if args.json else "\n".join(changed_code_lines(run, code)))
        return 0
    with as_run_directory(Path(args.one)) as one, as_run_directory(Path(args.other)) as other:
        comparison = compare_runs(open_run(one), open_run(other), args.rollout)
    print(json.dumps(comparison) if args.json else "\n".join(lines_of(comparison)))
    return 0
