"""Regular expressions as formats: a user's pattern with one group around what is to be read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cotrain.core.errors import ConfigError, UnknownName


def pattern_of(pattern_text: str, flag: str, kind: str, named: Sequence[str], example: str) -> re.Pattern[str]:
    """The pattern that ``pattern_text`` is. ``flag``: what it was given as, such as "answer"; ``kind``: what the names
    in ``named`` are. Raises UnknownName for text without a group, ConfigError for another pattern that cannot be
    used."""
    if "(" not in pattern_text:
        raise UnknownName(kind, pattern_text, (*named, f"a pattern with one group, such as {example!r}"))
    try:
        pattern = re.compile(pattern_text)
    except re.error as error:
        raise ConfigError(
            f"{flag} {pattern_text!r}: not a regular expression ({error}); mend it, or give one of {', '.join(named)}"
        ) from None
    if pattern.groups != 1:
        raise ConfigError(f"{flag} {pattern_text!r}: has {pattern.groups} groups, expected one around the {flag}")
    return pattern
