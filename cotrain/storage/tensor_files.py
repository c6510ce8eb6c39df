"""A checkpoint's tensors in one file, or in several that processes of a sharded run write side by side.

::

    policy.safetensors                     all rows of every tensor: one part
    policy.1-of-3.safetensors              the first rows of each, and whole what is not cut
    policy.2-of-3.safetensors              the next ones
    policy.3-of-3.safetensors

A tensor that lies in several parts is cut by rows (along its first axis), in the order of the parts: put behind one
another they are the tensor, whatever number of processes wrote them. A part without rows of it has no such tensor. So
one part is the case of one process, and nothing tells where a part begins but the parts before it.

torch's ``distributed.checkpoint`` was left out: its metadata is a pickle, or an index without hashes, and staging,
fsync, hash and rename would be ours all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cotrain.storage.file_ops import REAL_FILES, FileDigest, Files, write_file

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]

SUFFIX = ".safetensors"
_PART = re.compile(r"(?P<stem>.+)\.(?P<part>[1-9]\d*)-of-(?P<parts>[1-9]\d*)")


class TensorParts(Protocol):
    """Tensors that several processes hold a share of."""

    @property
    def bytes(self) -> int:
        """The bytes of all shares."""
        ...

    @property
    def finite(self) -> bool:
        """Whether every number of every share is finite."""
        ...

    def write(self, folder: Path, stem: str) -> Mapping[str, FileDigest]:
        """Each process writes its part into ``folder``; name → what the file should contain. Raises OSError when no
        process writes any more, and ProcessLost."""
        ...


def part_name(stem: str, part: int, parts: int) -> str:
    """The file of a part, counted from 1."""
    if parts == 1:
        return f"{stem}{SUFFIX}"
    return f"{stem}.{part}-of-{parts}{SUFFIX}"


class PartName(NamedTuple):
    """What the name of a part's file says."""

    stem: str  # name of the group of tensors
    part: int  # counted from 1
    parts: int  # how many the group has


def split_part_name(name: str) -> PartName:
    """The name of a file of tensors, taken apart."""
    stem = name.removesuffix(SUFFIX)
    match = _PART.fullmatch(stem)
    if match is None:
        return PartName(stem, 1, 1)
    return PartName(match["stem"], int(match["part"]), int(match["parts"]))


def write_part(
    folder: Path, stem: str, tensors: Tensors, *, part: int = 1, parts: int = 1, files: Files = REAL_FILES
) -> dict[str, FileDigest]:
    """Write and fsync one part. Raises OSError."""
    name = part_name(stem, part, parts)
    return {name: write_file(files, folder / name, _encode_tensors(tensors))}


def write_group(folder: Path, stem: str, group: Tensors | TensorParts, files: Files) -> Mapping[str, FileDigest]:
    """Write tensors that lie here as one part, others in theirs. Raises OSError, ProcessLost."""
    if isinstance(group, Mapping):
        return write_part(folder, stem, group, files=files)
    return group.write(folder, stem)


def parts_problem(names: Iterable[str]) -> str | None:
    """The fault of the parts among these files; None where each group has all of its own and no others."""
    parts_by_stem: dict[str, list[tuple[int, int]]] = {}
    for name in names:
        stem, part, parts = split_part_name(name)
        parts_by_stem.setdefault(stem, []).append((parts, part))
    for stem, present in parts_by_stem.items():
        count, _ = max(present)  # the largest number of parts that a file names
        for part in range(1, count + 1):
            if (count, part) not in present:
                return f"no {part_name(stem, part, count)}"
        if len(present) > count:
            parts, part = min(present)
            return f"{part_name(stem, part, parts)} beside {count} parts"
    return None


def join_parts(parts: Mapping[int, Tensors]) -> dict[str, torch.Tensor]:
    """The whole tensors, from those of each part."""
    import torch

    rows: dict[str, list[torch.Tensor]] = {}
    for part in sorted(parts):
        for name, tensor in parts[part].items():
            rows.setdefault(name, []).append(tensor)
    whole = {}
    for name, pieces in rows.items():
        whole[name] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return whole


def tensor_bytes(group: Tensors | TensorParts) -> int:
    """The size of all of them, in bytes."""
    if isinstance(group, Mapping):
        return sum(tensor.nbytes for tensor in group.values())
    return group.bytes


def is_finite(group: Tensors | TensorParts) -> bool:
    """Whether every number of it is finite."""
    if isinstance(group, Mapping):
        return all(bool(tensor.isfinite().all()) for tensor in group.values())
    return group.finite


def _encode_tensors(group: Tensors) -> bytes:
    import safetensors.torch

    seen: set[int] = set()
    dense: dict[str, torch.Tensor] = {}
    for name, tensor in group.items():
        copy = tensor.detach().to("cpu").contiguous()
        if copy.untyped_storage().data_ptr() in seen:  # tied or views of one buffer: the format wants each on its own
            copy = copy.clone()
        seen.add(copy.untyped_storage().data_ptr())
        dense[name] = copy
    return safetensors.torch.save(dense)
