"""Checkpoints: one transaction over everything a run must remember, of all its policies together.

    save      .staging-step-000120/  ←  every file, hashed while it is written, fsync; manifest.json last, fsync;
              fsync of the folder; rename to step-000120; fsync of the parent; read back; only then drop older ones
    latest    computed, never stored: the newest folder whose manifest agrees with every byte next to it

A kill at any point leaves the old checkpoint or the new one. safetensors alone does not notice a flipped bit, so each
file's SHA-256 is in the manifest, and the manifest must be byte for byte what its own content encodes to: a checkpoint
verifies or it does not, and one that does not is never loaded. Nothing is pickled.

Retention lists what is there instead of computing what should be, so that leftovers of killed saves cannot pile up.
What is to go is renamed first: a folder half deleted is never mistaken for a damaged checkpoint.

Processes that hold shares of a policy write its parts themselves (``tensor_files.py``), into the same staging folder;
their hashes come from the writers and are held against what is read back here.

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
_FOLDER = re.compile(r"(?:\.replaced-)?step-(\d{6,})")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


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

        ``only``: the groups of tensors that are wanted, where not all are. What is decoded is what was hashed. Raises
        StateError when a file has changed since the checkpoint was found.
        """
        import safetensors.torch

        tensors: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
        documents: dict[str, Any] = {}
        for name, expected in self.contents.items():
            stem, part, _ = split_part_name(name)
            if not name.endswith(".json") and only is not None and stem not in only:
                continue
            try:
                payload = b"".join(read_blocks(files, self.path / name))
            except OSError as error:
                raise StateError(
                    f"{self.path / name} cannot be read: {error.strerror}", code="E_CHECKPOINT_UNREADABLE"
                ) from error
            if digest_of(payload) != expected:
                raise StateError(
                    f"{self.path / name} has changed since the checkpoint was verified", code="E_CHECKPOINT_CHANGED"
                )
            if name.endswith(".json"):
                documents[name.removesuffix(".json")] = json.loads(payload)
            else:  # plain tensors; nothing in it can run
                tensors.setdefault(stem, {})[part] = safetensors.torch.load(payload)
        return {stem: join_parts(tensors.pop(stem)) for stem in list(tensors)}, documents


def save_checkpoint(
    directory: Path,
    step: int,
    tensors: Mapping[str, Tensors | TensorParts],
    documents: Mapping[str, Any],
    *,
    keep: int = 2,
    keep_every: int = 0,
    kept: Collection[int] = (),
    files: Files = REAL_FILES,
) -> Path:
    """Save checkpoint ``step``: ``tensors`` (any device, any strides) as NAME.safetensors, or in parts, and
    ``documents`` as NAME.json.

    When it returns, the new checkpoint is durable and was read back, checkpoints of later steps (a future that was
    given up) are gone, and so are older ones beyond the ``keep`` newest that verify, but not those of steps in ``kept``
    or that ``keep_every`` divides, if it is not 0. Older ones that cannot be deleted stay, and the next save tries
    again. One writer at a time (see ``cotrain.storage.lock``).

    Raises DiskError (``.full`` when it is for want of space), leaving the old checkpoints as they were; StateError for
    a document that JSON would not give back as it was, or a name that is not a plain file name.
    """
    name = step_name(step)
    if keep < 1:
        raise ValueError(f"keep should be at least 1, found {keep}")
    payloads = {f"{stem}.json": _encode_document(stem, document) for stem, document in documents.items()}
    for stem in (*tensors, *documents):
        if not _NAME.fullmatch(stem) or f"{stem}.json" == MANIFEST or split_part_name(stem)[0] != stem:
            raise StateError(
                f"{stem!r} cannot name a file of a checkpoint: expected letters, digits, '_', '.' and '-', and not the "
                "name of a part",
                code="E_CHECKPOINT_NAME",
            )

    staging = directory / f"{STAGING}{name}"
    with report_disk_errors(f"save checkpoint {name} in {directory}", lambda: _resume_text(directory, files)):
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
    read_back = verify_checkpoint(directory / name, files=files)
    if isinstance(read_back, Damage) or read_back.contents != manifest:
        reason = read_back.reason if isinstance(read_back, Damage) else "it reads back as another checkpoint"
        with suppress(OSError):  # what resists does not verify, so that ``latest_checkpoint`` passes it over
            _discard_folder(directory, name, files)
        raise DiskError(
            f"checkpoint {name} was written to {directory} but does not read back: {reason}; "
            f"{_resume_text(directory, files)}; check the disk and try again",
            code="E_CHECKPOINT_NOT_READ_BACK",
        )
    discard_after(directory, step, files=files)
    with suppress(OSError):  # the save has succeeded; what resists is tried again by the next one
        _retire_old(directory, step, keep, keep_every, kept, files)
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
        if problem := parts_problem(name for name in contents if name.endswith(SUFFIX)):
            return Damage(path=path, reason=f"{MANIFEST}: {problem}")
        if surplus := sorted(set(names) - {MANIFEST, *contents}):
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


# ---- writing


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


def _rename_into_place(staging: Path, target: Path, files: Files) -> None:
    """Rename; a checkpoint of the same step that still verifies is set aside, where ``latest_checkpoint`` finds it,
    until the new one has been read back."""
    if target.name in files.listdir(target.parent):
        aside = target.with_name(f"{REPLACED}{target.name}")
        if isinstance(verify_checkpoint(target, files=files), Checkpoint):
            _discard_folder(target.parent, aside.name, files)
            files.rename(target, aside)
        else:
            _discard_folder(target.parent, target.name, files)
    files.rename(staging, target)


def _check_room(directory: Path, name: str, size: int, files: Files) -> None:
    free = files.free(directory)
    if free < 2 * size:
        raise DiskError(
            f"disk full: checkpoint {name} needs {_readable_size(2 * size)} free in {directory} and there are "
            f"{_readable_size(free)}; {_resume_text(directory, files)}; free some space and try again",
            errno.ENOSPC,
            code="E_DISK_FULL",
        )


def _encode_document(stem: str, document: Any) -> bytes:
    check_json(document, f"document {stem!r}")
    return json.dumps(document, allow_nan=False, indent=1).encode("ascii") + b"\n"


def _encode_manifest(step: int, contents: Mapping[str, FileDigest]) -> bytes:
    listed = {name: {"bytes": w.bytes, "sha256": w.sha256} for name, w in sorted(contents.items())}
    return json.dumps({"format": FORMAT, "step": step, "files": listed}, indent=1).encode("ascii") + b"\n"


def _decode_manifest(payload: bytes, step: int) -> dict[str, FileDigest]:
    """Raises ValueError for anything but the exact bytes that ``_encode_manifest`` would write for this step."""
    try:
        manifest = json.loads(payload)
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r} is unknown to this version, which reads {FORMAT}")
        if manifest["step"] != step:
            raise ValueError(f"it is of step {manifest['step']!r}, in a folder of step {step}")
        contents = {name: FileDigest(bytes=w["bytes"], sha256=w["sha256"]) for name, w in manifest["files"].items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a manifest ({type(error).__name__})") from error
    if payload != _encode_manifest(step, contents):
        raise ValueError("not as it was written")
    return contents


# ---- what is there


def _step_of(path: Path) -> int:
    match = _FOLDER.fullmatch(path.name)
    if match is None or step_name(int(match[1])) != path.name.removeprefix(REPLACED):
        raise ValueError(f"{path.name} is no checkpoint folder")
    return int(match[1])


def _list_candidates(directory: Path, files: Files) -> list[Path]:
    """Folders that may be checkpoints, newest first, the one set aside after the one that replaced it."""
    try:
        names = files.listdir(directory)
    except FileNotFoundError:
        return []
    paths = [directory / name for name in names if _is_step(name)]
    return sorted(paths, key=lambda path: (_step_of(path), not path.name.startswith(REPLACED)), reverse=True)


def _is_step(name: str) -> bool:
    match = _FOLDER.fullmatch(name)
    return match is not None and step_name(int(match[1])) == name.removeprefix(REPLACED)


def sweep_leftovers(directory: Path, *, files: Files = REAL_FILES) -> None:
    """Delete what killed saves and killed deletions left; what resists stays. For the one writer alone."""
    with suppress(OSError):
        _remove_leftovers(directory, files)


def _remove_leftovers(directory: Path, files: Files) -> None:
    for name in files.listdir(directory):
        if name.startswith((STAGING, TRASH)):
            files.remove(directory / name)


def _discard_folder(directory: Path, name: str, files: Files) -> None:
    names = files.listdir(directory)
    trash = directory / f"{TRASH}{name}"
    if trash.name in names:
        files.remove(trash)
    if name in names:
        files.rename(directory / name, trash)
        files.sync_directory(directory)  # or a power cut could leave the old name on an emptied folder
        files.remove(trash)


def _retire_old(directory: Path, step: int, keep: int, keep_every: int, stay: Collection[int], files: Files) -> None:
    """Delete what ``keep`` verified checkpoints make superfluous, see ``save_checkpoint``. A damaged one goes when that
    many newer ones are known to be good, so that a passing read error deletes nothing that might still be needed."""
    good = 0
    for path in _list_candidates(directory, files):
        of_step = _step_of(path)
        protected = of_step in stay or (keep_every > 0 and of_step % keep_every == 0)
        kept = protected and not path.name.startswith(REPLACED)
        if (good >= keep and not kept) or path.name == f"{REPLACED}{step_name(step)}":
            _discard_folder(directory, path.name, files)
        elif good < keep and (
            path.name == step_name(step) or isinstance(verify_checkpoint(path, files=files), Checkpoint)
        ):
            good += 1
    files.sync_directory(directory)


def _resume_text(directory: Path, files: Files) -> str:
    """For messages: what a run could resume from now, and so what it would do again."""
    run = directory.parent
    resumed = f"cotrain resume {run}" if (run / "recipe.json").is_file() else "a resumed run"
    with suppress(OSError, StateError):
        checkpoint = latest_checkpoint(directory, files=files)
        if checkpoint is None:
            return f"there is no checkpoint yet, and {resumed} begins anew"
        return f"{checkpoint.path.name} is intact, and {resumed} goes on from there"
    return f"older checkpoints were not touched, and {resumed} goes on from the newest"


def _hash_file(files: Files, path: Path) -> FileDigest:
    digest = hashlib.sha256()
    size = 0
    for block in read_blocks(files, path):
        digest.update(block)
        size += len(block)
    return FileDigest(bytes=size, sha256=digest.hexdigest())


def _readable_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
