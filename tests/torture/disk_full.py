"""A disk that is full: a run pauses, says so, and goes on when there is room, to the same end.

    python -m tests.torture.disk_full --sizes 100

A run is begun on a file system in memory (tmpfs) that is too small for it: of every size from next to nothing to what
the run needs, in equal steps. Once the run says that it waits, the file system grows. What it wrote at the end must be
that of a run on a disk with room, bit for bit. A start that is refused before anything was measured is begun again, as
a user would.

Each run has a mount namespace of its own, as root or in a user namespace; where the system allows neither, this says so
and ends with 2.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from cotrain.runs import out_of_room
from cotrain.runs import run as loop
from cotrain.runs.log import SilentObserver
from cotrain.storage.file_ops import DiskError
from tests.runs.test_run import CASTS, EASY, digest

CLONE_NEWNS, CLONE_NEWUSER, MS_REMOUNT, MS_PRIVATE, MS_REC = 0x20000, 0x10000000, 32, 1 << 18, 1 << 14
LARGE = 256 << 20
RUN = "grpo-oracle"
ENDS = ("same", "another digest", "refused at the start, then the same", "failed")
libc = ctypes.CDLL(None, use_errno=True)


class Grower(SilentObserver):
    """An observer that lets the file system grow when the run says that it waits."""

    def __init__(self, place: Path) -> None:
        self.place, self.paused = place, 0

    def message(self, text: str) -> None:
        if text.startswith("paused"):
            self.paused += 1
            mount(self.place, LARGE, MS_REMOUNT)


def mount(place: Path, size: int, flags: int = 0) -> None:
    if libc.mount(b"none", str(place).encode(), b"tmpfs", flags, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount a file system of {size} bytes")


def apart() -> None:
    """Let this process mount what no other one sees. Raises OSError."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
        raise OSError(ctypes.get_errno(), "no mount namespace")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)


def on(size: int, expected: str | None, place: Path, found: Path) -> int:
    """The end of one run on so many bytes (an index of ``ENDS``), and into ``found`` its digest, size and pauses."""
    apart()
    mount(place, size)
    out_of_room.PAUSE_S = 0.0
    grower, end = Grower(place), 0
    try:
        loop.start_run(CASTS[RUN](EASY), place / "run", checkpoint_every=1, observer=grower)
    except DiskError as error:
        if not error.full:
            raise
        end = 2
        mount(place, LARGE, MS_REMOUNT)
        if (place / "run" / "recipe.json").exists():
            loop.resume_run(CASTS[RUN](EASY), place / "run", observer=grower)
        else:
            loop.start_run(CASTS[RUN](EASY), place / "run", checkpoint_every=1, observer=grower)
    mine = digest(place / "run")
    used = sum(file.stat().st_blocks * 512 for file in place.rglob("*") if file.is_file())
    found.write_text(f"{mine} {used} {grower.paused}")
    return end if expected in (None, mine) else 1


def forked(size: int, expected: str | None, place: Path, found: Path) -> int:
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = on(size, expected, place, found)
        except BaseException:  # noqa: BLE001 - counted as failed
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, default=100)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="torture-disk-") as folder:
        place, found = Path(folder) / "disk", Path(folder) / "found"
        place.mkdir()
        if forked(LARGE, None, place, found):
            print("no file system can be mounted here: run this as root, or where user namespaces are allowed")
            return 2
        expected, used, _ = found.read_text().split()
        ends, pauses = Counter[str](), 0
        for n in range(given.sizes):
            size = max(1, int(used) * (n + 1) // given.sizes)
            end = forked(size, expected, place, found)
            ends[ENDS[end]] += 1
            pauses += int(found.read_text().split()[2]) > 0 if end != 3 else 0
            if end in (1, 3):
                print(f"{size} bytes: {ENDS[end]}", flush=True)
    print(f"| sizes | paused | {' | '.join(ENDS)} |\n|{'---|' * (2 + len(ENDS))}")
    print(f"| {given.sizes} | {pauses} | {' | '.join(str(ends[name]) for name in ENDS)} |")
    return 0 if not (ends["failed"] or ends["another digest"]) else 1


if __name__ == "__main__":
    sys.exit(main())
