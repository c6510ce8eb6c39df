"""Regular expressions as formats: a user's pattern with a group around what is to be read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cotrain.core.errors import ConfigError, UnknownName


def pattern_of(
    pattern_text: str, flag: str, kind: str, named: Sequence[str], example: str, others: Sequence[str] = ()
) -> re.Pattern[str]:
    """Compile ``pattern_text``, a pattern of the user's with a group.

    Args:
        flag: what the text was given as, such as "answer".
        kind: what the names in ``named`` are.
        named: names that the user could have given in the place of a pattern.
        example: a pattern that an error shows.
        others: names of groups that it may have besides.

    Raises UnknownName for text without a group, ConfigError for another pattern that cannot be used.
    """
    if "(" not in pattern_text:
        raise UnknownName(kind, pattern_text, (*named, f"a pattern with one group, such as {example!r}"))
    try:
        pattern = re.compile(pattern_text)
    except re.error as error:
        raise ConfigError(
            f"{flag} {pattern_text!r}: not a regular expression ({error}); mend it, or give one of {', '.join(named)}",
            code="E_PATTERN_SYNTAX",
        ) from None
    names = [name for name in pattern.groupindex if name in others]
    left = pattern.groups - len(names)
    if left != 1:
        named_groups = " and ".join(f"(?P<{name}>…)" for name in others)
        besides = f", and besides at most {named_groups}" if others else ""
        raise ConfigError(
            f"{flag} {pattern_text!r}: has {left} groups, expected one around the {flag}{besides}",
            code="E_PATTERN_GROUPS",
        )
    return pattern
