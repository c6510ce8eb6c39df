"""Making text from models and files safe to show: in a page, and in a terminal.

Everything a model wrote is hostile until shown otherwise. Characters that would move the cursor, turn the reading
direction or hide are replaced by something that can be seen: ``<U+202E>``. In a page the front-end does the same
(``pages/assets/words.js``); here markup is escaped only for the title. Nothing is dropped silently: a text that is cut
says by how much.
"""

from __future__ import annotations

import html
import unicodedata

MAX_CHARS = 4000  # of one text in a page
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode categories that have no shape
VARIATIONS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
BLANKS = VARIATIONS | frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u180b\u180c\u180d\u180f")  # shaped like nothing


def is_hidden(char: str) -> bool:
    """Is this a control, direction, zero-width, private or unassigned character, or a lone surrogate?"""
    return char in BLANKS or unicodedata.category(char) in HIDDEN


def escape_attribute(text: object, limit: int = 300) -> str:
    """The same for an attribute value in double quotes, or for a ``<title>``: no markup at all."""
    return html.escape(escape_terminal(text, limit), quote=True)


def escape_terminal(text: object, limit: int = MAX_CHARS) -> str:
    """Plain text without a single control character: ESC becomes ``<U+001B>``, newlines become ``⏎``."""
    whole = str(text)
    if len(whole) <= limit and whole.isprintable() and BLANKS.isdisjoint(whole):
        return whole
    shown = "".join("⏎" if c == "\n" else f"<{_code_point(c)}>" if is_hidden(c) else c for c in whole[:limit])
    return shown if len(whole) <= limit else f"{shown}… ({len(whole) - limit} more characters)"


def _code_point(char: str) -> str:
    return f"U+{ord(char):04X}"
