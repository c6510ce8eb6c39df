"""When two questions are the same: up to capitals, whitespace, and the forms in which Unicode writes one sign.

Left out: questions with the same meaning in other words.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

# Unicode also writes a sign as a form of another, such as a wide A or the ligature fi. These forms change what is said,
# as x² is not x2, and stay; all others become the plain sign.
MEANINGFUL_FORMS = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>", "<vertical>")

_JOINERS_AND_FILLERS = (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0)
_MONGOLIAN_SELECTORS = range(0x180B, 0x1810)
_VARIATION_SELECTORS = (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))  # they choose which glyph is drawn
INVISIBLE = frozenset(map(chr, (*_JOINERS_AND_FILLERS, *_MONGOLIAN_SELECTORS, *_VARIATION_SELECTORS)))


def plain_unicode(text: str) -> str:
    """A text in one of the ways in which Unicode may write it: a letter and its accent as one sign, wide and no-break
    signs as plain ones, and nothing that is not seen, such as a zero-width space. Raised and lowered digits stay."""
    if text.isascii():
        return text
    plain = "".join(map(_plain_sign, unicodedata.normalize("NFC", text)))
    return unicodedata.normalize("NFC", plain)


@lru_cache(maxsize=1 << 14)
def _plain_sign(sign: str) -> str:
    is_format_control = unicodedata.category(sign) == "Cf"
    if is_format_control or sign in INVISIBLE:
        return ""
    if unicodedata.decomposition(sign).startswith(MEANINGFUL_FORMS):
        return sign
    return unicodedata.normalize("NFKC", sign)


def normal_question(question: str) -> str:
    """A question up to capitals, whitespace and ``plain_unicode``: what counts as the same one when splits are kept
    apart."""
    folded = " ".join(plain_unicode(question).split()).casefold()
    return folded if folded.isascii() else unicodedata.normalize("NFC", folded)


def is_word_character(char: str) -> bool:
    """Whether a character belongs to a word: a letter, a digit, or a mark that is written on a letter and has no form
    together with it, as the vowel signs of Hindi and Tamil."""
    return char.isalnum() or unicodedata.category(char) in ("Mn", "Mc")


def words_in(text: str) -> tuple[str, ...]:
    """The words of a text, without the characters between them."""
    letters = [letter if is_word_character(letter) else " " for letter in text]
    return tuple("".join(letters).split())
