"""A seal over a run's files: the hashes of what it wrote, so that a later change is found.

::

    seal.json                        size and SHA-256 of every file that is written once, told before the file itself is
                                     there
    checkpoints/step-N/record.json   the run's settings, and of metrics and ledger how long they were then, and their
                                     SHA-256

A checkpoint's own bytes are in its manifest (``storage/checkpoints.py``). What a kill leaves is no damage: rows behind
the newest checkpoint, a torn last line, and a file that the seal tells of and that is not there yet. Anything else that
differs is refused in one line before a run is resumed, evaluated, exported or reported.

Left out: protection from somebody who makes a new seal for what he has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import RunDirectoryError
from cotrain.runs.directory import AFTER_PROBLEMS, MANIFEST, RunDirectory
from cotrain.storage import checkpoints, ledger
from cotrain.storage.file_ops import REAL_FILES, FileDigest, Files, GrowingFileHash, digest_of_prefix

if TYPE_CHECKING:
    import torch

METRICS = "metrics.jsonl"
LEDGER = f"episodes/{ledger.NAME}"
BEFORE = ("before_counts.json", "before.json")
LATER = (*BEFORE, "summary.json")  # may be told of and not be there: they were about to be written
WRITTEN_AGAIN = (METRICS, LEDGER, AFTER_PROBLEMS)  # before a run is finished
RECORD = "record"
MOVED = "moved"  # in recipe.json: of policies whose model was moved, what their settings were (``changes.py``)
# settings that end a run, or say where its decays end
LENGTH = ("steps", "horizon", "tokens", "flops", "seconds", "updates")


class GrowingHashes:
    """Hashes of metrics and ledger, which grow with these files, for the seal and for the records of checkpoints."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._growing = {name: GrowingFileHash(directory.path / name) for name in (METRICS, LEDGER)}

    def growing_files(self) -> dict[str, FileDigest]:
        """Metrics and ledger as they are now."""
        return {name: growing.digest_all() for name, growing in self._growing.items()}

    def checkpoint_record(self) -> dict[str, Any]:
        """A checkpoint's record of its run: a hash of the settings, and those of the run's files as they are now."""
        files = {name: digest for name, digest in self._directory.recorded_hashes().items() if name in BEFORE}
        files |= self.growing_files()
        listed = {name: {"bytes": digest.bytes, "sha256": digest.sha256} for name, digest in files.items()}
        return {"settings": _settings_hash(self._directory), "files": listed}


def verify_files(directory: RunDirectory) -> None:
    """Raise RunDirectoryError for the first file of a run that is not as the seal has it."""
    sealed = directory.recorded_hashes()
    finished = directory.summary.exists()
    for name in (*BEFORE, AFTER_PROBLEMS, "summary.json", "recipe.json"):
        if name not in sealed and (directory.path / name).exists():
            raise RunDirectoryError(
                f"{directory.path / name} does not belong to this run ({MANIFEST} has no such file); "
                f"{_repair_advice(name)}",
                code="E_FILE_OF_OTHER_RUN",
            )
    for name, expected in sealed.items():
        path = directory.path / name
        may_be_missing = name in LATER and not path.exists()
        if not finished and (name in WRITTEN_AGAIN or may_be_missing):
            continue
        wrong = _file_difference(path, expected)
        if wrong is not None:
            raise RunDirectoryError(
                f"{path} is not as this run wrote it ({wrong}); {_repair_advice(name, finished)}",
                code="E_RUN_FILE_CHANGED",
            )


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """The newest checkpoint that verifies, which is of this run."""

    checkpoint: checkpoints.Checkpoint
    files: Mapping[str, FileDigest]  # metrics and ledger when it was saved; they begin so still

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @property
    def step(self) -> int:
        """Steps finished when it was saved."""
        return self.checkpoint.step

    @property
    def newer_damaged(self) -> tuple[checkpoints.Damage, ...]:
        """Newer checkpoints, which do not verify, the newest first."""
        return self.checkpoint.newer_damaged

    def load(
        self, *, only: Collection[str] | None = None, files: Files = REAL_FILES
    ) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
        """See ``Checkpoint.load``."""
        return self.checkpoint.load(only=only, files=files)


def newest_checkpoint(directory: RunDirectory, *, files: Files = REAL_FILES) -> VerifiedCheckpoint | None:
    """The newest checkpoint of a run that was verified, None where there is none yet. Raises RunDirectoryError where it
    is another run's, or metrics or ledger are not those that it was saved with; and what
    ``transaction.latest_checkpoint`` raises."""
    checkpoint = checkpoints.latest_checkpoint(directory.checkpoints, files=files)
    if checkpoint is None:
        return None
    _, documents = checkpoint.load(only=())
    return VerifiedCheckpoint(checkpoint, _recorded_files(directory, checkpoint.path, documents))


def checkpoint_at(directory: RunDirectory, step: int) -> VerifiedCheckpoint:
    """The checkpoint of one step. Raises RunDirectoryError where there is none, or what there is does not verify or is
    of another run."""
    checkpoint = checkpoints.verify_checkpoint(directory.checkpoints / checkpoints.step_name(step))
    if not isinstance(checkpoint, checkpoints.Checkpoint):
        steps = ", ".join(map(str, checkpoints.checkpoint_steps(directory.checkpoints))) or "none"
        raise RunDirectoryError(
            f"{directory.path} has no whole checkpoint of step {step} ({checkpoint.reason}); there are: {steps}",
            code="E_NO_SUCH_CHECKPOINT",
        )
    _, documents = checkpoint.load(only=())
    return VerifiedCheckpoint(checkpoint, _recorded_files(directory, checkpoint.path, documents))


def _recorded_files(directory: RunDirectory, checkpoint: Path, documents: Mapping[str, Any]) -> dict[str, FileDigest]:
    """Metrics and ledger as a checkpoint records them. Raises RunDirectoryError where it is another run's, or they are
    others now."""
    try:
        record = documents[RECORD]
        settings = record["settings"]
        files = {name: FileDigest(bytes=each["bytes"], sha256=each["sha256"]) for name, each in record["files"].items()}
    except (KeyError, TypeError, AttributeError):
        raise RunDirectoryError(
            f"{checkpoint} does not say which run it is of: an earlier version saved it; start anew",
            code="E_RUN_OF_EARLIER_VERSION",
        ) from None
    back = "put this run's own back, or move checkpoints/ away to begin again"
    if settings != _settings_hash(directory):
        raise RunDirectoryError(
            f"{checkpoint} is of a run with other settings than {directory.path / 'recipe.json'}; {back}",
            code="E_CHECKPOINT_OF_OTHER_RUN",
        )
    sealed = directory.recorded_hashes()
    other = [name for name in BEFORE if files.get(name) != sealed.get(name) and name in files]
    if other:
        raise RunDirectoryError(
            f"{checkpoint} is of a run with another {other[0]} than {directory.path}; {back}",
            code="E_CHECKPOINT_OF_OTHER_RUN",
        )
    for name in (METRICS, LEDGER):
        wrong = _file_difference(directory.path / name, files[name], beginning=True)
        if wrong is not None:
            raise RunDirectoryError(
                f"{directory.path / name} is not what {checkpoint.name} was saved with ({wrong}); restore it; "
                f"if the checkpoint is another run's, {back}",
                code="E_CHECKPOINT_OF_OTHER_RUN",
            )
    return {name: files[name] for name in (METRICS, LEDGER)}


def _settings_hash(directory: RunDirectory) -> str:
    """Hash of the settings in recipe.json, the seed among them, whatever function and arguments they were made by. How
    long the run lasts is none of them: a finished run may go on. A model that was moved counts as it was named then."""
    saved = directory.read_recipe()
    for policy, name in saved.get(MOVED, {}).items():
        saved["settings"]["policies"][policy] |= name
    lasting = {name: value for name, value in saved["settings"].items() if name not in LENGTH}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


def _file_difference(path: Path, expected: FileDigest, *, beginning: bool = False) -> str | None:
    """How a file differs from what was recorded, or with ``beginning`` its first bytes; None where it does not."""
    if beginning and expected.bytes == 0:
        return None
    try:
        difference = _content_difference(path, expected, beginning=beginning)
    except FileNotFoundError:
        difference = "it is missing"
    except OSError as error:
        difference = (error.strerror or str(error)).lower()
    return difference


def _content_difference(path: Path, expected: FileDigest, *, beginning: bool) -> str | None:
    """How the bytes of a file that is there differ from what was recorded. Raises OSError."""
    size = path.stat().st_size
    is_cut = size < expected.bytes
    has_grown = size > expected.bytes and not beginning
    if is_cut or has_grown:
        least = "at least " if beginning else ""
        return f"it has {size} bytes, expected {least}{expected.bytes}"
    if digest_of_prefix(path, expected.bytes) == expected:
        return None
    return f"its first {expected.bytes} bytes differ" if beginning else "its hash differs"


def _repair_advice(name: str, finished: bool = True) -> str:
    if name in BEFORE and not finished:
        return "restore it, or delete it: then the start is measured again, with the weights of the start"
    return "restore it, or start anew"
