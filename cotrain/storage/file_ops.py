"""File operations as one small object, so that a test can make the n-th of them fail.

Everything under ``cotrain.storage`` that changes the disk goes through a ``Files``. The one here does the real thing; a
test hands in a subclass that kills the process, answers "no space left" or writes half a block at operation n, for
every n (the method by which SQLite is tested). Handles are unbuffered: one ``write`` is one system call, and what it
returns may be less than what it was given.

Left out: buffering and any portability beyond POSIX (directories must be openable and fsync-able).
"""

from __future__ import annotations

import errno as codes
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from cotrain.core.errors import UserError
from cotrain.core.input_files import open_regular

BLOCK = 1 << 22  # bytes written or read at a time
FULL = (codes.ENOSPC, codes.EDQUOT)


class DiskError(UserError, OSError):
    """The disk refused. ``full`` says whether room is what is missing, so that a caller can wait and try again."""

    code = "E_DISK"

    def __init__(self, message: str, errno: int | None = None, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.errno = errno

    def __reduce__(self) -> tuple[type[DiskError], tuple[str, int | None], dict[str, str]]:
        return (type(self), (str(self), self.errno), {"code": self.code})

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def full(self) -> bool:
        return self.errno in FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """The size and hash that a file should have."""

    bytes: int
    sha256: str  # hexadecimal


def digest_of(payload: bytes) -> FileDigest:
    return FileDigest(bytes=len(payload), sha256=hashlib.sha256(payload).hexdigest())


def digest_of_prefix(path: Path, limit: int) -> FileDigest:
    """Size and hash of the first ``limit`` bytes of a file, or of all of it where it has fewer. Raises OSError."""
    growing = GrowingFileHash(path)
    growing.hash_up_to(limit)
    return growing.current_digest()


def sync_appended(files: Files, file: FileIO, path: Path, what: str) -> None:
    """Make what was appended to an open file so far durable. ``what``: it consists of, "rows". Raises DiskError."""
    with report_disk_errors(f"write to {path}", lambda: f"{what} written before may not survive a power cut"):
        files.fsync(file)
        files.sync_directory(path.parent)


def lost_file_error(path: Path) -> DiskError:
    """The error of a file that a run rests on, and that is gone."""
    return DiskError(
        f"{path} was removed, cut or replaced while the run wrote it, and what it held is gone; put it back and "
        "resume, or start anew",
        code="E_RUN_FILE_REPLACED",
    )


def is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one of this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


STAGING = ".staging"  # end of the name of a file that is being written
ABANDONED_S = 86_400.0  # nobody pauses so long within a write: the writer of an older staging file was killed
_SWEPT: set[Path] = set()  # files of which this process has removed what killed writers left

PARTIAL = ".partial"  # end of the name of a directory that is being filled
FILLING = f"{PARTIAL}.lock"  # end of the name of the lock of whoever fills it (``kept_work.py: claimed_directory``)


def can_be_filled(target: Path) -> bool:
    """Whether ``filled_directory`` may make this directory: it is not there, or empty."""
    if not target.exists():
        return True
    return target.is_dir() and all(path.name in (PARTIAL, FILLING) for path in target.iterdir())


@contextmanager
def filled_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory, for libraries to write into. Once the block has ended it becomes ``target``, which is not
    there or empty (``can_be_filled``): so all of it is there or nothing, also after a kill. What a kill leaves is
    beside ``target``, and the next try removes it; so the caller holds the place (``claimed_directory``).

    An empty ``target`` may be a file system of its own, or in a directory that may not be written to: then all of this
    happens in it."""
    target = target.resolve()
    staging = target / PARTIAL if target.is_dir() else target.with_name(f".{target.name}{PARTIAL}")
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)
    try:
        yield staging
        _move_directory(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _move_directory(source: Path, target: Path) -> None:
    """Give a directory another name. An empty one of that name stays, since it may be somebody's working directory, and
    takes what is in the first; config.json comes last, as a model without it is none."""
    if not target.exists():
        source.rename(target)
        return
    for path in sorted(source.iterdir(), key=lambda path: path.name == "config.json"):
        path.rename(target / path.name)
    source.rmdir()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


class GrowingFileHash:
    """The hash of a file that is only ever appended to: each call reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._digest = hashlib.sha256()

    def digest_all(self) -> FileDigest:
        """All of the file as it is now; a missing one is empty. Raises DiskError where it has become shorter, else
        OSError."""
        current_size = self._path.stat().st_size if self._path.exists() else 0
        if current_size < self._size:
            raise lost_file_error(self._path)
        if current_size:
            self.hash_up_to()
        return self.current_digest()

    def current_digest(self) -> FileDigest:
        return FileDigest(bytes=self._size, sha256=self._digest.hexdigest())

    def hash_up_to(self, limit: int | None = None) -> None:
        """Go on to byte ``limit``, or to the end. Raises OSError."""
        with open_regular(self._path) as file:
            file.seek(self._size)
            while block := file.read(BLOCK if limit is None else min(BLOCK, limit - self._size)):
                self._digest.update(block)
                self._size += len(block)


class Files:
    """The real file system. Every method raises OSError as the system does."""

    def open(self, path: Path, mode: str) -> FileIO:
        """``mode`` is one of Python's binary modes, such as "rb", "wb", "ab" or "r+b". What is no regular file is
        refused: to open a pipe is to wait for whoever is at its other end."""
        file = FileIO(path, mode.replace("b", ""), opener=_open_at_once)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise OSError(codes.EINVAL, "not a regular file", str(path))
        return file

    def close(self, file: FileIO) -> None:
        file.close()

    def write(self, file: FileIO, block: bytes | memoryview) -> int:
        """Write to a file and return the number of bytes that were taken, which may be fewer than there are."""
        return file.write(block)

    def read(self, file: FileIO, size: int) -> bytes:
        """Returns at most ``size`` bytes, none at the end of the file."""
        return file.read(size)

    def truncate(self, file: FileIO, size: int) -> None:
        file.truncate(size)

    def fsync(self, file: FileIO) -> None:
        os.fsync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable: files created in it, renamed into it or removed from it."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def mkdir(self, path: Path) -> None:
        os.makedirs(path, exist_ok=True)

    def listdir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def remove(self, path: Path) -> None:
        """Remove a file, or a directory with all that is in it."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def free(self, path: Path) -> int:
        """Bytes that this user may still write on the file system of ``path``."""
        return shutil.disk_usage(path).free


REAL_FILES = Files()


def write_all(files: Files, file: FileIO, payload: bytes | memoryview) -> None:
    """Write every byte, whatever each system call takes. A call that takes nothing counts as a full disk."""
    rest = memoryview(payload)
    while rest:
        count = files.write(file, rest[:BLOCK])
        if not count:
            raise OSError(codes.ENOSPC, "nothing was written")
        rest = rest[count:]


@contextmanager
def open_file(files: Files, path: Path, mode: str) -> Iterator[FileIO]:
    """An open file that is closed through ``files``, so that an error on closing is not lost."""
    file = files.open(path, mode)
    try:
        yield file
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            file.close()
        raise
    files.close(file)


def read_blocks(files: Files, path: Path) -> Iterator[bytes]:
    """The content of a file, block by block."""
    with open_file(files, path, "rb") as file:
        while block := files.read(file, BLOCK):
            yield block


def make_directory(files: Files, path: Path) -> None:
    """Create a directory and what is missing above it, durably."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    files.mkdir(path)
    for place in reversed(missing):
        files.sync_directory(place.parent)


def write_file(files: Files, path: Path, payload: bytes) -> FileDigest:
    """Write a new file, hash it on the way, and fsync it. Its name is durable only after ``sync_directory``."""
    digest = hashlib.sha256()
    rest = memoryview(payload)
    with open_file(files, path, "wb") as file:
        for start in range(0, len(rest), BLOCK):
            block = rest[start : start + BLOCK]
            digest.update(block)
            write_all(files, file, block)
        files.fsync(file)
    return FileDigest(bytes=len(payload), sha256=digest.hexdigest())


def replace_file(path: Path, payload: bytes, *, files: Files = REAL_FILES) -> None:
    """Give ``path`` a new content so that it is the old one or the new one at any moment, never a part; of several
    writers at once, each of which has a staging file of its own, the last one's.

    Raises DiskError; the old content is then untouched.
    """
    staging = path.with_name(f".{path.name}.{os.urandom(8).hex()}{STAGING}")
    with report_disk_errors(f"write {path}"):
        make_directory(files, path.parent)
        with suppress(OSError):  # what is in the way of a write is said by the write
            _remove_abandoned_staging(path, files)
        try:
            write_file(files, staging, payload)
            files.rename(staging, path)
        except BaseException:
            with suppress(OSError):
                files.remove(staging)
            raise
        files.sync_directory(path.parent)


def is_staging_of(name: str, target: str) -> bool:
    """Whether a file of this name is one in which the file ``target`` beside it is being written, or was."""
    return name.startswith(f".{target}.") and name.endswith(STAGING)


def _remove_abandoned_staging(path: Path, files: Files) -> None:
    """Remove what killed writers have left of ``path``. Their age tells them: a process number would not, as it may be
    of another machine or container. The folder is listed once in a process, since it may have many files."""
    place = path.absolute()
    if place in _SWEPT:
        return
    _SWEPT.add(place)
    for name in os.listdir(path.parent):
        staging = path.with_name(name)
        with suppress(FileNotFoundError):  # another writer has finished it, or removed it
            if is_staging_of(name, path.name) and time.time() - staging.stat().st_mtime > ABANDONED_S:
                files.remove(staging)


@contextmanager
def report_disk_errors(
    what: str, lost_text: Callable[[], str] = lambda: "what was there before is untouched"
) -> Iterator[None]:
    """Turn an OSError into a DiskError of one line: what failed, why, what of it is lost, what to do."""
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        why = "disk full" if error.errno in FULL else (error.strerror or str(error))
        todo = "free some space" if error.errno in FULL else "check the disk and its permissions"
        raise DiskError(
            f"cannot {what}: {why}; {lost_text()}; {todo} and try again", error.errno, code="E_DISK_REFUSED"
        ) from error
