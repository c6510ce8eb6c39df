"""Seconds from the start of ``cotrain run`` to the first sampled token.

    python benchmarks/first_token.py [--steps 3]

The command runs as a process of its own and stops itself at its first token. Counted from before the process exists:
starting Python, importing, loading the models, tokenizing the first prompts and their prefill.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from work import answer, side

CLOCK = time.CLOCK_MONOTONIC  # one for all processes


def stop_at_first_token(began: float, words: list[str]) -> None:
    """The command line, beside a thread that ends the process when an engine has counted a sampled token."""
    from cotrain.cli.main import main
    from cotrain.inference.local import LocalEngine

    make = LocalEngine.__init__

    def watch(engine: LocalEngine) -> None:
        while not any(count for name, count in engine.counts().items() if name.endswith("/sampled_tokens")):
            time.sleep(0.002)
        print(time.clock_gettime(CLOCK) - began, flush=True)
        os._exit(0)

    def watched(self: LocalEngine, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        threading.Thread(target=watch, args=[self], daemon=True).start()

    LocalEngine.__init__ = watched  # type: ignore[method-assign]
    sys.exit(main(words))


def main() -> None:
    given = side(__doc__.splitlines()[0], model=False).parse_args()
    seconds = []
    for _ in range(given.warmup + given.steps):
        with tempfile.TemporaryDirectory() as directory:
            words = ["run", "grpo", "--out", str(Path(directory) / "run"), "--steps", "1"]
            words += ["--threads", str(given.threads), "--device", given.device]
            began = str(time.clock_gettime(CLOCK))
            done = subprocess.run([sys.executable, __file__, began, *words], capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout.strip().splitlines()[-1]))
    seconds = sorted(seconds[given.warmup :])
    answer(seconds=seconds[len(seconds) // 2], low=seconds[0], high=seconds[-1])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        stop_at_first_token(float(sys.argv[1]), sys.argv[2:])
    main()
