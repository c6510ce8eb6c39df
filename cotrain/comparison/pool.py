"""Runs side by side: commands, so many at a time, each on one thread, all stopped when one fails or we are interrupted."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cotrain.core.errors import UserError
from cotrain.loop.run import Interrupted, stop_on_signal

POLL_SECONDS = 0.2
Job = tuple[Path, list[str]]  # the run's directory, the command


def cores() -> int:
    """Those that we may use."""
    return len(os.sched_getaffinity(0))


def work(jobs: Sequence[Job], workers: int, say: Callable[[str], None]) -> None:
    """Run commands, ``workers`` at a time. They run in sessions of their own: of a Ctrl-C in the terminal they hear from us,
    once, and have time to save where they are. What each says goes to ``RUN.log`` beside its directory.

    Raises UserError for a command that fails, Interrupted on a signal; then every run has been stopped."""
    waiting, began = list(jobs), time.monotonic()
    running: dict[subprocess.Popen[bytes], tuple[Path, BinaryIO]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def tell(folder: Path, what: str) -> None:
        say(f"[{time.monotonic() - began:6.0f} s] {folder.parent.name} {folder.name} {what}")

    with stop_on_signal() as asked, _ended_with_us(running):
        while waiting or running:
            if asked():
                raise Interrupted(asked())
            while waiting and len(running) < workers:
                folder, command = waiting.pop(0)
                folder.parent.mkdir(parents=True, exist_ok=True)
                output: BinaryIO = (folder.parent / f"{folder.name}.log").open("ab")
                process = subprocess.Popen(
                    command, stdout=output, stderr=output, env=environment, start_new_session=True
                )
                running[process] = (folder, output)
                tell(folder, "goes on" if command[3] == "resume" else "begins")
            time.sleep(POLL_SECONDS)
            for process in [p for p in running if p.poll() is not None]:
                folder, log = running.pop(process)
                log.close()
                if process.returncode != 0:
                    tail = Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                    raise UserError(
                        f"compare: {folder} ended with code {process.returncode}: {' '.join(tail)}; see {log.name}"
                    )
                tell(folder, f"is done, {len(waiting) + len(running)} to go")


@contextmanager
def _ended_with_us(running: Mapping[subprocess.Popen[bytes], tuple[Path, BinaryIO]]) -> Iterator[None]:
    """Whatever happens inside, no run goes on alone afterwards."""
    try:
        yield
    finally:
        for process, (_, opened) in running.items():
            process.terminate()
            opened.close()
        for process in running:
            process.wait()
