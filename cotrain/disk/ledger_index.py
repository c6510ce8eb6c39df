"""Where the steps of a ledger lie in its file, held in 20 bytes a step: a run may have a hundred thousand."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Where a step lies in the file."""

    step: int
    start: int  # byte offset
    bytes: int
    episodes: int


class LedgerIndex:
    """Members follow each other without a gap, and steps rise."""

    def __init__(self) -> None:
        self.end = 0  # where the last whole member ends
        self._steps, self._starts, self._episodes = array("q"), array("q"), array("I")

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Member]:
        return (self._member_at(i) for i in range(len(self)))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self._steps)

    @property
    def last_step(self) -> int | None:
        """The last step."""
        return self._steps[-1] if self._steps else None

    def add(self, member: Member) -> None:
        self._steps.append(member.step)
        self._starts.append(member.start)
        self._episodes.append(member.episodes)
        self.end = member.start + member.bytes

    def find(self, step: int) -> Member | None:
        place = bisect_left(self._steps, step)
        return self._member_at(place) if place < len(self) and self._steps[place] == step else None

    def end_of(self, step: int) -> int:
        """Where this step and those before it end."""
        place = bisect_right(self._steps, step)
        return self._starts[place] if place < len(self) else self.end

    def drop_after(self, step: int) -> int:
        """Forget all later steps; returns how many there were."""
        self.end, place = self.end_of(step), bisect_right(self._steps, step)
        dropped = len(self) - place
        for column in (self._steps, self._starts, self._episodes):
            del column[place:]
        return dropped

    def _member_at(self, place: int) -> Member:
        start = self._starts[place]
        end = self._starts[place + 1] if place + 1 < len(self) else self.end
        return Member(step=self._steps[place], start=start, bytes=end - start, episodes=self._episodes[place])
