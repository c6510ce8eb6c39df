"""Checks the files of a model directory before a library opens them, and reads the shapes of weights from the headers
of safetensors files.

A foreign directory may contain a pipe that never ends, a number of layers that takes hours to build, or JSON that the
library does not expect. Then a ModelError of one line says so, and nothing is built. Left out: the tokenizer's own
files, which its library reads with limits of its own.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from cotrain.core.errors import ModelError

SAFETENSORS = "*.safetensors"  # weights
FILES = ["*.json", SAFETENSORS, "*.model", "*.jinja", "merges.txt", "vocab.txt"]  # the files of a model
OBJECTS = (  # small JSON files that hold one object each
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "adapter_config.json",
    "model.safetensors.index.json",
)
LARGEST = 2**27  # most bytes of one of them
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
SIZES = (  # settings that are at least 1, if a model has them
    *(*LAYERS, "hidden_size", "n_embd", "num_attention_heads", "n_head", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "n_inner", "vocab_size", "max_position_embeddings", "n_positions"),
)
MOST = {"experts": 2**14, "heads": 2**14}  # largest number of each kind of part; a library would build more for hours
WIDEST = 2**40  # the largest of any of these sizes


def check_files(folder: Path, where: str) -> None:
    """Raise ModelError for an entry of a model directory that is no plain file: a pipe, a device, a broken link.
    ``where``: name of the directory in errors."""
    try:
        entries = sorted(folder.iterdir())
        entries += sorted((folder / "additional_chat_templates").glob("*"))
    except OSError as error:
        raise ModelError(
            f"{where}: {_reason_text(error)}; expected a directory that can be read",
            code="E_MODEL_DIRECTORY_UNREADABLE",
        ) from error
    for entry in entries:
        if not any(entry.match(pattern) for pattern in (*FILES, "*.py")):
            continue
        try:
            mode = entry.stat().st_mode
        except OSError as error:
            raise ModelError(
                f"{where}: {entry.name} leads nowhere ({_reason_text(error)}); copy it", code="E_MODEL_FILE_DANGLING"
            ) from error
        if not stat.S_ISREG(mode):
            kind = "directory" if stat.S_ISDIR(mode) else "pipe, device or socket"
            raise ModelError(
                f"{where}: {entry.name} is a {kind}; expected a plain file", code="E_MODEL_FILE_NOT_REGULAR"
            )


def read_object(file: Path, where: str) -> dict[str, Any]:
    """The object that a JSON file holds. Raises ModelError."""
    try:
        if file.stat().st_size > LARGEST:
            raise ModelError(
                f"{where}: {file.name} has more than {LARGEST} bytes; expected a small object",
                code="E_MODEL_FILE_TOO_LARGE",
            )
        content = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ModelError(
            f"{where}: {file.name} is nested too deeply; copy it again", code="E_MODEL_FILE_NOT_JSON"
        ) from error
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise ModelError(
            f"{where}: {file.name} is no JSON ({why}); copy it again", code="E_MODEL_FILE_NOT_JSON"
        ) from error
    if not isinstance(content, dict):
        raise ModelError(
            f"{where}: {file.name} holds a {type(content).__name__}, expected an object", code="E_MODEL_FILE_NOT_OBJECT"
        )
    return content


def check_objects(folder: Path, where: str) -> None:
    """Raise ModelError for one of ``OBJECTS`` that exists and does not contain an object."""
    for name in OBJECTS:
        file = folder / name
        if file.is_file():
            read_object(file, where)


def check_config(config: Mapping[str, Any], tensors: Collection[str] | None, where: str) -> None:
    """Raise ModelError for impossible sizes, more layers than there are ``tensors`` (None: not known), and a dtype that
    weights cannot have."""
    for key, value in _iter_settings(config):
        plain = key.rpartition(".")[2]
        wrong = _wrong_dtype(value) if plain in ("dtype", "torch_dtype") else ""
        if isinstance(value, int) and not isinstance(value, bool):
            if plain in SIZES and not 1 <= value <= WIDEST:
                wrong = f"expected 1 to {WIDEST}"
            elif any(part in plain and value > largest for part, largest in MOST.items()):
                wrong = "expected fewer"
            elif plain in LAYERS and tensors is not None and value > len(tensors):
                wrong = f"there are {len(tensors)} weights; config.json and weights do not belong together"
        if wrong:
            raise ModelError(f"{where}: config.json has {key} {str(value)[:60]!r}; {wrong}", code="E_MODEL_CONFIG")


def _wrong_dtype(value: Any) -> str:
    """What is expected instead of a dtype that weights cannot have; "" for one that they can have."""
    names = value.values() if isinstance(value, Mapping) else [value]
    for name in names:
        if name is None:
            continue
        dtype = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) and name else None
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            return "expected a type of weights, such as 'float32' or 'bfloat16'"
    return ""


def _iter_settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every setting, also in nested configurations, except for those of quantisation."""
    to_visit = [("", config)]
    while to_visit:
        prefix, settings = to_visit.pop()
        for name, value in settings.items():
            yield f"{prefix}{name}", value
            if isinstance(value, Mapping) and name != "quantization_config":
                to_visit.append((f"{prefix}{name}.", value))


def _reason_text(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# -- The shapes of a model's weights, from the headers of its ``*.safetensors``: nothing is loaded.


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
COPIES = "consolidated*"  # files with copies of weights that are in other files

Shapes = list[tuple[tuple[int, ...], str]]  # (shape, name) of each tensor


def weight_files(folder: Path, name: str | os.PathLike[str]) -> list[Path]:
    """The files with a model's weights. ``name``: the model's name in errors. Raises ModelError if there are none, or
    if some that the index names are missing."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        files = sorted(file for file in folder.glob("*.safetensors") if not file.match(COPIES))
        if not files:
            raise ModelError(
                f"model {str(name)!r}: no weights; expected {SINGLE}, or {INDEX} and its files", code="E_NO_WEIGHTS"
            )
        return files
    try:
        shards = read_object(folder / INDEX, f"model {str(name)!r}")["weight_map"].values()
        files = [folder / shard for shard in sorted(set(shards))]
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"model {str(name)!r}: {INDEX} has no weight_map that can be read; copy it again", code="E_WEIGHT_INDEX"
        ) from error
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"model {str(name)!r}: {len(missing)} of {len(files)} files of weights are missing, such as {missing[0]}; "
            "copy or download them",
            code="E_WEIGHT_FILES_MISSING",
        )
    return files


def shapes_in(folder: Path, name: str | os.PathLike[str]) -> Shapes:
    """The shapes of all weights in a directory. Raises ModelError as ``weight_files`` does, and for damaged files."""
    shapes: Shapes = []
    names: list[str] = []
    for file in weight_files(folder, name):
        try:
            with safe_open(file, framework="pt") as weights:
                shapes += [(tuple(weights.get_slice(key).get_shape()), key) for key in weights.keys()]  # noqa: SIM118
            names += _names_in(file)
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise ModelError(
                f"model {str(name)!r}: {file.name} is cut short or damaged ({str(error).rstrip('.')}); copy it again",
                code="E_WEIGHTS_DAMAGED",
            ) from error
    (most_common, times), *_ = Counter(names).most_common(1) or [("", 0)]
    if times > 1:
        raise ModelError(
            f"model {str(name)!r}: {times} weights are called {most_common!r}; expected one of each name",
            code="E_WEIGHT_TWICE",
        )
    return shapes


def _names_in(file: Path) -> list[str]:
    """All names of weights in a safetensors header, with duplicates."""
    with file.open("rb") as stream:
        header = stream.read(int.from_bytes(stream.read(8), "little"))
    names: list[str] = []

    def keep_names(pairs: list[tuple[str, object]]) -> None:
        # Called for the outermost object last, so its names stay.
        names[:] = [key for key, _ in pairs if key != "__metadata__"]

    json.loads(header, object_pairs_hook=keep_names)
    return names
