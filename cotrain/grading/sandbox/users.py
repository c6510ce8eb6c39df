"""User ids that no other process runs as, for root to give to programs."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
from pathlib import Path

TRIES = 100


def spare_users(count: int) -> list[int]:
    """So many numbers in a row, that may be used here, and that no account, process or group has."""
    used_ids = _taken_users()
    first, size = max(_user_ranges(), key=lambda pair: pair[1])
    size = min(size, 1 << 31)
    low, high = first + size // 2, first + size - count - 3  # above accounts, below "nobody" and "unset"
    chance = random.SystemRandom()
    for _ in range(TRIES):
        start = chance.randint(low, max(low, high))
        candidates = list(range(start, start + count))
        if used_ids.isdisjoint(candidates):
            return candidates
    raise OSError("no user number is free")


def become_user(user: int) -> None:
    """For good. Root's capabilities go with it."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _user_ranges() -> list[tuple[int, int]]:
    """First and number of the users that there are in this user namespace."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return [(0, 1 << 16)]
    return [(int(line.split()[0]), int(line.split()[2])) for line in lines]


def _taken_users() -> set[int]:
    user_ids = {account.pw_uid for account in pwd.getpwall()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            user_ids.add(process.stat().st_uid)
    return user_ids
