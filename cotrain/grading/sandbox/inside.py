"""Limits that a process can set only for itself, once it runs in the sandbox of bubblewrap.

Run as ``python -m cotrain.grading.sandbox.inside CHANNEL MEMORY_BYTES MODULE:FUNCTION``.
"""

from __future__ import annotations

import importlib
import os
import sys

from cotrain.grading.sandbox import filters, limits, system


def main(channel: int, memory: int, inside: str) -> None:
    """Take the limits, then run this function of a channel."""
    module, _, function = inside.partition(":")
    run = getattr(importlib.import_module(module), function)
    limits.enter_folder(os.getcwd())
    limits.close_all_but(channel)
    limits.limit_all(memory, limits.PROCESSES + 1)  # bwrap's first process counts
    system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    filters.deny_calls(alone=False)
    run(channel)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    os._exit(0)
