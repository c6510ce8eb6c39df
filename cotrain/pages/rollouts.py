"""The index of a run's rollouts: one short row each, so that a hundred thousand can be filtered and sorted in a page.

The ledger is entered step by step through its own offsets, the latest step first; pages show what has been read so far.
A row is of one *speech*: a trace that judges no other one. What its judges said is told by the majority of the reviews
that can be read: a solution is a false positive when most of them call it right and it is wrong. What is counted of
each step besides is in ``counts.py``.

Left out: a search of the solutions' whole texts; problems and answers are in the rows.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError
from cotrain.core.notes import ANSWER, CALLS, CORRECT, FINAL, FIRST_WRONG, PROBLEM, STEP_OK, STEPS
from cotrain.disk.ledger import ODD, Ledger, Member
from cotrain.disk.run_files import fault_in
from cotrain.pages.counts import (
    BINS,
    COUNTS,
    Counts,
    error_of,
    first_found,
    flag,
    probability,
    steps_of,
    summed,
    votes,
)
from cotrain.pages.curves import number

FIELDS = (
    "step", "task", "member", "role", "call", "right", "said", "yes", "readable", "reviews", "flags", "reward",
    "tokens", "version",
    "problem", "answer", "signals", "error", "vote", "score",
)  # fmt: skip
UNREAD, REVIEW_UNREAD, TRUNCATED, TOOL_FAILED, LEFT_OUT, UNSOUND = 1, 2, 4, 8, 16, 32
STEP_BELIEVED, STEP_DOUBTED, FIRST_FOUND, FIRST_MISSED = 64, 128, 256, 512  # by at least one review
FINE = ("ok", "no output")  # what a call of a tool may end in
SHORT = 180  # characters of a problem and of an answer in a row
MOST_UNPACKED = 1 << 30  # bytes of a step
NOT_PAID = ("truth", "label")  # signals that name a class
Json = Mapping[str, Any]
Weights = Mapping[str, Mapping[str, float]]  # role → signal → what the recipe weighs it with


class Rollouts:
    """Rows and counts, as far as they have been read. Any thread may ask while another one reads."""

    def __init__(self, directory: Path, weights: Weights) -> None:
        self.ledger = Ledger(directory / "episodes")
        self._weights = weights
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self.rows: list[list[Any]] = []
        self.problems: list[str] = []
        self.roles: list[str] = []
        self.signals: list[str] = []
        self._places: dict[tuple[str, str], int] = {}  # (kind, text) → its place in the lists above
        self.errors: list[str] = []
        self._counts: dict[int, Counts] = {}  # by step
        self._read: dict[int, Member] = {}
        self.damaged: list[int] = []
        self.odd = 0  # episodes that are JSON of another shape
        self.episodes = 0
        self.generation = 0
        self._extent: tuple[int, int | None, int] | None = None  # of the ledger when its steps were listed
        self._due: list[Member] = []  # steps that have not been read, the latest last

    def read_some(self) -> bool:
        """Read the latest step that has not been read; False when there is none."""
        self._look()
        with self._lock:
            while self._due and self._due[-1].step in self._read:  # asked for by name meanwhile
                self._due.pop()
            due = self._due.pop() if self._due else None
        if due is not None:
            self._read_member(due)
        return due is not None

    def _look(self) -> None:
        """List the steps of the ledger where it has others than before: for ten thousand that takes 15 ms."""
        try:
            extent = self.ledger.extent()
        except CotrainError:
            return
        if extent == self._extent:
            return
        members = self.members()
        with self._lock:
            known = {member.step: member for member in members}
            if any(known.get(step) != member for step, member in self._read.items()):
                generation = self.generation + 1
                self._clear()  # a resumed run has cut its ledger back
                self.generation = generation
            self._due = [member for member in members if member.step not in self._read]
            self._extent = extent

    def read(self, steps: Sequence[int]) -> None:
        """Read these steps."""
        members = {member.step: member for member in self.members()}
        for step in steps:
            if step in members and step not in self._read:
                self._read_member(members[step])

    def _read_member(self, member: Member) -> None:
        try:
            found, odd = episodes_of(self.ledger.path, member)
        except (OSError, ValueError, zlib.error):
            found, odd = [], 0
            self.damaged.append(member.step)
        with self._lock:
            self._read[member.step] = member
            counts = self._counts.setdefault(member.step, Counts())
            first = len(self.rows)
            for episode in found:
                try:
                    self._add(episode, counts)
                except (ValueError, *ODD):  # of what a protocol noted, which has any shape
                    odd += 1
                else:
                    self.episodes += 1
            self.odd += odd
            _groups(self.rows[first:], self.roles, counts)

    def members(self) -> tuple[Member, ...]:
        """The index of the ledger; none when it cannot be read."""
        try:
            return self.ledger.members()
        except CotrainError:
            return ()

    def steps(self) -> int:
        """How many steps the ledger has; 0 when it cannot be read."""
        try:
            return self.ledger.extent()[0]
        except CotrainError:
            return 0

    def page(self, start: int, limit: int) -> dict[str, Any]:
        """Rows in the order in which they were read, from ``start`` on, and how far the reading is."""
        steps = self.steps()
        with self._lock:
            return {
                "fields": FIELDS,
                "generation": self.generation,
                "rows": self.rows[start : start + limit],
                "all": len(self.rows),
                "problems": self.problems,
                "roles": self.roles,
                "signals": self.signals,
                "errors": self.errors,
                "read": len(self._read),
                "steps": steps,
                "damaged": self.damaged[:20],
            }

    def known(self) -> tuple[list[list[Any]], list[str], int]:
        """The rows that have been read, the problems that they name, and of how many steps they are."""
        with self._lock:
            return list(self.rows), list(self.problems), len(self._read)

    def read_steps(self) -> int:
        """How many steps have been read."""
        with self._lock:
            return len(self._read)

    def judged(self, windows: int = 60) -> dict[str, Any]:
        """``judges``: judge → windows of steps with its counts, in order of steps; ``more``: windows of everything
        else."""
        with self._lock:
            steps = sorted(self._counts)
            every = max(1, -(-len(steps) // windows))
            judges: dict[str, list[dict[str, Any]]] = {}
            more = []
            for at in range(0, len(steps), every):
                some = [self._counts[step] for step in steps[at : at + every]]
                place = {"from": steps[at], "to": steps[min(at + every, len(steps)) - 1]}
                for role in sorted({key[1] for one in some for key in one.sums if key[0] == "judges"}):
                    counts = [one.sums["judges", role] for one in some if ("judges", role) in one.sums]
                    total = [sum(column) for column in zip(*counts, strict=True)]
                    bins = [total[len(COUNTS) + 3 * b : len(COUNTS) + 3 * b + 3] for b in range(BINS)]
                    judges.setdefault(role, []).append(
                        {**place, **dict(zip(COUNTS, total, strict=False)), "bins": bins}
                    )
                more.append({**place, **summed(some)})
            return {"judges": judges, "more": more}

    def find(self, step: int, task: int, member: int) -> Json | None:
        """An episode as the ledger has it; None where there is none."""
        place = next((m for m in self.members() if m.step == step), None)
        try:
            found = episodes_of(self.ledger.path, place)[0] if place else []
            return next((e for e in found if (e.get("task"), e.get("member")) == (task, member)), None)
        except (OSError, ValueError, zlib.error):
            return None

    def _place(self, kind: str, text: str) -> int:
        known: list[str] = getattr(self, kind)
        if (kind, text) not in self._places:
            self._places[kind, text] = len(known)
            known.append(text)
        return self._places[kind, text]

    def _add(self, episode: Json, counts: Counts) -> None:
        """Rows and counts of one episode; none of either where it raises."""
        traces = episode["traces"]
        rows, reviewed = [], []
        for speech in traces:
            if speech.get("parent") is None:
                address = address_of(speech)
                reviews = [t for t in traces if t.get("parent") == address]
                rows.append(self._row(episode, speech, reviews))
                reviewed.append((speech, reviews, error_of(speech)))
        self.rows += rows
        for speech, reviews, kind in reviewed:
            for review in reviews:
                counts.review(speech, review, kind)
            verdicts = [v for review in reviews if (v := flag(FINAL.name, review["parsed"])) is not None]
            if len(verdicts) > 1:
                counts.pair("one review", "another", verdicts[0], verdicts[1])

    def _row(self, episode: Json, speech: Json, reviews: Sequence[Json]) -> list[Any]:
        step, task, member, role, *call = speech["address"]
        finals = [flag(FINAL.name, review["parsed"]) for review in reviews]
        readable = [final for final in finals if final is not None]
        yes = sum(readable)
        said = None if 2 * yes == len(readable) else 2 * yes > len(readable)
        parsed, truth = speech["parsed"], speech["truth"]
        right = flag(CORRECT.name, truth)
        paid = rewards_of(speech)
        weights = self._weights.get(role)
        total = sum(v * (weights.get(n, 0.0) if weights else n not in NOT_PAID) for n, v in paid.items())
        signals = [[self._place("signals", n), round(v, 4)] for n, v in paid.items()]
        answer, kind = parsed.get(ANSWER.name), error_of(speech)
        told = [p for review in reviews if (p := probability(review)) is not None]
        score = sum(told) / len(told) if told else yes / len(readable) if readable else None
        return [
            step, task, member, self._place("roles", str(role)), ".".join(map(str, call)),
            None if right is None else int(right), None if said is None else int(said), yes, len(readable),
            len(reviews),
            _flags(episode, speech, reviews, right), round(total, 4), len(speech["token_ids"]), speech["version"],
            self._place("problems", str(parsed.get(PROBLEM.name) or episode.get("task_id", ""))[:SHORT]),
            None if answer is None else str(answer)[:SHORT], signals,
            None if kind is None else self._place("errors", kind), None,
            None if score is None else round(score, 4),
        ]  # fmt: skip


def episodes_of(path: Path, member: Member) -> tuple[list[Json], int]:
    """The episodes of one step as JSON, and how many are left out as they have another shape. Raises OSError,
    ValueError and zlib.error for a damaged step."""
    with path.open("rb") as file:
        file.seek(member.start)
        packed = file.read(member.bytes)
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    text = inflate.decompress(packed, MOST_UNPACKED)
    if not inflate.eof:
        raise ValueError(f"more than {MOST_UNPACKED} bytes, or less than all of it")
    found, lines = [], text.split(b"\n")[:-1]
    for line in lines:
        try:
            episode = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if fault_in("an episode", episode) is None:
            found.append(episode)
    return found, len(lines) - len(found)


def address_of(trace: Json) -> str:
    """``0:3:1:solver:2``, as ``str`` of an ``Address``."""
    first, call = trace["address"][:4], trace["address"][4:]
    return ":".join(map(str, [*first, ".".join(map(str, call))]))


def rewards_of(trace: Json) -> dict[str, float]:
    """signal → its value, of one for spans its mean."""
    found: dict[str, list[float]] = {}
    for name, value, _ in trace["signals"]:
        if (finite := number(value)) is not None:
            found.setdefault(str(name), []).append(finite)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _groups(rows: Sequence[list[Any]], roles: Sequence[str], counts: Counts) -> None:
    """The votes of each group of one step, written into its rows, and what is counted of groups."""
    place = {name: at for at, name in enumerate(FIELDS)}
    task, role, answer, right, said, vote, score = (
        place[name] for name in ("task", "role", "answer", "right", "said", "vote", "score")
    )
    groups: dict[tuple[int, int], list[list[Any]]] = {}
    for row in rows:
        groups.setdefault((row[task], row[role]), []).append(row)
    for (_, speaker), group in groups.items():
        counts.group(roles[speaker], [(row[score], None if row[right] is None else bool(row[right])) for row in group])
        for row, agrees in zip(group, votes([row[answer] for row in group]), strict=True):
            row[vote] = None if agrees is None else int(agrees)
            calls = {"reviews": row[said], "rule": row[right], "vote": row[vote]}
            known = {name: None if value is None else bool(value) for name, value in calls.items()}
            for one, other in (("reviews", "rule"), ("reviews", "vote"), ("vote", "rule")):
                counts.pair(one, other, known[one], known[other])


def _flags(episode: Json, speech: Json, reviews: Sequence[Json], right: bool | None) -> int:
    parsed, traces = speech["parsed"], (speech, *reviews)
    calls = parsed.get(CALLS.name)
    unread = not parsed.get(STEPS.name) and parsed.get(ANSWER.name) is None and flag(FINAL.name, parsed) is None
    ok = speech["truth"].get(STEP_OK.name)
    unsound = right is True and (speech["truth"].get(FIRST_WRONG.name) is not None or False in (ok or ()))
    steps = [pair for review in reviews for pair in steps_of(speech, review)]
    first = [first_found(speech, review) for review in reviews]
    return sum((
        UNREAD * unread,
        REVIEW_UNREAD * any(flag(FINAL.name, review["parsed"]) is None for review in reviews),
        TRUNCATED * any(trace["finish"] == "length" for trace in traces),
        TOOL_FAILED * (isinstance(calls, list) and any(call not in FINE for call in calls)),
        LEFT_OUT * bool(episode.get("failure") or any(trace["failure"] for trace in traces)),
        UNSOUND * unsound,
        STEP_BELIEVED * ((False, True) in steps),
        STEP_DOUBTED * ((True, False) in steps),
        FIRST_FOUND * (True in first),
        FIRST_MISSED * (False in first),
    ))  # fmt: skip
