"""The ledger of a run: every episode, step by step, in one compressed file that can be entered at any step.

``episodes.jsonl.gz`` is an ordinary gzip file of one *member* per step, one episode per line (``zcat`` reads it all).
Each member's header carries, in gzip's own "extra" field, its step, its number of episodes and its length, under a
checksum; hopping from header to header gives the index, so that there is no second file to disagree with the first.
A member cut off by a kill is a torn tail, which readers ignore and the next writer removes. Members depend on their
episodes alone (no time, no name), so a run cut back by ``truncate_after`` and resumed writes the same bytes again
(with the same zlib).

Everything round-trips exactly. Log-probabilities are the raw bits in base64: "f4:" before float32, 4 bytes per token
and hardly compressible, or "f8:" before float64 where a value is not a float32 (to decode:
``numpy.frombuffer(base64.b64decode(text[3:]), "<" + text[:2])``). ``turns`` are the spans of tokens that were sampled,
[start, end, finish], where they are not all. ``entropies`` has a character a token (``core/entropy.py``), where the
engine tells them. ``trajectory`` names the first of several traces that were paid as one. ``findings`` and ``metadata``
must be JSON; a tuple in them comes back as a list. NaN and infinities there, and in signals, are Python's JSON
literals. ``advantages``, for readers of the file, are what was learned from: objective → [advantage, tokens] over the
sampled tokens, to four digits.

Left out: columns (Parquet would be smaller still, at the price of a dependency and of ``zcat``), and quotas.
"""

from __future__ import annotations

import base64
import errno
import json
import struct
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from cotrain.core.entropy import as_text, from_text
from cotrain.core.errors import StateError, UserError
from cotrain.core.input_files import open_regular
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Reward, State, Trace, TurnRange, take_fields
from cotrain.storage.file_ops import BLOCK, REAL_FILES, DiskError, Files, make_directory, report_disk_errors, write_all
from cotrain.storage.jsonl import check_json

# -- Where the steps of a ledger lie in its file, held in 20 bytes a step: a run may have a hundred thousand.


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The place of a step in the file."""

    step: int
    start: int  # byte offset
    bytes: int
    episodes: int


class LedgerIndex:
    """Members follow each other without a gap, and steps rise."""

    def __init__(self) -> None:
        self.end = 0  # where the last whole member ends
        self._steps = array("q")
        self._starts = array("q")
        self._episodes = array("I")

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
        """The end of this step and of those before it."""
        place = bisect_right(self._steps, step)
        return self._starts[place] if place < len(self) else self.end

    def drop_after(self, step: int) -> int:
        """Forget all later steps; returns how many there were."""
        self.end = self.end_of(step)
        place = bisect_right(self._steps, step)
        dropped = len(self) - place
        for column in (self._steps, self._starts, self._episodes):
            del column[place:]
        return dropped

    def _member_at(self, place: int) -> Member:
        start = self._starts[place]
        end = self._starts[place + 1] if place + 1 < len(self) else self.end
        return Member(step=self._steps[place], start=start, bytes=end - start, episodes=self._episodes[place])


# -- Floats as text that loses no bit.


def encode_floats(values: Sequence[float]) -> str:
    """Bits in base64, little-endian: float32 where that loses nothing, float64 where it would."""
    exact = array("d", values)
    short = array("f", values)
    kind, bits = ("f4", short) if array("d", short).tobytes() == exact.tobytes() else ("f8", exact)
    if sys.byteorder == "big":
        bits.byteswap()
    return f"{kind}:{base64.b64encode(bits.tobytes()).decode('ascii')}"


def decode_floats(text: str) -> tuple[float, ...]:
    """The inverse of ``encode_floats``. Raises ValueError."""
    bits = array({"f4:": "f", "f8:": "d"}.get(text[:3], "?"))
    bits.frombytes(base64.b64decode(text[3:], validate=True))
    if sys.byteorder == "big":
        bits.byteswap()
    return tuple(bits)


NAME = "episodes.jsonl.gz"
ADVANTAGES = "advantages"  # key of a trace: objective → [advantage, tokens] in order, over the sampled tokens
Advantages = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
UNPACKED = 100  # a step may unpack to so many times its size
UNPACKED_LEAST = 1 << 26  # and to so many bytes in any case
MOST_PACKED = 1 << 29  # bytes of a step in the file, which may have a size without taking up the disk
LEVEL = 6  # 9 takes twice as long for 1 % less
ODD = (
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)  # raised by JSON of another shape
_FIXED = bytes([0x1F, 0x8B, 8, 4, 0, 0, 0, 0, 0, 255])  # gzip: deflate, has an extra field, no time, unknown system
_EXTRA = struct.Struct("<H2sHqqII")  # length of the field, its name, length of the rest: step, bytes, episodes, crc
_HEAD = len(_FIXED) + _EXTRA.size


class NotRecorded(UserError, LookupError):
    """A step or address that the ledger does not have."""

    code = "E_NOT_RECORDED"


class Ledger:
    """Reads the ledger in ``directory`` and, from the first ``append`` on, writes it. Any number of processes may read
    while one writes: each call sees the steps that are whole by then."""

    def __init__(self, directory: Path, *, files: Files = REAL_FILES) -> None:
        self.path = directory / NAME
        self._files = files
        self._index = LedgerIndex()
        self._damage: str | None = None  # why what follows is no torn tail
        self._file: FileIO | None = None
        self._scan_headers()

    def append(self, step: int, episodes: Sequence[Episode], advantages: Advantages | None = None) -> None:
        """Write one step (it survives a kill from here on, a power cut after ``sync``). ``advantages``: address of a
        trace → objective → runs of equal values.

        Raises StateError when the step does not come after the last one, or an episode is of another step or not JSON,
        and DiskError when the disk refuses; no part of the step then stays.
        """
        wrong = next((e for e in episodes if e.step != step), None)
        if wrong is not None:
            raise StateError(
                f"ledger: an episode of step {wrong.step} was given for step {step}", code="E_LEDGER_STEP_ORDER"
            )
        self._check_damage()
        last = self._index.last_step
        if last is not None and step <= last:
            raise StateError(
                f"ledger {self.path} ends with step {last}; truncate it before writing step {step}",
                code="E_LEDGER_STEP_ORDER",
            )
        member = encode_member(step, episodes, advantages)
        with report_disk_errors(f"write step {step} to {self.path}", lambda: "steps written before are safe"):
            if self._file is None:
                make_directory(self._files, self.path.parent)
                self._file = self._files.open(self.path, "ab")
            if self.path.stat().st_size > self._index.end:  # torn by a kill, or by an error that could not be undone
                self._files.truncate(self._file, self._index.end)
            try:
                write_all(self._files, self._file, member)
            except OSError:
                with suppress(OSError):
                    self._files.truncate(self._file, self._index.end)
                raise
        self._index.add(Member(step=step, start=self._index.end, bytes=len(member), episodes=len(episodes)))

    def steps(self) -> tuple[int, ...]:
        """The steps that are there, rising."""
        self._scan_headers()
        return self._index.steps

    def members(self) -> tuple[Member, ...]:
        """The index: each step with its place, size and number of episodes."""
        self._scan_headers()
        return tuple(self._index)

    def extent(self) -> tuple[int, int | None, int]:
        """How many steps there are, the last one, and the byte where it ends: what says cheaply whether the index has
        changed."""
        self._scan_headers()
        return len(self._index), self._index.last_step, self._index.end

    def read(self, step: int) -> tuple[Episode, ...]:
        """The episodes of a step, as they were appended. Raises NotRecorded, and StateError for a damaged file."""
        member = self._index.find(step)
        if member is None:
            self._scan_headers()
            member = self._index.find(step)
        if member is None:
            self._check_damage()
            raise NotRecorded(f"no step {step} in {self.path}: {self._extent_text()}")
        with report_disk_errors(f"read {self.path}"):
            packed = read_packed(self.path, member)
        return decode_member(member, packed, self.path)

    def find(self, address: Address) -> Trace:
        """One trace. Raises NotRecorded, and StateError for a damaged file."""
        for episode in self.read(address.step):
            if (episode.task, episode.member) == (address.task, address.member):
                for trace in episode.traces:
                    if trace.address == address:
                        return trace
        raise NotRecorded(f"no trace {address} in {self.path}, though step {address.step} is there")

    def truncate_after(self, step: int) -> int:
        """Drop all later steps and any torn or damaged tail; return how many whole steps went.

        Raises DiskError, and StateError when the file is damaged at or before ``step``.
        """
        self._scan_headers()
        last = self._index.last_step
        if last is None or step > last:
            self._check_damage()
        end = self._index.end_of(step)
        if self.path.exists() and self.path.stat().st_size > end:
            with report_disk_errors(f"truncate {self.path}"):
                file = self._files.open(self.path, "r+b")
                try:
                    self._files.truncate(file, end)
                    self._files.fsync(file)
                finally:
                    file.close()

        self._damage = None
        return self._index.drop_after(step)

    def sync(self) -> None:
        """Make every step so far durable; call it before the checkpoint that counts on them."""
        if self._file is not None:
            with report_disk_errors(
                f"write to {self.path}", lambda: "steps written before may not survive a power cut"
            ):
                self._files.fsync(self._file)
                self._files.sync_directory(self.path.parent)

    def close(self) -> None:
        file = self._file
        self._file = None
        if file is not None:
            file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _scan_headers(self) -> None:
        """Hop over the headers from where the last scan ended, or from the start when the file has shrunk."""
        try:
            with report_disk_errors(f"read {self.path}"):
                file = open_regular(self.path)
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
            self._index = LedgerIndex()
            self._damage = None
            return

        with report_disk_errors(f"read {self.path}"), file:
            size = file.seek(0, 2)
            if size < self._index.end:
                self._index = LedgerIndex()
            self._damage = None
            while self._index.end < size:
                file.seek(self._index.end)
                head = file.read(_HEAD)
                member = decode_head(head, self._index.end)
                last = self._index.last_step
                if member is None or (last is not None and member.step <= last):
                    if len(head) == _HEAD and any(head):  # a power cut may leave zeros, a kill leaves a beginning
                        self._damage = f"{self.path} is damaged at byte {self._index.end}: {self._extent_text()}"
                    return
                if self._index.end + member.bytes > size:
                    return
                self._index.add(member)

    def _check_damage(self) -> None:
        if self._damage:
            raise StateError(
                f"{self._damage}; what follows cannot be read, resume from a checkpoint before that",
                code="E_LEDGER_DAMAGED",
            )

    def _extent_text(self) -> str:
        steps = self._index.steps
        return f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has no step"


def encode_member(step: int, episodes: Sequence[Episode], advantages: Advantages | None = None) -> bytes:
    """One gzip member, the same bytes for the same episodes."""
    text = b"".join(_encode_line(episode, advantages or {}) for episode in episodes)
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush()
    size = _HEAD + len(body) + 8
    place = struct.pack("<qqI", step, size, len(episodes))
    extra = _EXTRA.pack(_EXTRA.size - 2, b"CT", _EXTRA.size - 6, step, size, len(episodes), zlib.crc32(place))
    return _FIXED + extra + body + struct.pack("<II", zlib.crc32(text), len(text) & 0xFFFFFFFF)


def decode_head(head: bytes, start: int) -> Member | None:
    """Read the head of a member of the ledger from its first bytes; None where they are not the beginning of one."""
    if len(head) < _HEAD or not head.startswith(_FIXED):
        return None
    length, name, rest, step, size, episodes, crc = _EXTRA.unpack(head[len(_FIXED) : _HEAD])
    if (length, name, rest) != (_EXTRA.size - 2, b"CT", _EXTRA.size - 6):
        return None
    if zlib.crc32(struct.pack("<qqI", step, size, episodes)) != crc:
        return None
    return Member(step=step, start=start, bytes=size, episodes=episodes)


def read_packed(path: Path, member: Member) -> bytes:
    """A step as it is in the file: of one of more than ``MOST_PACKED`` bytes only the beginning, which is no whole
    member. Raises OSError."""
    with open_regular(path) as file:
        file.seek(member.start)
        return file.read(min(member.bytes, MOST_PACKED))


def unpack_member(packed: bytes) -> bytes:
    """The text of a member. Raises ValueError where it is not one whole member, or unpacks to more than a ledger does:
    to ``UNPACKED`` times what was read of it, or to ``UNPACKED_LEAST`` bytes if that is more: zeros behind a member add
    nothing. zlib.error for what is no gzip."""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    text = bytearray()
    n_bytes = 0
    while n_bytes < len(packed) and not inflate.eof:
        rest = packed[n_bytes : n_bytes + BLOCK]
        n_bytes += len(rest)
        while rest and not inflate.eof:
            text += inflate.decompress(rest, BLOCK)
            rest = inflate.unconsumed_tail
            read = n_bytes - len(rest) - len(inflate.unused_data)
            most = max(UNPACKED_LEAST, UNPACKED * read)
            if len(text) > most:
                raise ValueError(f"it unpacks to more than {most} bytes, {UNPACKED} times its size")
    if not inflate.eof or inflate.unused_data or n_bytes < len(packed):
        raise ValueError("it is not the member that the index says")
    return bytes(text)


def decode_member(member: Member, packed: bytes, path: Path) -> tuple[Episode, ...]:
    """Raises StateError when the bytes do not agree with their checksum or with the index."""
    try:
        text = unpack_member(packed)
        if decode_head(packed[:_HEAD], member.start) != member:
            raise ValueError("it is not the member that the index says")
        episodes = tuple(episode_from_json(json.loads(line)) for line in text.split(b"\n")[:-1])
        if len(episodes) != member.episodes:
            raise ValueError(f"{len(episodes)} episodes, expected {member.episodes}")
    except (zlib.error, ValueError, *ODD) as error:  # a StateError is a ValueError too
        raise StateError(
            f"{path}: step {member.step} at byte {member.start} is damaged ({error})", code="E_LEDGER_DAMAGED"
        ) from error
    return episodes


# ---- episodes as JSON


def episode_to_json(episode: Episode) -> State:
    """All of an episode as JSON values."""
    return {
        "step": episode.step,
        "task": episode.task,
        "member": episode.member,
        "task_id": episode.task_id,
        "failure": episode.failure,
        "traces": [trace_to_json(trace) for trace in episode.traces],
    }


def episode_from_json(state: Mapping[str, Any]) -> Episode:
    """The inverse. Raises StateError for missing and unknown fields."""
    step, task, member, task_id, failure, traces = take_fields(
        "an episode", state, "step", "task", "member", "task_id", "failure", "traces"
    )
    return Episode(
        step=step,
        task=task,
        member=member,
        task_id=task_id,
        failure=failure,
        traces=tuple(trace_from_json(trace) for trace in traces),
    )


_ADDRESS = ("step", "task", "member", "role", "call")
PLAIN = ("role", "policy", "version", "group", "text", "finish", "failure", "findings", "metadata", "parent", "score")
_CODED = ("address", "prompt_ids", "token_ids", "logprobs", "rewards", "turns", "entropies", "trajectory")


def trace_to_json(trace: Trace) -> State:
    """All of a trace as JSON values. Raises StateError when ``findings`` or ``metadata`` is not JSON."""
    at = trace.address
    check_json(trace.findings, f"trace {at}: findings", finite=False)
    check_json(trace.metadata, f"trace {at}: metadata", finite=False)
    turns: list[list[Any]] = []
    for turn in trace.turns:
        fields: list[Any] = [turn.start, turn.end, turn.finish]
        if turn.goes_on:
            fields.append(True)
        turns.append(fields)

    state = {
        "address": [at.step, at.task, at.member, at.role, at.call, *at.path],
        **{name: getattr(trace, name) for name in PLAIN},
        "rewards": [[reward.name, reward.value, reward.tokens] for reward in trace.rewards],
        "prompt_ids": trace.prompt_ids,
        "token_ids": trace.token_ids,
        "logprobs": encode_floats(trace.logprobs),
        "turns": turns,
    }
    if trace.entropies:
        state["entropies"] = as_text(trace.entropies)
    if trace.trajectory:
        state["trajectory"] = trace.trajectory
    return state


def trace_from_json(state: Mapping[str, Any]) -> Trace:
    """The inverse of ``trace_to_json``. A field that traces did not have when the ledger was written is None, or one
    turn. Raises StateError for missing and unknown fields."""
    state = {"score": None, "turns": (), "entropies": "", "trajectory": "", **state}
    for name in ("learn_ids", ADVANTAGES):  # the first is of older ledgers; the second is for readers of the file
        state.pop(name, None)
    coded = {name: value for name, value in state.items() if name not in PLAIN}
    address, prompt_ids, token_ids, logprobs, saved_rewards, saved_turns, entropies, trajectory = take_fields(
        "a trace", coded, *_CODED
    )
    plain = take_fields("a trace", {name: value for name, value in state.items() if name in PLAIN}, *PLAIN)

    turns = []
    for start, end, finish, *goes_on in saved_turns:
        turns.append(TurnRange(start=start, end=end, finish=finish, goes_on=bool(goes_on)))
    rewards = []
    for name, value, tokens in saved_rewards:
        rewards.append(Reward(name=name, value=value, tokens=None if tokens is None else (tokens[0], tokens[1])))
    return Trace(
        address=Address(**dict(zip(_ADDRESS, address[:5], strict=True)), path=tuple(address[5:])),
        prompt_ids=tuple(prompt_ids),
        turns=tuple(turns),
        token_ids=tuple(token_ids),
        logprobs=decode_floats(logprobs),
        entropies=from_text(entropies),
        trajectory=trajectory,
        rewards=tuple(rewards),
        **dict(zip(PLAIN, plain, strict=True)),
    )


def _encode_line(episode: Episode, advantages: Advantages) -> bytes:
    row = episode_to_json(episode)
    for trace, trace_row in zip(episode.traces, row["traces"], strict=True):
        if (trace_advantages := advantages.get(str(trace.address))) is not None:
            trace_row[ADVANTAGES] = trace_advantages
    return json.dumps(row, separators=(",", ":"), check_circular=False).encode("ascii") + b"\n"
