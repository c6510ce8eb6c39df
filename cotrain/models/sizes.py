"""How large a model is, from its configuration and the headers of its weights, which are not loaded.

Left out: the network. A model of the Hub that is not in the local cache has no shape.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from cotrain.core.errors import ModelError
from cotrain.models.load import FILES, UNREADABLE, check_directory, first_line, hub_parts, load_tokenizer, resolve

TEMPLATE = 32  # tokens that a chat template puts around a message, where it cannot be rendered


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a causal model."""

    parameters: int
    layers: int
    hidden: int
    inner: int  # width of the feed-forward part
    keys: int  # key heads × their width
    vocabulary: int
    context: int  # tokens
    linear_sides: int  # Σ (in + out) over the matrices inside of layers, which "all-linear" adapters stand on
    around: int  # tokens of the chat template around one message
    tokenizer: Any


def shape_of(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Shape | None:
    """Look at a model; None for a name of the Hub that is not in the cache. Raises ModelError for one that
    cannot be read: no such directory, damaged weights, no tokenizer."""
    where = resolve(name)
    if not isinstance(where, Path):
        try:
            repository, revision = hub_parts(where)
            found = snapshot_download(repository, revision=revision, allow_patterns=FILES, local_files_only=True)
            where = Path(found)
        except (OSError, HFValidationError):
            return None
    check_directory(where)
    try:
        config: Any = AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code).get_text_config()
    except UNREADABLE as error:
        raise ModelError(f"model {str(name)!r}: config.json cannot be read: {first_line(error)}") from error
    parameters, sides = 0, 0
    for shape, key in _shapes(name, where):
        parameters += math.prod(shape)
        if len(shape) == 2 and not any(part in key for part in ("embed", "lm_head", "wte", "wpe", "score")):
            sides += sum(shape)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    tokenizer: Any = load_tokenizer(where, trust_remote_code=trust_remote_code)
    return Shape(
        parameters=parameters,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        keys=heads * width,
        vocabulary=config.vocab_size,
        context=getattr(config, "max_position_embeddings", None) or 2**31,
        linear_sides=sides,
        around=TEMPLATE if tokenizer.chat_template else 0,
        tokenizer=tokenizer,
    )


def _shapes(name: Any, folder: Path) -> list[tuple[tuple[int, ...], str]]:
    found = []
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                found += [(tuple(weights.get_slice(key).get_shape()), key) for key in weights.keys()]  # noqa: SIM118
        except (SafetensorError, OSError, json.JSONDecodeError) as error:
            raise ModelError(
                f"model {str(name)!r}: {file.name} is cut short or damaged ({first_line(error)}); copy it again"
            ) from error
    return found
