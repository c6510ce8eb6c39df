"""What runs first in the sandbox of bubblewrap: it sets the limits that a process can set only for itself, and calls
the function that runs programs.

Run as ``python -m cotrain.grading.sandbox.inside CHANNEL_FD MEMORY_BYTES MODULE:FUNCTION``.
"""

from __future__ import annotations

import importlib
import os
import sys

from cotrain.grading.sandbox import filters, limits, system


def main(channel_fd: int, memory_bytes: int, runner: str) -> None:
    """Limit this process for good, then call the function ``runner`` (MODULE:FUNCTION) with the channel."""
    module, _, function = runner.partition(":")
    run_program = getattr(importlib.import_module(module), function)
    limits.enter_folder(os.getcwd())
    limits.close_all_but(channel_fd)
    bwrap = 1  # a process of bwrap's own in the sandbox, which RLIMIT_NPROC counts with the program's
    limits.limit_all(memory_bytes, limits.PROCESSES + bwrap)
    system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
    filters.deny_calls(also_signals=False)
    run_program(channel_fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    os._exit(0)  # what the program has registered to run at the end does not run
