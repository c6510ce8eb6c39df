"""Episodes of held-out problems that are kept while they are collected, so that a measurement of hours that is stopped
goes on with the same command (``storage/kept_work.py``).

Problems are collected in batches of about ``BATCH`` episodes, or as many as the caller says; of more where the members
of one problem are more. Each batch is a part of the work, unless most of it failed. Seeds are those of the problems and
members, whatever batch they are in.

Episodes are returned as their JSON gives them back, also those that were collected just now. So a measurement that went
on is the same as one that was not stopped. On another device, or with another number of threads, numbers may be rounded
otherwise; a note says so.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Sequence

from cotrain.core.types import Episode, RolloutFn, Task
from cotrain.core.verbosity import count_of
from cotrain.distributed.local import resolve_device
from cotrain.rollout.runner import RolloutRunner
from cotrain.storage.episode_json import episode_from_json, episode_to_json
from cotrain.storage.kept_work import KeptPart, KeptWork
from cotrain.trainer.checks import mostly_failed
from cotrain.trainer.evaluation import EVALUATION_STEP

BATCH = 512  # episodes that are collected, and kept, at a time, where nothing else is said


class EpisodeKeeper:
    """Collects episodes of held-out problems, batch by batch, and keeps each batch in a piece of work."""

    def __init__(
        self,
        work: KeptWork | KeptPart,
        *,
        place: str,
        say: Callable[[str], None],
        batch: int | None = None,
        step: int = EVALUATION_STEP,
    ) -> None:
        """
        Args:
            place: on what episodes are collected now, "cpu with 1 thread".
            say: is told where an earlier try collected some elsewhere.
            batch: episodes that are collected at a time.
            step: in the addresses of the episodes.
        """
        self._work = work
        self._place = place
        self._say = say
        self._batch = BATCH if batch is None else batch
        self._step = step
        self._told_places: set[str] = set()

    def count_kept(self, problems: int, *, group_size: int, what: str) -> int:
        """How many episodes of so many problems an earlier try has kept."""
        batch = self._problems_at_a_time(group_size)
        count = 0
        for start in range(0, problems, batch):
            size = min(batch, problems - start)
            if self._work.has(_part_name(what, size, start)):
                count += size * group_size
        return count

    def collect(
        self,
        runner: RolloutRunner,
        protocol: RolloutFn,
        tasks: Sequence[Task],
        *,
        split: str,
        group_size: int,
        what: str,
    ) -> tuple[Episode, ...]:
        """As ``trainer/evaluation.py: collect_at_once``, batch by batch; what is kept is not collected again."""
        problems = self._problems_at_a_time(group_size)
        episodes: list[Episode] = []
        for start in range(0, len(tasks), problems):
            batch = tasks[start : start + problems]
            part_name = _part_name(what, len(batch), start)
            if self._work.has(part_name):
                kept = self._work.value_of(part_name)
                self._tell_other_place(kept["place"])
            else:
                collected = runner.collect(
                    protocol, batch, step=self._step, split=split, group_size=group_size, first_position=start
                )
                notes = {task.id: runner.set_aside[task.id] for task in batch if task.id in runner.set_aside}
                kept = {"episodes": _pack(collected), "set_aside": notes, "place": self._place}
                if not mostly_failed(collected):
                    self._work.keep(part_name, kept)
            for task_id, note in kept["set_aside"].items():
                runner.set_aside.setdefault(task_id, note)
            episodes += _unpack(kept["episodes"])
        return tuple(episodes)

    def _problems_at_a_time(self, group_size: int) -> int:
        return max(1, self._batch // group_size)

    def _tell_other_place(self, place: str) -> None:
        """Say it, once, where kept episodes were collected on something else."""
        if place == self._place or place in self._told_places:
            return
        self._told_places.add(place)
        self._say(
            f"note: an earlier try collected its episodes on {place}, and this one goes on on {self._place}: numbers "
            "are rounded otherwise there, so here and there another token may be drawn"
        )


def place_of(device: str) -> str:
    """On what episodes are collected: "cpu with 1 thread"."""
    import torch

    return f"{resolve_device(device)} with {count_of(torch.get_num_threads(), 'thread')}"


def _part_name(what: str, problems: int, position: int) -> str:
    return f"{what}, {problems} problems from {position} on"


def _pack(episodes: Sequence[Episode]) -> str:
    """Episodes as text: their JSON, compressed."""
    text = json.dumps([episode_to_json(episode) for episode in episodes], separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"))).decode("ascii")


def _unpack(packed: str) -> list[Episode]:
    rows = json.loads(zlib.decompress(base64.b64decode(packed)))
    return [episode_from_json(row) for row in rows]
