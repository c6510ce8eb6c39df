"""Power cuts, at every file operation of six saves: what verifies is what was saved.

    python -m tests.torture.power --states 2000

A cut may leave any part of what was not synced, in any order that the file system is allowed
(``tests/storage/test_power_loss.py`` has the model of it). Left out: disks that lie about what is durable.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.storage.test_power_loss import power_cuts


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--states", type=int, default=2000)
    given = parser.parse_args(argv)
    each, states = 4, 0
    while states < given.states:
        with tempfile.TemporaryDirectory(prefix="torture-power-") as place:
            states = power_cuts(Path(place), each=each)
        each = each * given.states // states + 1
    print(f"| states after a power cut | a wrong checkpoint that verifies |\n|---|---|\n| {states} | 0 |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
