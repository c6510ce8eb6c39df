"""Ends of sequence that stand next to a model: in generation_config.json, or in config.json alone.

``generate`` of transformers and vLLM stop at both. What transformers makes up says nothing: a configuration without
ends has those of its class, and is saved with them. So an end of config.json is heeded where its authors have written
it: there is no generation_config.json, or it differs from what the class would have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, GenerationConfig

from cotrain.models.files import read_object

END = "eos_token_id"


def written_ends(directory: Path) -> GenerationConfig | None:
    """Return what a model's authors wrote of its ends, as a generation configuration of nothing else; None for nothing.
    Raises ModelError for files that are no JSON objects."""
    generation = _object_in(directory / "generation_config.json")
    made_up = bool(generation.get("_from_model_config"))
    if not made_up and generation.get(END) is not None:
        return _ends(generation[END])
    config = _object_in(directory / "config.json")
    ends = _ends_of_config(config)
    if ends is None:
        return None
    if generation and ends == _ends_of_class(config):
        return None
    return _ends(ends)


def _ends(value: Any) -> GenerationConfig:
    """The value as it is: whoever reads it says what is wrong with it."""
    settings = GenerationConfig()
    settings.eos_token_id = value
    return settings


def _object_in(file: Path) -> dict[str, Any]:
    return read_object(file, f"model {str(file.parent)!r}") if file.is_file() else {}


def _ends_of_config(config: dict[str, Any]) -> Any:
    """Those of the whole model, or of its part that reads text."""
    if config.get(END) is not None:
        return config[END]
    text = config.get("text_config")
    return text.get(END) if isinstance(text, dict) else None


def _ends_of_class(config: dict[str, Any]) -> Any:
    """The defaults of a configuration of this kind."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return None
    return getattr(CONFIG_MAPPING[kind]().get_text_config(), END, None)
