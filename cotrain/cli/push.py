"""``cotrain push``: a policy of a run, to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cotrain.cli.common import load_libraries
from cotrain.cli.flags import Parser, add_trust_flag
from cotrain.core.verbosity import print_progress
from cotrain.storage.schemas import check_path


def push(words: Sequence[str]) -> int:
    """``cotrain push``."""
    parser = Parser(prog="cotrain push", description="Export a policy of a run to the Hugging Face Hub.")
    parser.add_argument("directory", metavar="RUN", help="a run directory")
    parser.add_argument("--role", required=True, help="a role or a policy: solver, generator, policy/start …")
    parser.add_argument(
        "--repo", required=True, metavar="OWNER/NAME", help="the repository of the Hub, made where there is none"
    )
    parser.add_argument("--private", action="store_true", help="make a repository that only you can see")
    add_trust_flag(parser)
    arguments = parser.parse_strictly(words)
    check_path(Path(arguments.directory))
    load_libraries()
    from cotrain.serving.push import push_policy

    place = push_policy(
        arguments.directory, arguments.role, arguments.repo, private=arguments.private, say=print_progress
    )
    print(f"pushed to {place}")
    return 0
