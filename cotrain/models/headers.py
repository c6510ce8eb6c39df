"""The shapes of a model's weights, from the headers of its ``*.safetensors``: nothing is loaded.

Files are chosen as transformers chooses them: ``model.safetensors``, else those that the index names, else all there
are. ``consolidated*.safetensors`` are the same weights once more, laid out for another library, and never count. Left
out: weights in other formats.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from safetensors import SafetensorError, safe_open

from cotrain.core.errors import ModelError
from cotrain.models.files import read_object

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
COPIES = "consolidated*"  # of weights that other files hold too

Shapes = list[tuple[tuple[int, ...], str]]  # of each tensor, with its name


def weight_files(folder: Path, name: str | os.PathLike[str]) -> list[Path]:
    """The files that a model's weights consist of; ``name``: what errors call it. Raises ModelError where there are
    none, or not all that the index names."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        files = sorted(file for file in folder.glob("*.safetensors") if not file.match(COPIES))
        if not files:
            raise ModelError(f"model {str(name)!r}: no weights; expected {SINGLE}, or {INDEX} and its files")
        return files
    try:
        shards = read_object(folder / INDEX, f"model {str(name)!r}")["weight_map"].values()
        files = [folder / shard for shard in sorted(set(shards))]
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"model {str(name)!r}: {INDEX} has no weight_map that can be read; copy it again") from error
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"model {str(name)!r}: {len(missing)} of {len(files)} files of weights are missing, such as {missing[0]}; "
            "copy or download them"
        )
    return files


def shapes_in(folder: Path, name: str | os.PathLike[str]) -> Shapes:
    """Of all weights in a directory. Raises ModelError as ``weight_files`` does, and for a file that is damaged."""
    shapes: Shapes = []
    names: list[str] = []
    for file in weight_files(folder, name):
        try:
            with safe_open(file, framework="pt") as weights:
                shapes += [(tuple(weights.get_slice(key).get_shape()), key) for key in weights.keys()]  # noqa: SIM118
            names += _names_in(file)
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise ModelError(
                f"model {str(name)!r}: {file.name} is cut short or damaged ({str(error).rstrip('.')}); copy it again"
            ) from error
    (most, times), *_ = Counter(names).most_common(1) or [("", 0)]
    if times > 1:
        raise ModelError(f"model {str(name)!r}: {times} weights are called {most!r}; expected one of each name")
    return shapes


def _names_in(file: Path) -> list[str]:
    """All names in a header that could be read, also those that are there twice."""
    with file.open("rb") as stream:
        header = stream.read(int.from_bytes(stream.read(8), "little"))
    names: list[str] = []

    def keep_names(pairs: list[tuple[str, object]]) -> None:
        names[:] = [key for key, _ in pairs if key != "__metadata__"]  # the outermost object comes last

    json.loads(header, object_pairs_hook=keep_names)
    return names
