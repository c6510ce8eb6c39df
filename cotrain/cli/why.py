"""``cotrain why``: which reward of a rollout came from what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from cotrain.cli.flags import Parser
from cotrain.reports.runs import open_run
from cotrain.reports.why import explain_rollout, find_rollout


def why(words: Sequence[str]) -> int:
    """Which reward of a rollout came from what: raw output, what was read, the truth, and whether it is learned
    from."""
    parser = Parser(prog="cotrain why", description=why.__doc__)
    parser.add_argument("directory", metavar="DIR", help="a run directory")
    parser.add_argument(
        "rollout", metavar="STEP:TASK:MEMBER", help="or more of an address: 12:3:0:verifier:1, with a role or a policy"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with every token")
    args = parser.parse_strictly(words)
    rollout, role = find_rollout(open_run(Path(args.directory)), args.rollout)
    if args.json:
        print(json.dumps(rollout))
        return 0
    print("\n".join(explain_rollout(rollout, role)))
    return 0
