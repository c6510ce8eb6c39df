"""What a program of the user's said of answers, kept while it is asked, so that an audit that is stopped goes on with
the same command (``storage/kept_work.py``). A program may ask a server, or a person, and take hours.

An answer is known by its address and its content. Where the program says nothing, as where it failed, nothing is kept.
"""

from __future__ import annotations

import json
import time

from cotrain.core.verbosity import print_note
from cotrain.runs.foreign_files import ForeignRollout
from cotrain.storage.file_ops import DiskError, digest_of
from cotrain.storage.kept_work import KeptWork

WRITE_EVERY_S = 1.0  # seconds; to write after each answer would take a quick program longer than to answer all of them


class KeptAnswers:
    """What one program said, of which answers."""

    def __init__(self, work: KeptWork, what: str) -> None:
        """``what``: the program is asked, "truth"; so are called the parts of the work."""
        self._work = work
        self._what = what
        self._parts = 0
        self._said: dict[str, bool] = {}
        while work.has(self._next_part()):
            self._said |= work.value_of(self._next_part())
            self._parts += 1
        self._unwritten: dict[str, bool] = {}
        self._is_refused = False
        self._written_at = time.monotonic()

    def right(self, rollout: ForeignRollout) -> bool | None:
        """What an earlier try was told of an answer; None where that is nothing."""
        return self._said.get(_key_of(rollout))

    def add(self, rollout: ForeignRollout, right: bool) -> None:
        """Keep what was said of an answer, from the next time on that is written."""
        self._unwritten[_key_of(rollout)] = right
        if time.monotonic() - self._written_at > WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        """Write what was added. Where the disk refuses, a note says so, and the rest is not kept: an audit needs no
        place."""
        added, self._unwritten = self._unwritten, {}
        self._written_at = time.monotonic()
        if not added or self._is_refused:
            return
        try:
            self._work.keep(self._next_part(), added)
        except DiskError as error:
            self._is_refused = True
            print_note(f"what the program says is not kept any more: {error}")
            return
        self._parts += 1

    def _next_part(self) -> str:
        return f"{self._what} {self._parts}"


def _key_of(rollout: ForeignRollout) -> str:
    content = json.dumps([rollout.prompt, rollout.response, rollout.gold])
    return f"{rollout.address} {digest_of(content.encode()).sha256}"
