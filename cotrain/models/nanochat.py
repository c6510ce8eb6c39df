"""Converts checkpoints of karpathy/nanochat to model directories (``cotrain convert nanochat``), and back (``cotrain
export --to nanochat``).

nanochat writes ``model_000123.pt`` and ``meta_000123.json`` side by side, and ``tokenizer/tokenizer.pkl``, a pickled
``tiktoken.Encoding``, next to the folder of checkpoints. Neither pickle can run code: ``torch.load`` reads the weights
with ``weights_only``, ``tiktoken_encoding.py`` the tokenizer.

Two architectures are read, and distinguished by their weights: that of nanochat's first months, which is transformers'
own ``NanoChat``, and that of March 2026 and later, with smear gates, which is our ``NanoChatGPT``
(``nanochat_gpt.py``). Architectures in between had constants that are in no checkpoint, and nanochat's present code
does not read them either; they raise an error that names one of their weights.

What the checkpoint does not say is here as nanochat's code has it: logits capped at 15, a feed-forward of
4 · n_embd, ``F.rms_norm`` with its own ε; of the first architecture also a rotary base of 10,000. Weights are written
as float32, so that nothing is rounded. Left out: optimiser state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    NanoChatConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from cotrain.core.errors import DataError, ModelError
from cotrain.core.input_files import parse_json
from cotrain.models.load import load_config, load_model, save_model
from cotrain.models.nanochat_gpt import SMEAR_GATE, VALUE_GATE, NanoChatGPTConfig
from cotrain.models.tiktoken_encoding import encoding_state, pickle_encoding, read_encoding
from cotrain.storage.file_ops import filled_directory
from cotrain.storage.kept_work import claimed_directory

Config = NanoChatConfig | NanoChatGPTConfig  # configurations of the first architecture and of the present one
SIZES = {  # nanochat's name → that of transformers
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "sequence_len": "max_position_embeddings",
}
LAYER = {
    "attn.c_q": "self_attn.q_proj",
    "attn.c_k": "self_attn.k_proj",
    "attn.c_v": "self_attn.v_proj",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
GATE = "attn.ve_gate"  # weight of layers with a value embedding
OLD_WEIGHTS = {"transformer.wte.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
# Weights of the present architecture.
SCALARS = ("resid_lambdas", "x0_lambdas", "smear_lambda", "backout_lambda", "smear_gate.weight")
PADDED_TO = 64  # nanochat rounds its vocabulary up to a multiple of this
BOS = "<|bos|>"
USER = ("<|user_start|>", "<|user_end|>")
ASSISTANT = ("<|assistant_start|>", "<|assistant_end|>")
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- set system = messages[0]['content'] + '\n\n' if messages[0]['role'] == 'system' else '' -%}"
    "{%- for message in (messages[1:] if system else messages) -%}"
    "{%- if message['role'] != ['user', 'assistant'][loop.index0 % 2] -%}"
    "{{- raise_exception('user and assistant must alternate, found ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|' + message['role'] + '_start|>' -}}{{- system if loop.first else '' -}}{{- message['content'] -}}"
    "{{- '<|' + message['role'] + '_end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}"
)


def convert(
    directory: Path | str, out: Path | str, *, tokenizer: Path | str | None = None, step: int | None = None
) -> Path:
    """Write the checkpoint in ``directory`` as a model directory ``out``. ``step``: by default the last one.

    Raises ModelError for another architecture or a tokenizer that does not fit, DataError for files that cannot be read
    safely, RunDirectoryError when ``out`` is not empty or another command writes to it.
    """
    source = Path(directory)
    target = Path(out)
    with claimed_directory(target):
        _convert_into(target, source, tokenizer=tokenizer, step=step)
    return target


def _convert_into(target: Path, source: Path, *, tokenizer: Path | str | None, step: int | None) -> None:
    file, meta = _checkpoint_files(source, step)
    loaded_tokenizer = _find_tokenizer(source, None if tokenizer is None else Path(tokenizer))
    tensors = {name.removeprefix("_orig_mod."): tensor for name, tensor in _read_tensors(file).items()}
    config = _read_config(meta, loaded_tokenizer, is_present="smear_gate.weight" in tensors)
    weights = _rename_weights(tensors, config, file)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(weights, strict=True, assign=True)
    bos_id = loaded_tokenizer.bos_token_id
    eos_id = loaded_tokenizer.eos_token_id
    model.generation_config = GenerationConfig(
        bos_token_id=bos_id,
        eos_token_id=sorted({bos_id, eos_id}),  # a document also ends where the next one begins
        pad_token_id=loaded_tokenizer.pad_token_id,
    )
    with filled_directory(target) as folder:
        save_model(model, loaded_tokenizer, folder)


def _checkpoint_files(source: Path, step: int | None) -> tuple[Path, Path]:
    """The file of the weights of one step, and the JSON file about them."""
    file_by_step = {}
    for path in source.glob("model_*.pt"):
        match = re.fullmatch(r"model_(\d+)\.pt", path.name)
        if match:
            file_by_step[int(match[1])] = path

    if not file_by_step:
        raise ModelError(
            f"{source}: no model_*.pt; expected a directory with checkpoints of nanochat, such as d20",
            code="E_NANOCHAT_CHECKPOINT_MISSING",
        )
    if step is not None and step not in file_by_step:
        raise ModelError(
            f"{source}: no checkpoint of step {step} (there are: {', '.join(map(str, sorted(file_by_step)))})",
            code="E_NANOCHAT_CHECKPOINT_MISSING",
        )
    file = file_by_step[max(file_by_step) if step is None else step]
    meta = file.with_name(file.name.replace("model_", "meta_")).with_suffix(".json")
    if not meta.is_file():
        raise ModelError(
            f"{file}: {meta.name} is missing beside it; it holds the sizes of the model", code="E_NANOCHAT_META_MISSING"
        )
    return file, meta


def _read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """The weights of one step. Raises DataError for anything but a flat dict of floating-point tensors."""
    try:
        stored = torch.load(file, map_location="cpu", weights_only=True)  # this refuses every other class
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), str(error).partition("\n")[0])
        raise DataError(
            f"{file}: not readable as weights ({reason.strip():.160}); nothing was run",
            code="E_NANOCHAT_WEIGHTS_UNREADABLE",
        ) from error
    if not isinstance(stored, dict) or not all(
        isinstance(t, torch.Tensor) and t.is_floating_point() for t in stored.values()
    ):
        raise DataError(
            f"{file}: expected a state dict of floating-point tensors, found {type(stored).__name__}",
            code="E_NANOCHAT_WEIGHTS_UNREADABLE",
        )
    return {str(name): tensor for name, tensor in stored.items()}


def _read_config(meta: Path, tokenizer: PreTrainedTokenizerBase, *, is_present: bool) -> Config:
    """The configuration of the present architecture, or of the first one."""
    try:
        model_config = parse_json(meta.read_text(encoding="utf-8"))["model_config"]
        sizes: dict[str, Any] = {new: int(model_config[old]) for old, new in SIZES.items()}
        pattern = str(model_config.get("window_pattern", "L")).upper()
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ModelError(
            f"{meta}: no readable model_config with {', '.join(SIZES)} ({error})", code="E_NANOCHAT_SETTING"
        ) from error
    unknown = sorted(set(model_config) - set(SIZES) - {"window_pattern"})
    if unknown:
        raise ModelError(
            f"{meta}: the setting {unknown[0]!r} is of an architecture of nanochat that is not known here",
            code="E_NANOCHAT_ARCHITECTURE",
        )
    if not pattern or set(pattern) - set("SL"):
        raise ModelError(
            f"{meta}: window_pattern is {pattern[:20]!r}; expected letters S and L, such as 'SSSL'",
            code="E_NANOCHAT_SETTING",
        )
    if "S" in pattern and not is_present:
        raise ModelError(
            f"{meta}: sliding windows ({pattern!r}), but the weights have no smear_gate; checkpoints are read of "
            "before January and of after March 2026",
            code="E_NANOCHAT_ARCHITECTURE",
        )
    heads = sizes["num_attention_heads"]
    keys = sizes["num_key_value_heads"]
    if min(sizes.values()) < 1 or sizes["hidden_size"] % heads or heads % keys or sizes["hidden_size"] // heads % 2:
        raise ModelError(f"{meta}: the sizes do not go together: {model_config}", code="E_NANOCHAT_SETTING")
    if len(tokenizer) != sizes["vocab_size"]:
        raise ModelError(
            f"{meta}: vocab_size is {sizes['vocab_size']}, but the tokenizer has {len(tokenizer)} tokens",
            code="E_NANOCHAT_VOCABULARY",
        )
    tokens = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if is_present:
        return NanoChatGPTConfig(**sizes, window_pattern=pattern, **tokens)
    return NanoChatConfig(
        **sizes,
        intermediate_size=4 * sizes["hidden_size"],
        rms_norm_eps=torch.finfo(torch.float32).eps,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        final_logit_softcapping=15.0,
        tie_word_embeddings=False,
        **tokens,
    )


def weight_names(config: Config) -> dict[str, tuple[str, tuple[int, ...]]]:
    """nanochat's name of each weight → that of transformers, and its shape without padding."""
    heads = config.num_attention_heads
    wide = config.hidden_size
    narrow = (config.num_key_value_heads or heads) * (wide // heads)
    shapes = {"attn.c_k": (narrow, wide), "attn.c_v": (narrow, wide)}
    shapes |= {"mlp.c_fc": (4 * wide, wide), "mlp.c_proj": (wide, 4 * wide)}
    rows = config.vocab_size
    layers = config.num_hidden_layers
    names: dict[str, tuple[str, tuple[int, ...]]] = {old: (new, (rows, wide)) for old, new in OLD_WEIGHTS.items()}
    for layer in range(layers):
        for old, new in LAYER.items():
            names[f"transformer.h.{layer}.{old}.weight"] = (
                f"model.layers.{layer}.{new}.weight",
                shapes.get(old, (wide, wide)),
            )

    if not isinstance(config, NanoChatGPTConfig):
        return names
    lengths = {"resid_lambdas": (layers,), "x0_lambdas": (layers,), "smear_gate.weight": (1, SMEAR_GATE)}
    for scalar in SCALARS:
        names[scalar] = (f"model.{scalar}", lengths.get(scalar, (1,)))
    for layer in filter(config.has_value_embedding, range(layers)):
        inside = f"model.layers.{layer}.self_attn"
        names[f"value_embeds.{layer}.weight"] = (f"{inside}.value_embed.weight", (rows, narrow))
        gate = (config.num_key_value_heads, VALUE_GATE)
        names[f"transformer.h.{layer}.{GATE}.weight"] = (f"{inside}.value_gate.weight", gate)
    return names


def is_padded(old: str) -> bool:
    """Whether a weight has a row for each token, and more up to a multiple of ``PADDED_TO``."""
    return old in OLD_WEIGHTS or old.startswith("value_embeds.")


def _rename_weights(stored: Mapping[str, torch.Tensor], config: Config, file: Path) -> dict[str, torch.Tensor]:
    """The weights under the names of transformers, as float32; vocabularies padded for speed are cut to their size."""
    expected = weight_names(config)
    unknown = sorted(set(stored) - set(expected))
    missing = sorted(set(expected) - set(stored))
    if unknown:
        raise ModelError(
            f"{file}: {len(unknown)} weights, such as {unknown[0]!r}, are of an architecture of nanochat that is not "
            "known here (read are those of before January and of after March 2026); nothing was written",
            code="E_NANOCHAT_ARCHITECTURE",
        )
    if missing:
        raise ModelError(
            f"{file}: {len(missing)} weights are missing, such as {missing[0]!r}", code="E_NANOCHAT_WEIGHTS_MISFIT"
        )
    renamed = {}
    for old, (new, shape) in expected.items():
        tensor = stored[old]
        if is_padded(old) and tensor.dim() == 2:
            tensor = tensor[: shape[0]]
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{file}: {old} has the shape {list(stored[old].shape)}, expected {list(shape)}",
                code="E_NANOCHAT_WEIGHTS_MISFIT",
            )
        renamed[new] = tensor.float().contiguous()
    return renamed


def _find_tokenizer(source: Path, user_folder: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer in the user's folder, if there is one. Else that in the checkpoint's folder, or where nanochat
    keeps it: two levels up, in ``tokenizer``."""
    folders = [source, source.resolve().parent.parent / "tokenizer"]
    if user_folder is not None:
        folders = [user_folder]
    for folder in folders:
        if (folder / "tokenizer.pkl").is_file():
            return _set_special_tokens(read_encoding(folder / "tokenizer.pkl"))
        if (folder / "tokenizer.json").is_file():
            return _set_special_tokens(PreTrainedTokenizerFast.from_pretrained(folder))
    raise ModelError(
        f"{' and '.join(map(str, folders))}: no tokenizer.pkl and no tokenizer.json; name their directory with "
        "--tokenizer",
        code="E_NO_TOKENIZER",
    )


def _set_special_tokens(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer with nanochat's special tokens set as bos, eos and pad, and its chat format if it has the
    tokens."""
    vocabulary = tokenizer.get_vocab()
    if BOS not in vocabulary:
        raise ModelError(f"the tokenizer has no {BOS}; expected one of nanochat", code="E_NANOCHAT_TOKENIZER")
    tokenizer.bos_token = tokenizer.pad_token = BOS
    tokenizer.eos_token = ASSISTANT[1] if ASSISTANT[1] in vocabulary else BOS
    if tokenizer.chat_template is None and all(token in vocabulary for token in (*USER, *ASSISTANT)):
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


# -- Back to nanochat.


def write_base_directory(source: Path, target: Path, *, stage: str, step: int) -> Path:
    """Write the model directory ``source`` into ``target`` as nanochat's own code reads it with
    ``NANOCHAT_BASE_DIR=target``: weights and sizes under ``{stage}_checkpoints/d{layers}``, and the tokenizer. Returns
    the directory with the weights.

    ``stage``: "chatsft", "chatrl" or "base"; ``step``: the number in the names of the files. Raises ModelError for a
    model or a tokenizer that nanochat's code does not have.
    """
    model, tokenizer = load_model(source)
    config: Any = model.config
    _check_constants(config, type(model).__name__)
    encoding = pickle_encoding(tokenizer)
    weights = {old: _pad_vocabulary(old, model.get_parameter(new)) for old, (new, _) in weight_names(config).items()}
    sizes: dict[str, Any] = {old: getattr(config, new) for old, new in SIZES.items()}
    if isinstance(config, NanoChatGPTConfig):
        sizes["window_pattern"] = config.window_pattern
    checkpoints = target / f"{stage}_checkpoints" / f"d{config.num_hidden_layers}"
    tokens = target / "tokenizer"
    checkpoints.mkdir(parents=True)
    tokens.mkdir()
    torch.save(weights, checkpoints / f"model_{step:06d}.pt")
    meta = {"step": step, "model_config": sizes}
    (checkpoints / f"meta_{step:06d}.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    (tokens / "tokenizer.pkl").write_bytes(encoding)
    torch.save(_byte_counts(encoding_state(tokenizer)), tokens / "token_bytes.pt")
    return checkpoints


def check_can_write(name: str, *, trust_remote_code: bool = False) -> None:
    """Raise ModelError for a model that nanochat's code does not have; no weights are loaded."""
    config = load_config(name, trust_remote_code=trust_remote_code)
    architectures = config.architectures or [type(config).__name__]
    _check_constants(config, architectures[0])


def _check_constants(config: Any, name: str) -> None:
    """Raise ModelError for a configuration that nanochat's code cannot compute."""
    if isinstance(config, NanoChatGPTConfig):
        expected: dict[str, Any] = {"rope_theta": 100_000.0, "final_logit_softcapping": 15.0}
    elif isinstance(config, NanoChatConfig):
        expected = {"final_logit_softcapping": 15.0, "hidden_act": "relu2", "attention_bias": False}
        expected |= {"intermediate_size": 4 * config.hidden_size, "tie_word_embeddings": False}
        rope: Any = config.rope_parameters
        if rope["rope_theta"] != 10_000.0:
            raise ModelError(
                "rope_theta is not 10,000, which nanochat's code of this architecture has fixed",
                code="E_NOT_NANOCHAT_MODEL",
            )
    else:
        raise ModelError(
            f"the model is a {name}; nanochat's own code runs nanochat's models alone", code="E_NOT_NANOCHAT_MODEL"
        )
    for setting, value in expected.items():
        if getattr(config, setting) != value:
            raise ModelError(
                f"{setting} is {getattr(config, setting)!r}; nanochat's code has {value!r} fixed",
                code="E_NOT_NANOCHAT_MODEL",
            )


def _pad_vocabulary(old: str, tensor: torch.Tensor) -> torch.Tensor:
    """The weight as nanochat stores it: with rows of zeros up to a multiple of ``PADDED_TO`` tokens."""
    tensor = tensor.detach()
    missing = -len(tensor) % PADDED_TO if is_padded(old) else 0
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor


def _byte_counts(state: Mapping[str, Any]) -> torch.Tensor:
    """[V] int32: the number of bytes of each token, 0 for special ones, with which nanochat computes bits per byte."""
    counts = torch.zeros(len(state["mergeable_ranks"]) + len(state["special_tokens"]), dtype=torch.int32)
    for token, i in state["mergeable_ranks"].items():
        counts[i] = len(token)
    return counts
