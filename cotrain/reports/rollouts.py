"""The index of a run's rollouts: one short row each, so that a hundred thousand can be filtered and sorted in a page.

The ledger is read step by step, the latest step first; pages show what has been read so far. A row is of one *speech*:
a trajectory that is no review, whatever number of training sequences it has. The verdict on it is that of most of its
readable reviews: a wrong solution is a false positive when most of them call it right. ``counts.py`` has further counts
of each step.

Left out: a search of the solutions' whole texts; problems and answers are in the rows.
"""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError
from cotrain.core.notes import ANSWER, CALLS, CORRECT, FAILURE, FINAL, FIRST_WRONG, PROBLEM, STEP_OK
from cotrain.reports.counts import (
    COUNTS,
    RolloutCounts,
    bool_or_none,
    finds_first_error,
    first_error_reason,
    review_probability,
    step_verdict_pairs,
    sum_rollout_counts,
    vote_agreement,
)
from cotrain.reports.curves import finite_number
from cotrain.storage.ledger import WRONG_SHAPE_ERRORS, Ledger, Member, read_packed, unpack_member
from cotrain.storage.schemas import fault_in

FIELDS = (
    "step", "task", "member", "role", "call", "right", "said", "yes", "readable", "reviews", "flags", "reward",
    "tokens", "version",
    "problem", "answer", "rewards", "error", "vote", "score",
)  # fmt: skip
# Bits of "flags". The last four are set if at least one review did so.
UNREAD = 1  # the speech could not be parsed
REVIEW_UNREAD = 2
TRUNCATED = 4  # the speech, or a review of it
TOOL_FAILED = 8
LEFT_OUT = 16  # of training, because something failed
UNSOUND = 32  # a right answer with a wrong step
STEP_BELIEVED = 64  # a wrong step was called right
STEP_DOUBTED = 128  # a right step was called wrong
FIRST_FOUND = 256  # the first wrong step was found
FIRST_MISSED = 512
TOOL_SUCCEEDED = ("ok", "no output")  # results of a call of a tool; all others are failures
SHORT = 180  # most characters of a problem and of an answer in a row
NOT_PAID = ("class_label", "label")  # signals that are class labels, and no rewards
Json = Mapping[str, Any]
Weights = Mapping[str, Mapping[str, float]]  # role → signal → what the recipe weighs it with


class Rollouts:
    """Rows and counts, as far as they have been read. Any thread may ask while another one reads."""

    generation: int  # how many times reading has begun again; a page then drops its rows

    def __init__(self, directory: Path, weights: Weights) -> None:
        self.ledger = Ledger(directory / "episodes")
        self._weights = weights
        self._lock = threading.Lock()
        self._clear()

    def weigh_by(self, weights: Weights) -> None:
        """Use these weights for the rewards in rows. If they are others than before, everything is read again."""
        with self._lock:
            if weights != self._weights:
                self._weights = weights
                self._begin_again()

    def _begin_again(self) -> None:
        generation = self.generation + 1
        self._clear()
        self.generation = generation

    def _clear(self) -> None:
        self.rows: list[list[Any]] = []
        self.problems: list[str] = []
        self.roles: list[str] = []
        self.signals: list[str] = []
        self._places: dict[tuple[str, str], int] = {}  # (kind, text) → its place in the lists above
        self.errors: list[str] = []
        self._counts: dict[int, RolloutCounts] = {}  # by step
        self._read: dict[int, Member] = {}  # by step: what has been read
        self.damaged: list[int] = []  # steps that could not be read
        self.odd = 0  # episodes that are JSON of another shape
        self.episodes = 0
        self.generation = 0
        self._extent: tuple[int, int | None, int] | None = None  # extent of the ledger when its steps were listed
        self._due: list[Member] = []  # steps that have not been read, the latest last

    def read_some(self) -> bool:
        """Read the latest step that has not been read; False when there is none."""
        self._list_steps()
        with self._lock:
            while self._due and self._due[-1].step in self._read:  # asked for by name meanwhile
                self._due.pop()
            due = self._due.pop() if self._due else None
        if due is not None:
            self._read_member(due)
        return due is not None

    def _list_steps(self) -> None:
        """List the steps of the ledger, if it has changed: ten thousand take 15 ms."""
        try:
            extent = self.ledger.extent()
        except CotrainError:
            return
        if extent == self._extent:
            return
        members = self.members()
        with self._lock:
            members_by_step = {member.step: member for member in members}
            if any(members_by_step.get(step) != member for step, member in self._read.items()):
                self._begin_again()  # a resumed run has cut its ledger back
            self._due = [member for member in members if member.step not in self._read]
            self._extent = extent

    def load_steps(self, steps: Sequence[int]) -> None:
        """Read these steps."""
        members = {member.step: member for member in self.members()}
        for step in steps:
            if step in members and step not in self._read:
                self._read_member(members[step])

    def _read_member(self, member: Member) -> None:
        try:
            episodes, odd = read_episodes(self.ledger.path, member)
        except (OSError, ValueError, zlib.error):
            episodes = []
            odd = 0
            self.damaged.append(member.step)

        with self._lock:
            self._read[member.step] = member
            counts = self._counts.setdefault(member.step, RolloutCounts())
            first = len(self.rows)
            for episode in episodes:
                try:
                    self._add_episode(episode, counts)
                except (ValueError, *WRONG_SHAPE_ERRORS):  # in what a protocol noted, which has any shape
                    odd += 1
                else:
                    self.episodes += 1
            self.odd += odd
            _count_groups(self.rows[first:], self.roles, counts)

    def members(self) -> tuple[Member, ...]:
        """The index of the ledger; none when it cannot be read."""
        try:
            return self.ledger.members()
        except CotrainError:
            return ()

    def step_count(self) -> int:
        """How many steps the ledger has; 0 when it cannot be read."""
        try:
            return self.ledger.extent()[0]
        except CotrainError:
            return 0

    def rows_page(self, start: int, limit: int) -> dict[str, Any]:
        """Rows in the order in which they were read, from ``start`` on, and how far the reading is."""
        steps = self.step_count()
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

    def known_rows(self) -> tuple[list[list[Any]], list[str], int]:
        """The rows that have been read, the problems that they name, and of how many steps they are."""
        with self._lock:
            return list(self.rows), list(self.problems), len(self._read)

    def read_step_count(self) -> int:
        """How many steps have been read."""
        with self._lock:
            return len(self._read)

    def verdict_counts(self, windows: int = 60) -> dict[str, Any]:
        """``judges``: judge → windows of consecutive steps, each with its counts. ``more``: windows with all other
        counts."""
        with self._lock:
            steps = sorted(self._counts)
            every = max(1, math.ceil(len(steps) / windows))
            judges: dict[str, list[dict[str, Any]]] = {}
            more = []
            for start in range(0, len(steps), every):
                steps_in_window = steps[start : start + every]
                window_counts = [self._counts[step] for step in steps_in_window]
                window = {"from": steps_in_window[0], "to": steps_in_window[-1]}
                counts_by_role: dict[str, list[list[float]]] = {}
                for counts in window_counts:
                    for key, numbers in counts.sums.items():
                        if key[0] == "judges":
                            counts_by_role.setdefault(key[1], []).append(numbers)
                for role, all_numbers in sorted(counts_by_role.items()):
                    total = [sum(column) for column in zip(*all_numbers, strict=True)]
                    by_name = dict(zip(COUNTS, total, strict=False))  # the rest of ``total`` are the bins
                    bins = [total[start : start + 3] for start in range(len(COUNTS), len(total), 3)]
                    judges.setdefault(role, []).append({**window, **by_name, "bins": bins})
                more.append({**window, **sum_rollout_counts(window_counts)})
            return {"judges": judges, "more": more}

    def find_episode(self, step: int, task: int, member: int) -> Json | None:
        """An episode as the ledger has it; None where there is none."""
        for episode in self._episodes_of(step):
            if (episode.get("task"), episode.get("member")) == (task, member):
                return episode
        return None

    def tasks_of(self, step: int) -> list[int]:
        """The positions of the tasks that a step sampled."""
        tasks = {episode.get("task") for episode in self._episodes_of(step)}
        return sorted(task for task in tasks if isinstance(task, int))

    def _episodes_of(self, step: int) -> list[Json]:
        """The episodes of a step; none where they cannot be read."""
        place = next((member for member in self.members() if member.step == step), None)
        if place is None:
            return []
        try:
            return read_episodes(self.ledger.path, place)[0]
        except (OSError, ValueError, zlib.error):
            return []

    def _intern_text(self, kind: str, text: str) -> int:
        """The index of a text in the list of this name, such as "problems"; it is added if it is new."""
        texts: list[str] = getattr(self, kind)
        if (kind, text) not in self._places:
            self._places[kind, text] = len(texts)
            texts.append(text)
        return self._places[kind, text]

    def _add_episode(self, episode: Json, counts: RolloutCounts) -> None:
        """Add the rows and counts of one episode. If it raises, none have been added."""
        traces = join_trajectories(episode["traces"])
        rows = []
        reviewed = []
        for speech in traces:
            if speech.get("parent") is None:
                address = address_text(speech)
                reviews = [t for t in traces if t.get("parent") == address]
                rows.append(self._speech_row(episode, speech, reviews))
                reviewed.append((speech, reviews, first_error_reason(speech)))

        self.rows += rows
        for speech, reviews, kind in reviewed:
            verdicts = []
            for review in reviews:
                counts.count_review(speech, review, kind)
                verdict = bool_or_none(FINAL.name, review["findings"])
                if verdict is not None:
                    verdicts.append(verdict)
            if len(verdicts) > 1:
                counts.count_pair("one review", "another", verdicts[0], verdicts[1])

    def _speech_row(self, episode: Json, speech: Json, reviews: Sequence[Json]) -> list[Any]:
        step, task, member, role, *call = speech["address"]
        finals = [bool_or_none(FINAL.name, review["findings"]) for review in reviews]
        readable = [final for final in finals if final is not None]
        yes = sum(readable)
        is_tie = 2 * yes == len(readable)  # also without any readable review
        verdict = None if is_tie else 2 * yes > len(readable)
        parsed = speech["findings"]
        truth = speech["metadata"]
        right = bool_or_none(CORRECT.name, truth)
        rewards = mean_rewards(speech)
        weights = self._weights.get(role)
        total = 0.0
        for name, value in rewards.items():
            if weights:
                total += value * weights.get(name, 0.0)
            elif name not in NOT_PAID:
                total += value

        paid = [[self._intern_text("signals", n), round(v, 4)] for n, v in rewards.items()]
        answer = parsed.get(ANSWER.name)
        kind = first_error_reason(speech)
        all_probabilities = [review_probability(review) for review in reviews]
        probabilities = [probability for probability in all_probabilities if probability is not None]
        score = None
        if probabilities:
            score = sum(probabilities) / len(probabilities)
        elif readable:
            score = yes / len(readable)
        return [
            step, task, member, self._intern_text("roles", str(role)), ".".join(map(str, call)),
            None if right is None else int(right), None if verdict is None else int(verdict), yes, len(readable),
            len(reviews),
            _row_flags(episode, speech, reviews, right), round(total, 4), len(speech["token_ids"]), speech["version"],
            self._intern_text("problems", str(parsed.get(PROBLEM.name) or episode.get("task_id", ""))[:SHORT]),
            None if answer is None else str(answer)[:SHORT], paid,
            None if kind is None else self._intern_text("errors", kind), None,
            None if score is None else round(score, 4),
        ]  # fmt: skip


def read_episodes(path: Path, member: Member) -> tuple[list[Json], int]:
    """The episodes of one step as JSON, and how many are left out as they have another shape. Raises OSError,
    ValueError and zlib.error for a damaged step."""
    episodes = []
    lines = unpack_member(read_packed(path, member)).split(b"\n")[:-1]
    for line in lines:
        try:
            episode = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if fault_in("an episode", episode) is None:
            episodes.append(episode)
    return episodes, len(lines) - len(episodes)


def address_text(trace: Json) -> str:
    """``0:3:1:solver:2``, as ``str`` of an ``Address``."""
    first = trace["address"][:4]
    call = trace["address"][4:]
    return ":".join(map(str, [*first, ".".join(map(str, call))]))


def join_trajectories(traces: Sequence[Json]) -> Sequence[Json]:
    """One trace for each trajectory, as ``metrics/heldout.py: trajectories_in`` has them. A reward of the whole
    trajectory counts once; of findings and metadata the last count."""
    if not any(trace.get("trajectory") for trace in traces):
        return traces
    parts: dict[str, list[Json]] = {}
    trajectory_of: dict[str, str] = {}  # by address of a trace
    for trace in traces:
        address = address_text(trace)
        trajectory_of[address] = str(trace.get("trajectory") or address)
        parts.setdefault(trajectory_of[address], []).append(trace)
    joined = []
    for speech in map(_join_speech, parts.values()):
        parent = speech.get("parent")
        joined.append({**speech, "parent": trajectory_of.get(str(parent), parent)})
    return joined


def _join_speech(parts: Sequence[Json]) -> Json:
    """The traces of one trajectory as one trace."""
    if len(parts) == 1:
        return parts[0]
    rewards: list[Any] = []
    for part in parts:
        counted = {name for name, _, span in rewards if span is None}  # rewards of the whole trajectory
        for name, value, span in part["rewards"]:
            if span is not None or name not in counted:
                rewards.append([name, value, span])
    return {
        **parts[0],
        "rewards": rewards,
        "token_ids": [token for part in parts for token in part["token_ids"]],
        "findings": {name: value for part in parts for name, value in part["findings"].items()},
        "metadata": {name: value for part in parts for name, value in part["metadata"].items()},
        "finish": parts[-1]["finish"],
        "failure": next((part["failure"] for part in parts if part.get("failure")), None),
    }


def mean_rewards(trace: Json) -> dict[str, float]:
    """signal → its value, or the mean of its values if it is paid for spans."""
    values_by_signal: dict[str, list[float]] = {}
    for name, value, _ in trace["rewards"]:
        number = finite_number(value)
        if number is not None:
            values_by_signal.setdefault(str(name), []).append(number)
    return {name: sum(values) / len(values) for name, values in values_by_signal.items()}


def _count_groups(rows: Sequence[list[Any]], roles: Sequence[str], counts: RolloutCounts) -> None:
    """Count each group of one step, and write into its rows whether they agree with the vote."""
    column = {name: index for index, name in enumerate(FIELDS)}
    groups: dict[tuple[int, int], list[list[Any]]] = {}
    for row in rows:
        groups.setdefault((row[column["task"]], row[column["role"]]), []).append(row)
    for (_, speaker), group in groups.items():
        scored = [(row[column["score"]], _bool_or_unknown(row[column["right"]])) for row in group]
        counts.count_group(roles[speaker], scored)
        agreements = vote_agreement([row[column["answer"]] for row in group])
        for row, agrees in zip(group, agreements, strict=True):
            row[column["vote"]] = None if agrees is None else int(agrees)
            said = _bool_or_unknown(row[column["said"]])
            right = _bool_or_unknown(row[column["right"]])
            counts.count_pair("reviews", "rule", said, right)
            counts.count_pair("reviews", "vote", said, agrees)
            counts.count_pair("vote", "rule", agrees, right)


def _bool_or_unknown(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _row_flags(episode: Json, speech: Json, reviews: Sequence[Json], right: bool | None) -> int:
    """The flags of a row, as the bits of one number."""
    parsed = speech["findings"]
    traces = (speech, *reviews)
    calls = parsed.get(CALLS.name)
    step_truths = speech["metadata"].get(STEP_OK.name) or ()
    has_wrong_step = speech["metadata"].get(FIRST_WRONG.name) is not None or False in step_truths
    unsound = right is True and has_wrong_step
    steps: list[tuple[bool, bool]] = []  # (truth, verdict)
    for review in reviews:
        steps += step_verdict_pairs(speech, review)
    first = [finds_first_error(speech, review) for review in reviews]
    return sum((
        UNREAD * (parsed.get(FAILURE.name) is not None),
        REVIEW_UNREAD * any(bool_or_none(FINAL.name, review["findings"]) is None for review in reviews),
        TRUNCATED * any(trace["finish"] == "length" for trace in traces),
        TOOL_FAILED * (isinstance(calls, list) and any(call not in TOOL_SUCCEEDED for call in calls)),
        LEFT_OUT * bool(episode.get("failure") or any(trace["failure"] for trace in traces)),
        UNSOUND * unsound,
        STEP_BELIEVED * ((False, True) in steps),
        STEP_DOUBTED * ((True, False) in steps),
        FIRST_FOUND * (True in first),
        FIRST_MISSED * (False in first),
    ))  # fmt: skip
