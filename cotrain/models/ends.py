"""End-of-sequence tokens that the authors of a model wrote into its files.

They are in generation_config.json, or in config.json alone; ``generate`` of transformers and vLLM stop at both.
transformers also makes up ends: a configuration without any gets those of its class, and is saved with them. So an end
in config.json counts only if its authors wrote it: if there is no generation_config.json, or if it differs from the
end of the class.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, GenerationConfig

from cotrain.models.files import read_object

END = "eos_token_id"


def written_ends(directory: Path) -> GenerationConfig | None:
    """The end-of-sequence tokens that a model's authors wrote, in a generation configuration without other settings;
    None if they wrote none. Raises ModelError for files that are no JSON objects."""
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
    """A generation configuration with this value, unchecked: the renderer checks it."""
    settings = GenerationConfig()
    settings.eos_token_id = value
    return settings


def _object_in(file: Path) -> dict[str, Any]:
    return read_object(file, f"model {str(file.parent)!r}") if file.is_file() else {}


def _ends_of_config(config: dict[str, Any]) -> Any:
    """The ends in a configuration, or in the one of its text model."""
    if config.get(END) is not None:
        return config[END]
    text = config.get("text_config")
    return text.get(END) if isinstance(text, dict) else None


def _ends_of_class(config: dict[str, Any]) -> Any:
    """The ends that transformers makes up for a configuration of this kind."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return None
    return getattr(CONFIG_MAPPING[kind]().get_text_config(), END, None)
