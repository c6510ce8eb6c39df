"""The tensors of a file that ``torch.save`` wrote, read without executing the pickle inside.

Such a file is a zip of ``data.pkl``, which says how to rebuild each tensor, and one file of raw numbers a storage. The
pickle is read as notes (``disk/pickles.py``) and the numbers are cut out by them. Left out: everything that is no flat
dict of dense float tensors, and files of before torch 1.6.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import torch

from cotrain.core.errors import DataError
from cotrain.disk.pickles import Made, Name, Persistent, kind_of, read_pickle

STORAGES = {
    "FloatStorage": torch.float32,
    "BFloat16Storage": torch.bfloat16,
    "HalfStorage": torch.float16,
}


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file that ``torch.save`` wrote of a state dict, read without executing its pickle.

    Raises DataError for anything but a flat dict of dense tensors in float32, bfloat16 or float16.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise DataError(f"{file}: its parts are compressed; expected a file as torch.save writes it")
            (pickled,) = [name for name in sizes if name.endswith("/data.pkl") and name.count("/") == 1]
            top = pickled.removesuffix("data.pkl")
            if f"{top}byteorder" in sizes and archive.read(f"{top}byteorder") != b"little":
                raise DataError(f"{file}: written on a big-endian machine")
            value = read_pickle(archive.read(pickled), str(file))
            items = value.items if isinstance(value, Made) else value
            if not isinstance(items, dict) or (
                isinstance(value, Made) and value.by != Name("collections", "OrderedDict")
            ):
                raise DataError(f"{file}: expected a state dict, found {kind_of(value)}")
            return {str(key): _tensor(made, archive, top, f"{file}: {key!s:.80}") for key, made in items.items()}
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, RuntimeError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: not a file of torch.save ({str(error).splitlines()[0]:.120})") from error


def _tensor(made: Any, archive: zipfile.ZipFile, top: str, where: str) -> torch.Tensor:
    """One tensor from the note of how it would have been rebuilt."""
    if isinstance(made, Made) and made.by == Name("torch._utils", "_rebuild_parameter"):
        made = made.arguments[0]
    if not isinstance(made, Made) or made.by != Name("torch._utils", "_rebuild_tensor_v2"):
        raise DataError(f"{where}: expected a tensor, found {kind_of(made)}; nothing was executed")
    storage, offset, shape, stride = made.arguments[:4]
    if not isinstance(storage, Persistent) or storage.id[0] != "storage":
        raise DataError(f"{where}: expected a storage of this file, found {kind_of(storage)}")
    kind, key = storage.id[1], storage.id[2]
    if not isinstance(kind, Name) or kind.module != "torch" or kind.name not in STORAGES:
        raise DataError(f"{where}: expected float32, bfloat16 or float16 numbers, found {kind_of(kind)}")
    content = bytearray(archive.read(f"{top}data/{key}"))
    flat = (
        torch.frombuffer(content, dtype=STORAGES[kind.name]) if content else torch.empty(0, dtype=STORAGES[kind.name])
    )
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if math.prod(shape) else 0
    if min(offset, *shape, *stride, 0) < 0 or max(last + 1, math.prod(shape)) > max(len(flat), 1):
        raise DataError(f"{where}: the tensor reaches beyond the {len(flat)} numbers stored for it")
    return flat.as_strided(shape, stride, offset)
