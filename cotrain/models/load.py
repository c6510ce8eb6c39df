"""Loads causal language models by directory or Hub name, through transformers: only safetensors, and remote code only
if the user allows it.

Ten names belong to the package itself: ``shipped``, the base model that ships with it, ``shipped-checker``, which
was taught no errors and can check, ``shipped-habits``, which has two habits that are wrong, ``shipped-proposer``,
which also writes problems, ``shipped-games``, which knows the games of single methods, ``shipped-search``, which
writes questions that need searching, ``shipped-format``, which knows the formats alone, ``shipped-roles``, which has
learned more roles, ``shipped-digest``, which can copy what matters out of documents, and ``shipped-rater``, a reward
model (docs/bases.md). They are stored as bfloat16 and loaded as float32 like any other.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from cotrain.core.errors import ModelError
from cotrain.core.nearest_names import nearest_name
from cotrain.core.shipped import SHIPPED, SHIPPED_BASE, how_to_get, is_shipped, shipped_folder
from cotrain.core.verbosity import shows_progress
from cotrain.models import nanochat_gpt as nanochat_gpt  # registers its classes with transformers
from cotrain.models.ends import written_ends
from cotrain.models.files import (
    COPIES,
    FILES,
    SAFETENSORS,
    check_config,
    check_files,
    check_objects,
    read_object,
    shapes_in,
    weight_files,
)
from cotrain.models.linear import use_onednn
from cotrain.models.memory import out_of_memory
from cotrain.prompts.render import Renderer, generation_config_of
from cotrain.storage.schemas import refuse_adapter

ATTENTION = "sdpa"  # the default
TOKENS_TRIED = 64  # tokens of a vocabulary that are tried, to see whether a tokenizer can read
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def resolve_model(name: str | os.PathLike[str]) -> Path | str:
    """The directory that a name means, or the name itself if it is one of the Hub.

    These are directories: a ``Path``, an existing path, a name that begins with ``.``, ``/`` or ``~``, ``a/b`` if there
    is a directory ``a``, and a name with two or more slashes, as no Hub name has them. Raises ModelError for a path
    that is no directory, and for a directory with entries that are no plain files (``files.check_files``).
    """
    if is_shipped(str(name)):
        path = shipped_folder(str(name))
        if not path.is_dir():
            raise ModelError(
                f"model {name!r}: {path} is missing from this installation; {how_to_get(str(name))}",
                code="E_SHIPPED_MODEL_MISSING",
            )
        return path
    text = os.fspath(name)
    if not text.strip():
        raise ModelError(
            f"model {text!r}: an empty name; give a directory, a name of the Hub, or {SHIPPED_BASE!r}",
            code="E_MODEL_NAME_EMPTY",
        )
    path = Path(text).expanduser()
    has_parent = "/" in text and path.parent.is_dir()
    is_path = isinstance(name, os.PathLike) or text.startswith((".", "/", "~")) or path.exists()
    if not (is_path or has_parent or text.count("/") > 1):
        return text
    if not path.exists():
        raise ModelError(
            f"model {text!r}: no such directory (shipped models: {', '.join(SHIPPED)})", code="E_MODEL_NOT_FOUND"
        )
    if not path.is_dir():
        raise ModelError(
            f"model {text!r}: a file; expected the directory that holds config.json and *.safetensors",
            code="E_MODEL_IS_FILE",
        )
    check_files(path, f"model {text!r}")
    return path


def hub_parts(name: str) -> tuple[str, str | None]:
    """The name in ``owner/name@revision``, and the revision if one is given."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def load_model(
    name: str | os.PathLike[str],
    dtype: torch.dtype | str = torch.float32,
    *,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    load_in_4bit: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal LM in evaluation mode, and its tokenizer.

    Args:
        name: directory, Hub name with or without "@revision", or a shipped language model, such as "shipped".
        dtype: of the weights in memory, whatever they are stored in.
        attn_implementation: "eager", "flash_attention_2" …; None: "sdpa", or "eager" where a model has no other.
        trust_remote_code: run Python files that come with the model. They may do anything that you may.
        load_in_4bit: keep linear layers, without the output layer, in 4 bits (``quantize.py``).

    Raises ModelError, which says what is missing: directory, config.json, safetensors weights, tokenizer, network.
    """
    directory = _fetch_model(name, code=trust_remote_code)
    check_directory(directory)
    if is_classifier(directory):
        raise ModelError(
            f"model {str(name)!r}: scores and does not speak (a model with a classification head); use it as a reward "
            "model, --rm-model of `cotrain run cooper`",
            code="E_MODEL_DOES_NOT_SPEAK",
        )
    tokenizer = _read_tokenizer(name, directory, trust_remote_code)
    arguments = (AutoModelForCausalLM, name, directory, dtype, attn_implementation, trust_remote_code)
    if not load_in_4bit:
        return _load_checked(*arguments), tokenizer
    from cotrain.models.quantize import keep_gradients, quantization_of

    model = _load_checked(*arguments, quantization_of(f"model {str(name)!r}", dtype))
    keep_gradients(model)
    return model, tokenizer


def load_classifier(
    name: str | os.PathLike[str],
    dtype: torch.dtype | str = torch.float32,
    *,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel | None:
    """Load a reward model of transformers' kind, a ``…ForSequenceClassification`` with one label, in evaluation mode;
    None for a model with another head. Arguments and errors: see ``load_model``; ModelError also for several labels."""
    directory = _fetch_model(name, code=trust_remote_code)
    check_directory(directory)
    if not is_classifier(directory):
        return None
    model = _load_checked(
        AutoModelForSequenceClassification, name, directory, dtype, attn_implementation, trust_remote_code
    )
    if model.config.num_labels != 1:
        raise ModelError(
            f"model {str(name)!r}: {model.config.num_labels} labels; expected a reward model, which has one",
            code="E_REWARD_LABELS",
        )
    return model


def is_classifier(directory: Path) -> bool:
    """Whether the model in a directory classifies whole texts, as reward models do."""
    config = read_object(directory / "config.json", f"model {str(directory)!r}")
    architectures = config.get("architectures")
    if not isinstance(architectures, list):
        return False
    return any(str(name).endswith("ForSequenceClassification") for name in architectures)


def _load_checked(
    kind: Any,
    name: str | os.PathLike[str],
    directory: Path,
    dtype: torch.dtype | str,
    attention: str | None,
    trust_remote_code: bool,
    special: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """Load a model of class ``kind``, first without weights to check that configuration and weights fit. ``special``:
    further arguments of ``from_pretrained``."""
    if not trust_remote_code:
        _read_model(kind, name, directory, dtype, attention, device_map="meta")
    result = _read_model(kind, name, directory, dtype, attention, trust_remote_code=trust_remote_code, **special or {})
    use_onednn(result)
    return result.eval()


def model_without_weights(name: str | os.PathLike[str], directory: Path) -> PreTrainedModel:
    """The model in a directory, with weights on the meta device. Raises ModelError if the weights in the directory are
    not those that its configuration needs."""
    kind: Any = AutoModelForSequenceClassification if is_classifier(directory) else AutoModelForCausalLM
    return _read_model(kind, name, directory, torch.float32, None, device_map="meta")


def _read_model(
    kind: Any,
    name: str | os.PathLike[str],
    directory: Path,
    dtype: torch.dtype | str,
    attention: str | None,
    *,
    trust_remote_code: bool = False,
    **special: Any,
) -> PreTrainedModel:
    """Load a model. Raises ModelError if weights are missing, of another shape, or not part of the model."""
    with report_model_errors(f"model {str(name)!r}"), _quiet_logging():
        model, report = kind.from_pretrained(
            directory,
            dtype=dtype,
            attn_implementation=attention or _default_attention(directory, trust_remote_code),
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            ignore_mismatched_sizes=True,  # reported below
            output_loading_info=True,
            **special,
        )

    missing = sorted(report["missing_keys"]) + sorted(str(key[0]) for key in report["mismatched_keys"])
    foreign = sorted(map(str, report["unexpected_keys"]))
    if missing or foreign:
        fault = "missing or of another shape" if missing else "that the model has no place for"
        raise ModelError(
            f"model {str(name)!r}: {len(missing or foreign)} weights {fault}, such as {(missing or foreign)[0]!r}; "
            "config.json and weights do not belong together",
            code="E_WEIGHTS_MISFIT",
        )
    result: PreTrainedModel = model
    vars(result)["written_ends"] = written_ends(directory)
    return result


@contextmanager
def report_model_errors(where: str, what: str = "") -> Iterator[None]:
    """Turn any error of a library in the block, which reads foreign files, into a ModelError of one line."""
    try:
        yield
    except ModelError:
        raise
    except SafetensorError as error:
        reason = f"its *.safetensors are cut short or damaged ({first_line(error)}); copy them again"
        raise ModelError(f"{where}: {reason}", code="E_WEIGHTS_DAMAGED") from error
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # raised by libraries in Rust
            raise
        reason = "memory ran out; free some" if out_of_memory(error) else first_line(error)
        raise ModelError(f"{where}: {what}cannot be read: {reason}", code="E_MODEL_UNREADABLE") from error


def model_directory(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Path:
    """The directory of the files of a model; one of the Hub is downloaded first. Raises ModelError."""
    directory = _fetch_model(name, code=trust_remote_code)
    check_directory(directory)
    return directory


def load_tokenizer(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a model directory or Hub name; no weights are downloaded. Raises ModelError when there is
    none."""
    return _read_tokenizer(name, _fetch_model(name, code=trust_remote_code, weights=False), trust_remote_code)


def load_renderer(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> Renderer:
    """The renderer of a model, with the end-of-sequence tokens that its authors wrote; neither downloads nor loads
    weights. Raises ModelError."""
    directory = _fetch_model(name, code=trust_remote_code, weights=False)
    return Renderer(_read_tokenizer(name, directory, trust_remote_code), written_ends(directory))


def load_config(name: str | os.PathLike[str], *, trust_remote_code: bool = False) -> PretrainedConfig:
    """The configuration of a model; neither downloads nor loads weights. Raises ModelError."""
    directory = _fetch_model(name, code=trust_remote_code, weights=False)
    if isinstance(resolve_model(name), Path):  # of a model of the Hub not all files are here
        check_directory(directory)
    with report_model_errors(f"model {str(name)!r}", "config.json "):
        config: PretrainedConfig = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    return config


def save_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
) -> None:
    """Write a model directory (config, safetensors, tokenizer), with weights converted to ``dtype``. Its generation
    configuration has the stop tokens of our renderer, so that other programs stop where we do."""
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    stored: nn.Module = model
    if dtype is not None and dtype != model.dtype:
        stored = copy.deepcopy(stored).to(dtype)
    assert isinstance(stored, PreTrainedModel)
    with _quiet_logging():
        stored.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    settings = copy.deepcopy(getattr(stored, "generation_config", None))
    if settings is None:  # no language model
        return
    stop_ids = list(Renderer(tokenizer, generation_config_of(stored)).stop_ids)
    ends = settings.eos_token_id
    if stop_ids != sorted(ends if isinstance(ends, list) else [ends]):
        settings.eos_token_id = stop_ids
        settings._from_model_config = False
        settings.save_pretrained(directory)


def describe_model(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Facts of a model directory: architecture, number of parameters, bytes and sha256 of its weights.

    The hash is taken over the safetensors files in order of their names; the count is read from their headers.
    """
    where = resolve_model(path)
    if not isinstance(where, Path):
        raise ModelError(
            f"model {where!r}: not a directory; a Hub name is described after it was saved",
            code="E_MODEL_NOT_DIRECTORY",
        )
    check_directory(where)
    digest = hashlib.sha256()
    size = 0
    for file in weight_files(where, path):
        content = file.read_bytes()
        digest.update(content)
        size += len(content)
    parameters = sum(math.prod(shape) for shape, _ in shapes_in(where, path))
    architectures = read_object(where / "config.json", f"model {str(path)!r}").get("architectures") or ["unknown"]
    return {"class": architectures[0], "parameters": parameters, "bytes": size, "sha256": digest.hexdigest()}


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Turn off progress bars and reports of transformers; errors of a model are raised by us."""
    had_progress_bar = logging.is_progress_bar_enabled()
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_progress_bar:
            logging.enable_progress_bar()


def check_directory(path: Path) -> None:
    """Raise ModelError for a directory without a model, or with files that do not fit together. Nothing is built."""
    where = f"model {str(path)!r}"
    refuse_adapter(path)
    check_files(path, where)
    if not (path / "config.json").is_file():
        raise ModelError(
            f"{where}: no config.json; expected a directory written by save_pretrained", code="E_NO_MODEL_CONFIG"
        )
    check_objects(path, where)
    if not any(path.glob("*.safetensors")):
        others: list[str] = []
        for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf"):
            others += [file.name for file in path.glob(pattern)]
        present = "found no weights"
        if others:
            present = f"found {', '.join(sorted(others))}; convert it, pickled weights are not read"
        raise ModelError(f"{where}: no *.safetensors file; {present}", code="E_NO_WEIGHTS")
    names = [key for _, key in shapes_in(path, path)]
    check_config(read_object(path / "config.json", where), names, where)


def _fetch_model(name: str | os.PathLike[str], *, code: bool = False, weights: bool = True) -> Path:
    """The directory of a model; one of the Hub is downloaded, or taken from the cache if there is no network. ``code``:
    also its Python files; ``weights``: also its weights."""
    where = resolve_model(name)
    if isinstance(where, Path):
        return where
    try:
        files = [pattern for pattern in FILES if weights or pattern != SAFETENSORS]
        if code:
            files.append("*.py")
        repository, revision = hub_parts(where)
        with _show_download(where, weights=weights):
            return Path(
                snapshot_download(repository, revision=revision, allow_patterns=files, ignore_patterns=["*/*", COPIES])
            )
    except (OSError, HFValidationError) as error:
        raise unreachable_error(where, error) from error


def unreachable_error(name: str, error: Exception) -> ModelError:
    """The error for a model of the Hub that can be neither downloaded nor found in the cache."""
    near = nearest_name(name, SHIPPED)
    hint = f"did you mean {near!r}? Else check" if near else "check"
    return ModelError(
        f"model {name!r}: neither a directory, nor in the local cache, nor to be had from the Hub "
        f"({first_line(error)}); {hint} the name and the network (shipped models: {', '.join(SHIPPED)})",
        code="E_MODEL_NOT_FOUND",
    )


@contextmanager
def _show_download(name: str, *, weights: bool) -> Iterator[None]:
    """Show the Hub's own progress bars in the block, if the model is not in the cache yet. ``weights``: whether its
    weights are wanted."""
    try:
        repository, revision = hub_parts(name)
        folder = snapshot_download(repository, revision=revision, allow_patterns=["config.json"], local_files_only=True)
        is_downloaded = not weights or any(Path(folder).glob(SAFETENSORS))
    except (OSError, ValueError):
        is_downloaded = False
    if not is_downloaded and shows_progress():
        print(f"fetching {name} from the Hub …", file=sys.stderr, flush=True)
        enable_progress_bars()
    try:
        yield
    finally:
        disable_progress_bars()


def _default_attention(directory: Path, trust_remote_code: bool) -> str:
    """The default attention of a model: "sdpa", or "eager" if the model has no other."""
    config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    kind: Any = type(config)
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING:  # such as code that comes with a model
        return ATTENTION
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[kind]
    return ATTENTION if model_class._supports_sdpa else "eager"


def _read_tokenizer(
    name: str | os.PathLike[str], directory: Path, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    if not any((directory / file).is_file() for file in TOKENIZER_FILES):
        raise ModelError(
            f"model {str(name)!r}: no tokenizer; expected {TOKENIZER_FILES[0]} in {directory}", code="E_NO_TOKENIZER"
        )
    where = f"model {str(name)!r}"
    check_files(directory, where)
    check_objects(directory, where)
    with report_model_errors(where, "its tokenizer "), _quiet_logging():
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=trust_remote_code
        )
        fault = _why_unusable(tokenizer)
    if fault:  # transformers makes an empty tokenizer if a file is missing
        raise ModelError(
            f"{where}: its tokenizer {fault}; copy tokenizer.json or tokenizer.model too", code="E_TOKENIZER_DAMAGED"
        )
    return tokenizer


def _why_unusable(tokenizer: PreTrainedTokenizerBase) -> str:
    """Why a tokenizer cannot encode any text; "" if it can. Texts of its own tokens are tried, as it may be one for
    words, proteins or chess moves."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    extra = {i for token, i in tokenizer.get_vocab().items() if token.startswith("<extra_id_")}  # T5 makes them
    ordinary = sorted(set(tokenizer.get_vocab().values()) - special - extra)
    if not ordinary:
        return "has an empty vocabulary"

    stride = math.ceil(len(ordinary) / TOKENS_TRIED)
    texts = [str(tokenizer.decode([token])) for token in ordinary[::stride]]
    texts = [text for text in texts if text.strip()]
    if not texts:
        return "has an empty vocabulary"

    unknown = {tokenizer.unk_token_id}
    for text in texts:
        ids = set(tokenizer(text, add_special_tokens=False).input_ids)
        if ids - unknown:
            return ""
    return "knows none of its own tokens"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if it has none."""
    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:
        error = error.__cause__  # the cause says what is wrong, the error itself only which check failed
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
