"""The ledger of a run: every episode, step by step, in one compressed file that can be entered at any step.

``episodes.jsonl.gz`` is an ordinary gzip file of one *member* per step, with one episode per line: ``zcat`` reads all
of it. The header of each member holds, in gzip's own "extra" field, its step, its number of episodes and its length,
under a checksum. Hopping from header to header gives the index, so no second file can disagree with the first.

A member that a kill cut off is a torn tail: readers ignore it, and the next writer removes it. The bytes of a member
depend on its episodes alone (no time, no name), so a run that is cut back by ``truncate_after`` and resumed writes the
same bytes again, with the same zlib. How an episode is written: ``episode_json.py``.

Left out: columns (Parquet would be smaller still, at the price of a dependency and of ``zcat``), and quotas.
"""

from __future__ import annotations

import errno
import json
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from cotrain.core.errors import StateError, UserError
from cotrain.core.input_files import open_regular
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Trace
from cotrain.storage.episode_json import ADVANTAGES, Advantages, episode_from_json, episode_to_json
from cotrain.storage.file_ops import (
    BLOCK,
    REAL_FILES,
    DiskError,
    Files,
    make_directory,
    report_disk_errors,
    sync_appended,
    write_all,
)

NAME = "episodes.jsonl.gz"
COMPRESSION = 6  # zlib's level; 9 takes twice as long for 1 % less

# What a reader takes of a damaged or hostile file.
MAX_STEP_BYTES = 1 << 29  # of a step in the file, which may have a size without taking up the disk
MAX_EXPANSION = 100  # a step may unpack to so many times its bytes,
MIN_UNPACKED_LIMIT = 1 << 26  # and to so many bytes in any case

WRONG_SHAPE_ERRORS = (  # raised by code that reads JSON of another shape than it expects
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)


# -- Where each step lies in the file, in 20 bytes a step: a run may have a hundred thousand.


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The place of a step in the file."""

    step: int
    start: int  # byte offset
    bytes: int
    episodes: int


class LedgerIndex:
    """The members of a ledger. They follow each other without a gap, and their steps rise."""

    def __init__(self) -> None:
        self.end = 0  # where the last whole member ends
        self._steps = array("q")  # whole numbers of 8 bytes
        self._starts = array("q")
        self._episodes = array("I")  # of 4 bytes

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Member]:
        return (self._member_at(i) for i in range(len(self)))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self._steps)

    @property
    def last_step(self) -> int | None:
        return self._steps[-1] if self._steps else None

    def add(self, member: Member) -> None:
        self._steps.append(member.step)
        self._starts.append(member.start)
        self._episodes.append(member.episodes)
        self.end = member.start + member.bytes

    def find(self, step: int) -> Member | None:
        place = bisect_left(self._steps, step)
        is_there = place < len(self) and self._steps[place] == step
        return self._member_at(place) if is_there else None

    def end_of(self, step: int) -> int:
        """The byte at which this step and all before it end."""
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


# -- The file.


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
        self._damage: str | None = None  # what is wrong behind the last step, where that is more than a torn tail
        self._file: FileIO | None = None
        self._scan_headers()

    def append(self, step: int, episodes: Sequence[Episode], advantages: Advantages | None = None) -> None:
        """Write one step. It survives a kill from here on, and a power cut after ``sync``.

        Raises StateError when the step does not come after the last one, or an episode is of another step or not JSON,
        and DiskError when the disk refuses; no part of the step then stays.
        """
        for episode in episodes:
            if episode.step != step:
                raise StateError(
                    f"ledger: an episode of step {episode.step} was given for step {step}", code="E_LEDGER_STEP_ORDER"
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
            if self.path.stat().st_size > self._index.end:  # a torn tail: of a kill, or of an append that failed
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
        """The number of steps, the last one, and the byte where it ends. Whoever follows a ledger compares these to see
        whether it has grown."""
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
            sync_appended(self._files, self._file, self.path, "steps")

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
        """Bring the index up to date: hop over the headers from where the last scan ended, or from the start when the
        file has shrunk."""
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
                member = self._read_header(file)
                if member is None or self._index.end + member.bytes > size:
                    return  # a torn tail, or damage
                self._index.add(member)

    def _read_header(self, file: BinaryIO) -> Member | None:
        """The member that begins where the index ends; None where no later step begins there. Notes the damage, where
        it is some."""
        start = self._index.end
        file.seek(start)
        head = file.read(HEADER_BYTES)
        member = decode_head(head, start)
        last = self._index.last_step
        if member is not None and (last is None or member.step > last):
            return member

        # A kill leaves the beginning of a header, a power cut may leave zeros. Anything else is damage.
        is_torn = len(head) < HEADER_BYTES or not any(head)
        if not is_torn:
            self._damage = f"{self.path} is damaged at byte {start}: {self._extent_text()}"
        return None

    def _check_damage(self) -> None:
        if self._damage:
            raise StateError(
                f"{self._damage}; what follows cannot be read, resume from a checkpoint before that",
                code="E_LEDGER_DAMAGED",
            )

    def _extent_text(self) -> str:
        steps = self._index.steps
        return f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has no step"


# -- A member: gzip's ten bytes, the extra field, the compressed lines, and gzip's checksum and length of these.


GZIP_START = bytes([0x1F, 0x8B, 8, 4, 0, 0, 0, 0, 0, 255])  # deflate, with an extra field, no time, unknown system
_EXTRA = struct.Struct("<H2sHqqII")  # bytes of the field, its name, bytes of its content: step, bytes, episodes, crc
_PLACE = struct.Struct("<qqI")  # step, bytes of the member, episodes: what the checksum is of
EXTRA_NAME = b"CT"
EXTRA_BYTES = _EXTRA.size - 2  # all behind the first number
CONTENT_BYTES = _EXTRA.size - 6  # all behind the name and the second number
HEADER_BYTES = len(GZIP_START) + _EXTRA.size
_END = struct.Struct("<II")  # checksum and length of the text


def encode_member(step: int, episodes: Sequence[Episode], advantages: Advantages | None = None) -> bytes:
    """One gzip member, the same bytes for the same episodes."""
    text = b"".join(_encode_line(episode, advantages or {}) for episode in episodes)
    deflate = zlib.compressobj(COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush()
    size = HEADER_BYTES + len(body) + _END.size
    checksum = zlib.crc32(_PLACE.pack(step, size, len(episodes)))
    extra = _EXTRA.pack(EXTRA_BYTES, EXTRA_NAME, CONTENT_BYTES, step, size, len(episodes), checksum)
    return GZIP_START + extra + body + _END.pack(zlib.crc32(text), len(text) & 0xFFFFFFFF)


def _encode_line(episode: Episode, advantages: Advantages) -> bytes:
    row = episode_to_json(episode)
    for trace, trace_row in zip(episode.traces, row["traces"], strict=True):
        trace_advantages = advantages.get(str(trace.address))
        if trace_advantages is not None:
            trace_row[ADVANTAGES] = trace_advantages
    return json.dumps(row, separators=(",", ":"), check_circular=False).encode("ascii") + b"\n"


def decode_head(head: bytes, start: int) -> Member | None:
    """The member whose first bytes these are; None where they are not the beginning of one. ``start``: its place."""
    if len(head) < HEADER_BYTES or not head.startswith(GZIP_START):
        return None
    extra = head[len(GZIP_START) : HEADER_BYTES]
    extra_bytes, name, content_bytes, step, size, episodes, checksum = _EXTRA.unpack(extra)
    if (extra_bytes, name, content_bytes) != (EXTRA_BYTES, EXTRA_NAME, CONTENT_BYTES):
        return None
    if zlib.crc32(_PLACE.pack(step, size, episodes)) != checksum:
        return None
    return Member(step=step, start=start, bytes=size, episodes=episodes)


def read_packed(path: Path, member: Member) -> bytes:
    """The bytes of a step in the file, at most ``MAX_STEP_BYTES`` of them: ``unpack_member`` refuses the beginning of a
    longer one. Raises OSError."""
    with open_regular(path) as file:
        file.seek(member.start)
        return file.read(min(member.bytes, MAX_STEP_BYTES))


def unpack_member(packed: bytes) -> bytes:
    """The text of a member. Raises ValueError where it is not one whole member, or unpacks to more than a ledger does;
    zlib.error for what is no gzip."""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    text = bytearray()
    n_given = 0  # bytes that were handed to zlib
    while n_given < len(packed) and not inflate.eof:
        rest = packed[n_given : n_given + BLOCK]
        n_given += len(rest)
        while rest and not inflate.eof:  # a block may unpack to many
            text += inflate.decompress(rest, BLOCK)
            rest = inflate.unconsumed_tail
            n_read = n_given - len(rest) - len(inflate.unused_data)  # zeros behind a member allow no more text
            limit = max(MIN_UNPACKED_LIMIT, MAX_EXPANSION * n_read)
            if len(text) > limit:
                raise ValueError(f"it unpacks to more than {limit} bytes, {MAX_EXPANSION} times its size")
    is_one_member = inflate.eof and not inflate.unused_data and n_given == len(packed)
    if not is_one_member:
        raise ValueError("it is not the member that the index says")
    return bytes(text)


def decode_member(member: Member, packed: bytes, path: Path) -> tuple[Episode, ...]:
    """The episodes of a member. Raises StateError when the bytes do not agree with their checksum or with the index."""
    try:
        text = unpack_member(packed)
        if decode_head(packed[:HEADER_BYTES], member.start) != member:
            raise ValueError("it is not the member that the index says")
        *lines, _ = text.split(b"\n")  # behind the last newline is nothing
        episodes = tuple(episode_from_json(json.loads(line)) for line in lines)
        if len(episodes) != member.episodes:
            raise ValueError(f"{len(episodes)} episodes, expected {member.episodes}")
    except (zlib.error, ValueError, *WRONG_SHAPE_ERRORS) as error:  # a StateError is a ValueError too
        raise StateError(
            f"{path}: step {member.step} at byte {member.start} is damaged ({error})", code="E_LEDGER_DAMAGED"
        ) from error
    return episodes
