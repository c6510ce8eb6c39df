"""User ids without an account or a process, for root to give to programs."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
from pathlib import Path

TRIES = 100  # random ranges of ids


def spare_users(count: int) -> list[int]:
    """``count`` ids in a row that this user namespace has, and that no account and no process here has. They are drawn
    at random, so that two processes which ask at the same time hardly get the same."""
    users_in_use = _taken_users()
    first, size = max(_user_ranges(), key=lambda first_and_size: first_and_size[1])
    size = min(size, 1 << 31)
    low = first + size // 2  # accounts have small ids
    high = first + size - count - 3  # the last ones are "nobody" and "unset"
    chance = random.SystemRandom()
    for _ in range(TRIES):
        start = chance.randint(low, max(low, high))
        candidates = list(range(start, start + count))
        if users_in_use.isdisjoint(candidates):
            return candidates
    raise OSError("no user number is free")


def become_user(user: int) -> None:
    """Run this process as another user for good. Root's capabilities go."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _user_ranges() -> list[tuple[int, int]]:
    """The ranges of ids in this user namespace, each as its first id and their number."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return [(0, 1 << 16)]
    ranges = []
    for line in lines:
        first, _first_outside, count = line.split()
        ranges.append((int(first), int(count)))
    return ranges


def _taken_users() -> set[int]:
    user_ids = {account.pw_uid for account in pwd.getpwall()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            user_ids.add(process.stat().st_uid)
    return user_ids
