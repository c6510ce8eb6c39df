"""Which field of an observation is the prompt, and which field of an action is the answer: found where there is one
text only, else named in ``--tasks`` as ``?prompt=FIELD&action=FIELD``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qs

from cotrain.core.errors import ConfigError
from cotrain.core.input_files import MOST_ROW


def split_address(address: str, known: Collection[str]) -> tuple[str, dict[str, str]]:
    """The text before the question mark, and the fields that are named behind it. Raises ConfigError for a field
    that is none of ``known``."""
    place, _, query = address.partition("?")
    named = {name: values[-1] for name, values in parse_qs(query).items()}
    unknown = sorted(set(named) - set(known))
    if unknown or (query and not named):
        raise ConfigError(
            f"openenv: {address!r} says {query!r} behind its question mark; expected "
            f"{'&'.join(f'{name}=FIELD' for name in known)}",
            code="E_ENVIRONMENT_ADDRESS",
        )
    return place, named


def prompt_field(where: str, observation: Mapping[str, Any], named: str) -> str:
    """The field of the first observation that is the prompt. ``named``: by the user, or ""."""
    texts = [name for name, value in observation.items() if isinstance(value, str) and value.strip()]
    if not named and len(texts) != 1:
        raise ConfigError(
            f"{where}: which field is the prompt? Add ?prompt=FIELD; texts are in: {texts or 'none'}",
            code="E_ENVIRONMENT_FIELD",
        )
    field = named or texts[0]
    if field not in texts:
        raise ConfigError(
            f"{where}: no text in field {field!r}; there are: {texts or 'none'}", code="E_ENVIRONMENT_FIELD"
        )
    if len(observation[field]) > MOST_ROW:
        raise ConfigError(
            f"{where}: its prompt has {len(observation[field])} characters; at most {MOST_ROW} are read",
            code="E_ENVIRONMENT_PROMPT_TOO_LONG",
        )
    return field


def answer_field(where: str, action_schema: Mapping[str, Any], named: str) -> str:
    """The field of an action that takes the answer, by the action's JSON schema. ``named``: by the user, or ""."""
    properties = action_schema.get("properties", {})
    texts = [name for name, schema in properties.items() if _takes_text(schema)]
    if named and named not in texts:
        raise ConfigError(
            f"{where}: its action takes no text in {named!r}; texts are: {texts or 'none'}", code="E_ENVIRONMENT_FIELD"
        )
    if not named and len(texts) != 1:
        raise ConfigError(
            f"{where}: which field is the answer? Add ?action=FIELD; texts are: {texts or 'none'}",
            code="E_ENVIRONMENT_FIELD",
        )
    field = named or texts[0]
    unfilled = [name for name in action_schema.get("required", ()) if name != field]
    if unfilled:
        raise ConfigError(
            f"{where}: its action needs {unfilled[0]!r} beside {field!r}, and an answer fills one field alone; give "
            f"{unfilled[0]!r} a default",
            code="E_ENVIRONMENT_ACTION",
        )
    return field


def _takes_text(schema: Mapping[str, Any]) -> bool:
    """Whether a field of this JSON schema may be any text, or one of several."""
    kinds = [schema, *schema.get("anyOf", ())]
    return any(kind.get("type") == "string" and "const" not in kind for kind in kinds)
