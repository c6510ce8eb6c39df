"""``cotrain why``: which reward of a rollout came from what."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from cotrain.cli.flags import Parser
from cotrain.reports.foreign import as_run_directory
from cotrain.reports.runs import open_run
from cotrain.reports.why import disagreement_lines, disagreements, explain_rollout, find_rollout


def why(words: Sequence[str]) -> int:
    """Which reward of a rollout came from what: raw output, what was read, the truth, and whether it is learned
    from. Without a rollout: those on which judge and truth differ, the latest steps first."""
    parser = Parser(prog="cotrain why", description=why.__doc__)
    parser.add_argument("directory", metavar="DIR", help="a run directory, or rollouts of another trainer")
    parser.add_argument(
        "rollout",
        metavar="STEP:TASK:MEMBER",
        nargs="?",
        help="address of a rollout, or of a part of it: 12:3:0:verifier:1, with a role or a policy",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with every token")
    args = parser.parse_strictly(words)
    with as_run_directory(Path(args.directory)) as directory:
        run = open_run(directory)
        if args.rollout is None:
            rows, n_compared = disagreements(run)
            width = shutil.get_terminal_size().columns
            lines = disagreement_lines(rows, n_compared, width, own_run=not run.is_foreign)
            print(json.dumps(rows) if args.json else "\n".join(lines))
            return 0
        rollout, role = find_rollout(run, args.rollout)

    if args.json:
        print(json.dumps(rollout))
        return 0
    print("\n".join(explain_rollout(rollout, role)))
    return 0
