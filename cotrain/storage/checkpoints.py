"""Checkpoints: one transaction over everything a run must remember, of all its policies together.

A checkpoint is saved in this order:

1. every file into .staging-step-000120/, hashed while it is written, with fsync; manifest.json last;
2. fsync of that folder, rename to step-000120, fsync of its parent;
3. all of it is read back;
4. only then older checkpoints are dropped.

A kill at any point leaves the old checkpoint or the new one. The latest one is stored nowhere: it is the newest folder
whose manifest agrees with every byte next to it. safetensors alone does not notice a flipped bit, so the manifest has
each file's SHA-256, and must itself be byte for byte what its content encodes to. A checkpoint that does not verify is
never loaded. Nothing is pickled.

Retention looks at the folders that are there, so that leftovers of killed saves cannot pile up. A folder that is to go
is renamed first: one that is half deleted is never mistaken for a damaged checkpoint.

Processes that hold shares of a policy write its parts themselves (``tensor_files.py``), into the same staging folder;
the hashes that they report are compared with the files, which are read back here.

Left out: writing in the background, and telling a bad disk from a forger (hashes are not signatures).
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import StateError
from cotrain.storage.file_ops import (
    REAL_FILES,
    DiskError,
    FileDigest,
    Files,
    digest_of,
    make_directory,
    read_blocks,
    report_disk_errors,
    write_file,
)
from cotrain.storage.jsonl import check_json
from cotrain.storage.tensor_files import (
    SUFFIX,
    TensorParts,
    join_parts,
    parts_problem,
    split_part_name,
    tensor_bytes,
    write_group,
)

if TYPE_CHECKING:
    import torch

    from cotrain.storage.tensor_files import Tensors

FORMAT = 1
MANIFEST = "manifest.json"
STAGING = ".staging-"
REPLACED = ".replaced-"
TRASH = ".trash-"
# Free bytes that a save asks for, for each byte of the checkpoint. One is for the checkpoint itself, which is written
# beside the older ones: they go only when it has been read back. The other one stays free, as a reserve for what the
# run appends until the next save (metrics, the ledger), and for headers and the manifest, which are not counted.
FREE_BYTES_PER_BYTE = 2
_STEP_FOLDER = re.compile(r"(?:\.replaced-)?step-(\d{6,})")
_FILE_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A checkpoint that cannot be used."""

    path: Path
    reason: str  # "policy.safetensors: its hash differs", "no manifest.json", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose every byte was verified when it was found."""

    path: Path
    step: int
    contents: Mapping[str, FileDigest]  # file name → size and hash
    newer_damaged: tuple[Damage, ...] = ()  # newer checkpoints that do not verify, the newest first

    def load(
        self, *, only: Collection[str] | None = None, files: Files = REAL_FILES
    ) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
        """Read ``(tensors by group and name, documents by name)``, as they were given to ``save_checkpoint``; tensors
        whole, and on the CPU.

        ``only``: the groups of tensors that are wanted, where not all are. The bytes that are hashed are those that are
        decoded. Raises StateError when a file has changed since the checkpoint was found.
        """
        import safetensors.torch

        parts_by_group: dict[str, dict[int, dict[str, torch.Tensor]]] = {}  # group → number of the part → tensors
        documents: dict[str, Any] = {}
        for name in self.contents:
            if name.endswith(".json"):
                documents[name.removesuffix(".json")] = json.loads(self._read_verified(name, files))
                continue
            file = split_part_name(name)
            if only is None or file.stem in only:
                payload = self._read_verified(name, files)  # plain tensors; nothing in it can run
                parts_by_group.setdefault(file.stem, {})[file.part] = safetensors.torch.load(payload)

        tensors = {}
        for group in list(parts_by_group):
            tensors[group] = join_parts(parts_by_group.pop(group))  # the parts are let go of, one group at a time
        return tensors, documents

    def _read_verified(self, name: str, files: Files) -> bytes:
        """The content of a file. Raises StateError when it is not the one that was verified."""
        path = self.path / name
        try:
            payload = b"".join(read_blocks(files, path))
        except OSError as error:
            raise StateError(f"{path} cannot be read: {error.strerror}", code="E_CHECKPOINT_UNREADABLE") from error
        if digest_of(payload) != self.contents[name]:
            raise StateError(f"{path} has changed since the checkpoint was verified", code="E_CHECKPOINT_CHANGED")
        return payload


def save_checkpoint(
    directory: Path,
    step: int,
    tensors: Mapping[str, Tensors | TensorParts],
    documents: Mapping[str, Any],
    *,
    keep: int = 2,
    keep_every: int = 0,
    keep_steps: Collection[int] = (),
    files: Files = REAL_FILES,
) -> Path:
    """Save checkpoint ``step``. When it returns, the new checkpoint is durable and was read back, and checkpoints of
    later steps (a future that was given up) are gone.

    Args:
        tensors: of each group, on any device and with any strides; written as GROUP.safetensors, or in parts.
        documents: JSON values; written as NAME.json.
        keep: how many of the newest checkpoints that verify stay; older ones go. One that cannot be deleted stays, and
            the next save tries again.
        keep_every: checkpoints of steps that this number divides stay too; 0: none.
        keep_steps: checkpoints of these steps stay too.

    Raises DiskError (``.full`` when it is for want of space), leaving the old checkpoints as they were; StateError for
    a document that JSON would not give back as it was, or a name that is not a plain file name. One writer at a time
    (see ``cotrain.storage.lock``).
    """
    name = step_name(step)
    if keep < 1:
        raise ValueError(f"keep should be at least 1, found {keep}")
    payloads = {f"{stem}.json": _encode_document(stem, document) for stem, document in documents.items()}
    for stem in (*tensors, *documents):
        _check_file_stem(stem)

    def what_is_safe() -> str:  # the end of an error's sentence
        return _resume_text(directory, files)

    staging = directory / f"{STAGING}{name}"
    with report_disk_errors(f"save checkpoint {name} in {directory}", what_is_safe):
        make_directory(files, directory)
        _remove_leftovers(directory, files)
        size = sum(map(len, payloads.values())) + sum(map(tensor_bytes, tensors.values()))
        _check_room(directory, name, size, files)
        try:
            manifest = _write_staging(staging, step, tensors, payloads, files)
            _rename_into_place(staging, directory / name, files)
            files.sync_directory(directory)
        except OSError:
            with suppress(OSError):  # gives the space back; what resists is swept by the next save
                files.remove(staging)
            raise
    _check_reads_back(directory, name, manifest, files)
    discard_after(directory, step, files=files)
    with suppress(OSError):  # the save has succeeded; what resists is tried again by the next one
        _retire_old(directory, step, keep, keep_every, keep_steps, files)
    return directory / name


def latest_checkpoint(directory: Path, *, files: Files = REAL_FILES) -> Checkpoint | None:
    """The newest checkpoint that verifies, with those after it that do not in ``newer_damaged``; None if there is none.

    Raises DiskError when the directory cannot be listed, and StateError when there are checkpoints but none verifies:
    whether to start afresh is not for this function to decide.
    """
    damaged: list[Damage] = []
    with report_disk_errors(f"look for checkpoints in {directory}"):
        paths = _list_candidates(directory, files)
    for path in paths:
        candidate = verify_checkpoint(path, files=files)
        if isinstance(candidate, Checkpoint):
            return Checkpoint(path=path, step=candidate.step, contents=candidate.contents, newer_damaged=tuple(damaged))
        damaged.append(candidate)
    if damaged:
        reasons = "; ".join(f"{d.path.name}: {d.reason}" for d in damaged)
        raise StateError(
            f"no checkpoint in {directory} is intact ({reasons}); move the folder away to start afresh",
            code="E_NO_INTACT_CHECKPOINT",
        )
    return None


def checkpoint_steps(directory: Path, *, files: Files = REAL_FILES) -> list[int]:
    """The steps that there are checkpoints of, whether or not they verify, in order. Raises DiskError."""
    with report_disk_errors(f"look for checkpoints in {directory}"):
        return sorted({_step_of(path) for path in _list_candidates(directory, files)})


def discard_after(directory: Path, step: int, *, files: Files = REAL_FILES) -> int:
    """Delete the checkpoints of later steps and return their number: for a run that goes back to ``step`` on purpose,
    to be called before its metrics and ledger are truncated. Raises DiskError."""
    with report_disk_errors(f"delete checkpoints after step {step} in {directory}"):
        later = [path for path in _list_candidates(directory, files) if _step_of(path) > step]
        for path in later:
            _discard_folder(directory, path.name, files)
        if later:
            files.sync_directory(directory)
    return len(later)


def verify_checkpoint(path: Path, *, files: Files = REAL_FILES) -> Checkpoint | Damage:
    """Read every byte of a checkpoint folder and compare it with its manifest."""
    try:
        names = files.listdir(path)
        if MANIFEST not in names:
            return Damage(path=path, reason=f"no {MANIFEST}")
        contents = _decode_manifest(b"".join(read_blocks(files, path / MANIFEST)), _step_of(path))
        problem = parts_problem(name for name in contents if name.endswith(SUFFIX))
        if problem:
            return Damage(path=path, reason=f"{MANIFEST}: {problem}")
        surplus = sorted(set(names) - {MANIFEST, *contents})
        if surplus:
            return Damage(path=path, reason=f"{surplus[0]} does not belong to it")
        for name, expected in contents.items():
            if name not in names:
                return Damage(path=path, reason=f"{name} is missing")
            digest = _hash_file(files, path / name)
            if digest.bytes != expected.bytes:
                return Damage(path=path, reason=f"{name} has {digest.bytes} bytes, expected {expected.bytes}")
            if digest.sha256 != expected.sha256:
                return Damage(path=path, reason=f"{name}: its hash differs")
    except OSError as error:
        return Damage(path=path, reason=f"cannot be read: {error.strerror or error}")
    except ValueError as error:
        return Damage(path=path, reason=f"{MANIFEST}: {error}")
    return Checkpoint(path=path, step=_step_of(path), contents=contents)


def step_name(step: int) -> str:
    """The folder of a step: ``step-000120``."""
    if step < 0:
        raise ValueError(f"step should be at least 0, found {step}")
    return f"step-{step:06d}"


# -- Writing.


def _write_staging(
    staging: Path, step: int, tensors: Mapping[str, Tensors | TensorParts], payloads: Mapping[str, bytes], files: Files
) -> dict[str, FileDigest]:
    files.mkdir(staging)
    contents = {name: write_file(files, staging / name, payload) for name, payload in payloads.items()}
    for stem, group in tensors.items():  # one at a time: each is a copy in memory
        contents |= write_group(staging, stem, group, files)
    write_file(files, staging / MANIFEST, _encode_manifest(step, contents))
    files.sync_directory(staging)
    return contents


def _check_file_stem(stem: str) -> None:
    """Raise StateError for what cannot be the name of a file of a checkpoint."""
    is_plain = _FILE_STEM.fullmatch(stem) is not None
    is_manifest = f"{stem}.json" == MANIFEST
    is_part = split_part_name(stem).stem != stem
    if not is_plain or is_manifest or is_part:
        raise StateError(
            f"{stem!r} cannot name a file of a checkpoint: expected letters, digits, '_', '.' and '-', and not the "
            "name of a part",
            code="E_CHECKPOINT_NAME",
        )


def _check_reads_back(directory: Path, name: str, manifest: Mapping[str, FileDigest], files: Files) -> None:
    """Raise DiskError where a checkpoint that was just written does not read back, and discard it."""
    read_back = verify_checkpoint(directory / name, files=files)
    if isinstance(read_back, Damage):
        reason = read_back.reason
    elif read_back.contents != manifest:
        reason = "it reads back as another checkpoint"
    else:
        return
    with suppress(OSError):  # what resists does not verify, so ``latest_checkpoint`` passes it over
        _discard_folder(directory, name, files)
    raise DiskError(
        f"checkpoint {name} was written to {directory} but does not read back: {reason}; "
        f"{_resume_text(directory, files)}; check the disk and try again",
        code="E_CHECKPOINT_NOT_READ_BACK",
    )


def _rename_into_place(staging: Path, target: Path, files: Files) -> None:
    """Give a staging folder its name. A checkpoint of the same step that still verifies is set aside, where
    ``latest_checkpoint`` finds it until the new one has been read back."""
    directory = target.parent
    if target.name in files.listdir(directory):
        replaced = directory / f"{REPLACED}{target.name}"
        if isinstance(verify_checkpoint(target, files=files), Checkpoint):
            _discard_folder(directory, replaced.name, files)  # one that an earlier save left
            files.rename(target, replaced)
        else:
            _discard_folder(directory, target.name, files)
    files.rename(staging, target)


def _check_room(directory: Path, name: str, size: int, files: Files) -> None:
    """Raise DiskError where a checkpoint of ``size`` bytes would leave too little room."""
    free = files.free(directory)
    needed = FREE_BYTES_PER_BYTE * size
    if free < needed:
        raise DiskError(
            f"disk full: checkpoint {name} needs {_readable_size(needed)} free in {directory} and there are "
            f"{_readable_size(free)}; {_resume_text(directory, files)}; free some space and try again",
            errno.ENOSPC,
            code="E_DISK_FULL",
        )


def _encode_document(stem: str, document: Any) -> bytes:
    check_json(document, f"document {stem!r}")
    return json.dumps(document, allow_nan=False, indent=1).encode("ascii") + b"\n"


def _encode_manifest(step: int, contents: Mapping[str, FileDigest]) -> bytes:
    listed = {}
    for name, digest in sorted(contents.items()):
        listed[name] = {"bytes": digest.bytes, "sha256": digest.sha256}
    return json.dumps({"format": FORMAT, "step": step, "files": listed}, indent=1).encode("ascii") + b"\n"


def _decode_manifest(payload: bytes, step: int) -> dict[str, FileDigest]:
    """Raises ValueError for anything but the exact bytes that ``_encode_manifest`` would write for this step."""
    try:
        manifest = json.loads(payload)
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r} is unknown to this version, which reads {FORMAT}")
        if manifest["step"] != step:
            raise ValueError(f"it is of step {manifest['step']!r}, in a folder of step {step}")
        contents = {}
        for name, digest in manifest["files"].items():
            contents[name] = FileDigest(bytes=digest["bytes"], sha256=digest["sha256"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a manifest ({type(error).__name__})") from error
    if payload != _encode_manifest(step, contents):
        raise ValueError("not as it was written")
    return contents


# -- What is there.


def _parse_step(folder_name: str) -> int | None:
    """The step of a checkpoint's folder, also of one that was replaced; None for any other name."""
    match = _STEP_FOLDER.fullmatch(folder_name)
    if match is None:
        return None
    step = int(match[1])
    is_own_name = step_name(step) == folder_name.removeprefix(REPLACED)  # step-0000001 is none
    return step if is_own_name else None


def _step_of(path: Path) -> int:
    step = _parse_step(path.name)
    if step is None:
        raise ValueError(f"{path.name} is no checkpoint folder")
    return step


def _list_candidates(directory: Path, files: Files) -> list[Path]:
    """Folders that may be checkpoints, the newest first, and one that was replaced after the one that replaced it."""
    try:
        names = files.listdir(directory)
    except FileNotFoundError:
        return []
    paths = [directory / name for name in names if _parse_step(name) is not None]
    return sorted(paths, key=lambda path: (-_step_of(path), _is_replaced(path)))


def _is_replaced(path: Path) -> bool:
    """Whether a checkpoint was set aside for another one of the same step."""
    return path.name.startswith(REPLACED)


def sweep_leftovers(directory: Path, *, files: Files = REAL_FILES) -> None:
    """Delete what killed saves and killed deletions left; what resists stays. For the one writer alone."""
    with suppress(OSError):
        _remove_leftovers(directory, files)


def _remove_leftovers(directory: Path, files: Files) -> None:
    for name in files.listdir(directory):
        if name.startswith((STAGING, TRASH)):
            files.remove(directory / name)


def _discard_folder(directory: Path, name: str, files: Files) -> None:
    """Delete a folder, if it is there, and what an earlier deletion of it left."""
    names = files.listdir(directory)
    trash = directory / f"{TRASH}{name}"
    if trash.name in names:
        files.remove(trash)
    if name in names:
        files.rename(directory / name, trash)
        files.sync_directory(directory)  # or a power cut could leave the old name on an emptied folder
        files.remove(trash)


def _retire_old(
    directory: Path, new_step: int, keep: int, keep_every: int, keep_steps: Collection[int], files: Files
) -> None:
    """Delete the checkpoints that are not to be kept, see ``save_checkpoint``. A damaged one goes only when ``keep``
    newer ones verify, so that a passing read error deletes nothing that might still be needed."""

    def is_kept_always(path: Path) -> bool:
        step = _step_of(path)
        has_kept_step = step in keep_steps or (keep_every > 0 and step % keep_every == 0)
        return has_kept_step and not _is_replaced(path)

    def is_verified(path: Path) -> bool:
        if _step_of(path) == new_step:
            return True  # it was read back a moment ago
        return isinstance(verify_checkpoint(path, files=files), Checkpoint)

    n_verified = 0
    for path in _list_candidates(directory, files):  # the newest first
        was_replaced_now = _step_of(path) == new_step and _is_replaced(path)
        if was_replaced_now:
            _discard_folder(directory, path.name, files)
        elif n_verified < keep:
            n_verified += is_verified(path)
        elif not is_kept_always(path):
            _discard_folder(directory, path.name, files)
    files.sync_directory(directory)


def _resume_text(directory: Path, files: Files) -> str:
    """For messages: what a run could resume from now, and so what it would do again."""
    run = directory.parent
    resumed = "a resumed run"
    if (run / "recipe.json").is_file():
        resumed = f"cotrain resume {run}"
    try:
        checkpoint = latest_checkpoint(directory, files=files)
    except (OSError, StateError):
        return f"older checkpoints were not touched, and {resumed} goes on from the newest"
    if checkpoint is None:
        return f"there is no checkpoint yet, and {resumed} begins anew"
    return f"{checkpoint.path.name} is intact, and {resumed} goes on from there"


def _hash_file(files: Files, path: Path) -> FileDigest:
    digest = hashlib.sha256()
    size = 0
    for block in read_blocks(files, path):
        digest.update(block)
        size += len(block)
    return FileDigest(bytes=size, sha256=digest.hexdigest())


def _readable_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
