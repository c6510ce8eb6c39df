"""How many parameters a model has, from the headers of its weights: of a directory, the local cache, or the Hub.

Left out: models whose size nobody can tell, which are None: whoever loads them says what is wrong.
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

from huggingface_hub import get_safetensors_metadata, snapshot_download
from huggingface_hub.errors import HFValidationError

from cotrain.core.errors import ModelError
from cotrain.models.load import embedded, hub_parts, resolve


@functools.lru_cache(maxsize=64)
def parameters_of(name: str) -> int | None:
    """Of all its weights; None for a model of this package, which are small, and for one that cannot be looked at."""
    try:
        where = None if embedded(name) else resolve(name)
    except ModelError:
        return None
    if where is None:
        return None
    if isinstance(where, Path):
        return _counted(where)
    repository, revision = hub_parts(where)
    try:
        kept = snapshot_download(repository, revision=revision, allow_patterns=["*.safetensors"], local_files_only=True)
        if (found := _counted(Path(kept))) is not None:
            return found
    except (OSError, ValueError, HFValidationError):
        pass
    try:
        return sum(get_safetensors_metadata(repository, revision=revision).parameter_count.values()) or None
    except Exception:  # noqa: BLE001  # no network, no such model, no safetensors: each of them another error
        return None


def _counted(folder: Path) -> int | None:
    count = 0
    try:
        for file in folder.glob("*.safetensors"):
            with file.open("rb") as stream:
                header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            count += sum(math.prod(entry["shape"]) for key, entry in header.items() if key != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError):
        return None
    return count or None
