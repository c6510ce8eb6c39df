"""The size of a model, from its configuration and the headers of its weight files, without loading weights.

The model may be a directory, in the local cache, or on the Hub. For a directory without weights config.json is enough,
so that a run can be planned before anything is downloaded.

Left out: weights in other formats than safetensors.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_safetensors_metadata, snapshot_download
from huggingface_hub.errors import HFValidationError
from transformers import AutoConfig, AutoModelForCausalLM

from cotrain.core.errors import ModelError
from cotrain.models.ends import written_ends
from cotrain.models.files import FILES, SAFETENSORS, Shapes, check_config, read_object, shapes_in, weight_files
from cotrain.models.load import (
    TOKENIZER_FILES,
    check_directory,
    first_line,
    hub_parts,
    load_tokenizer,
    model_without_weights,
    report_model_errors,
    resolve_model,
    unreachable_error,
)
from cotrain.prompts.render import Renderer

LETTERS_PER_TOKEN = 3  # estimate if there is no tokenizer
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.safetensors.index.json")
TEMPLATE_TOKENS = 32  # estimate of the tokens that a chat template puts around a message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Sizes of a causal model."""

    parameters: int
    layers: int
    hidden: int
    inner: int  # width of the feed-forward part
    keys: int  # key heads × their width
    vocabulary: int
    context: int  # tokens
    linear: int  # parameters in matrices inside of layers
    linear_sides: int  # Σ (in + out) over these matrices; times the rank it is the size of an "all-linear" adapter
    around: int  # estimate of the chat template's tokens around one message
    tokenizer: Any


def model_size(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> ModelSize:
    """The sizes of a model. If it is on the Hub and not in the cache, its small files and the headers of its weight
    files are downloaded. Raises ModelError for a model that cannot be read: no such directory or name, no network,
    damaged weights, no tokenizer."""
    label = f"model {str(name)!r}"
    resolved = resolve_model(name)
    where = resolved if isinstance(resolved, Path) else _cached_directory(resolved)
    if where is not None and has_config_alone(where):  # planned before it is downloaded
        shapes = _config_shapes(where, trust_remote_code)
    elif where is not None:
        check_directory(where)
        shapes = shapes_in(where, name)
        if not trust_remote_code:
            model_without_weights(name, where)  # raises if weights and configuration do not fit
    else:
        where = _small_files(str(resolved))
        shapes = _hub_shapes(str(resolved))
        check_config(read_object(where / "config.json", label), [key for _, key in shapes], label)

    with report_model_errors(label, "config.json "):
        config: Any = AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code).get_text_config()
    parameters = sum(math.prod(shape) for shape, _ in shapes)
    matrices = matrices_of(shapes)
    query_heads = getattr(config, "num_attention_heads", None) or 0  # 0 for a model without attention
    key_heads = getattr(config, "num_key_value_heads", None) or query_heads
    if query_heads == 0:
        key_heads = 0
    head_width = getattr(config, "head_dim", None) or config.hidden_size // max(1, query_heads)
    tokenizer = _tokenizer_in(where, trust_remote_code)
    return ModelSize(
        parameters=parameters,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        keys=key_heads * head_width,
        vocabulary=config.vocab_size,
        context=getattr(config, "max_position_embeddings", None) or 2**31,
        linear=sum(map(math.prod, matrices)),
        linear_sides=sum(map(sum, matrices)),
        around=TEMPLATE_TOKENS if tokenizer.chat_template else 0,
        tokenizer=tokenizer,
    )


def matrices_of(shapes: Shapes) -> list[tuple[int, int]]:
    """(out, in) of the matrices inside of layers."""
    outside = ("embed", "lm_head", "wte", "wpe", "score")
    matrices = []
    for shape, key in shapes:
        is_outside = any(part in key for part in outside)
        if len(shape) == 2 and not is_outside:
            matrices.append((shape[0], shape[1]))
    return matrices


class _LetterCounter:
    """In place of the tokenizer of a model that has only a config.json: a token for every three letters."""

    chat_template = True  # as most models have one

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [0] * math.ceil(len(text) / LETTERS_PER_TOKEN)}


def _tokenizer_in(where: Path, trust_remote_code: bool) -> Any:
    """The tokenizer of a model; a ``_LetterCounter`` for a directory with only a config.json."""
    if has_config_alone(where):
        has_tokenizer = any((where / file).is_file() for file in TOKENIZER_FILES)
        return load_tokenizer(where, trust_remote_code=trust_remote_code) if has_tokenizer else _LetterCounter()
    tokenizer: Any = load_tokenizer(where, trust_remote_code=trust_remote_code)
    Renderer(tokenizer, written_ends(where))  # raises now for a tokenizer with which no run could work
    return tokenizer


def has_config_alone(where: Path) -> bool:
    """Whether a directory has the configuration of a model and no weights of any kind."""
    weights = (file for pattern in WEIGHTS for file in where.glob(pattern))
    return (where / "config.json").is_file() and next(weights, None) is None


def _config_shapes(where: Path, trust_remote_code: bool) -> Shapes:
    """The shapes of the weights of a model with this configuration; tied weights once. ``trust_remote_code``: build it
    by Python files that come with it; without, transformers raises for them instead of asking at the terminal."""
    label = f"model {str(where)!r}"
    check_config(read_object(where / "config.json", label), None, label)
    with report_model_errors(label, "config.json "), torch.device("meta"):
        config = AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return [(tuple(weights.shape), name) for name, weights in model.named_parameters()]


@functools.lru_cache(maxsize=64)
def weight_shapes(name: str) -> Shapes | None:
    """The shapes of all weights of a model; None where it cannot be looked at: loading it raises the error. No code
    of the model is run."""
    try:
        resolved = resolve_model(name)
        where = resolved if isinstance(resolved, Path) else _cached_directory(resolved)
        if where is not None and has_config_alone(where):
            return _config_shapes(where, trust_remote_code=False)
        return _hub_shapes(str(resolved)) if where is None else shapes_in(where, name)
    except ModelError:
        return None


def parameter_count(name: str) -> int | None:
    """The number of all weights of a model; None where it cannot be looked at."""
    shapes = weight_shapes(name)
    return None if shapes is None else sum(math.prod(shape) for shape, _ in shapes)


def _cached_directory(name: str) -> Path | None:
    """The directory of a Hub model in the cache; None if not all of its weights are there."""
    repository, revision = hub_parts(name)
    try:
        where = Path(snapshot_download(repository, revision=revision, allow_patterns=FILES, local_files_only=True))
        weight_files(where, name)
    except (OSError, ValueError, HFValidationError, ModelError):
        return None
    return where


def _small_files(name: str) -> Path:
    """The directory with all files of a Hub model except its weights. Raises ModelError."""
    repository, revision = hub_parts(name)
    files = [pattern for pattern in FILES if pattern != SAFETENSORS]
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=files, ignore_patterns=["*/*"]))
    except (OSError, HFValidationError) as error:
        raise unreachable_error(name, error) from error


def _hub_shapes(name: str) -> Shapes:
    """The shapes of the weights of a model on the Hub. Raises ModelError."""
    repository, revision = hub_parts(name)
    try:
        files = get_safetensors_metadata(repository, revision=revision).files_metadata.values()
    except Exception as error:  # the Hub's own, and those of whichever HTTP library it uses
        raise ModelError(
            f"model {name!r}: no *.safetensors can be read on the Hub ({first_line(error)})", code="E_MODEL_NOT_FOUND"
        ) from error
    return [(tuple(tensor.shape), key) for file in files for key, tensor in file.tensors.items()]
