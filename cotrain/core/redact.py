"""Removes from commands and settings, before others see them, paths of home directories, and whatever looks like
a key.

Guessed by form, so no substitute for keeping keys in the environment: names such as ``token``, the prefixes of known
services, and names and passwords in addresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

HIDDEN = "[hidden]"
_NAMES = (
    r"[\w.-]*(?:token|(?:secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization)s?)"
)
_NAMED = re.compile(rf"(?i)\b({_NAMES}[\"']?\s*[=:]\s*[\"']?)(?!{re.escape(HIDDEN)})[^\s,;&\"']+")
_FLAG = re.compile(rf"(?i)-{{1,2}}{_NAMES}")
_KEYS = re.compile(
    r"\b(?:hf_|sk-|pk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.|wandb_v1_)[\w.-]{12,}"
    r"|(?i:\bbearer)\s+[\w.~+/=-]{8,}"
    r"|(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])"  # as of wandb; hashes of weights are longer
)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")


def redact_text(text: str) -> str:
    """A text without keys, and with ``~`` for the home directory."""
    text = _LOGIN.sub(f"{HIDDEN}@", _KEYS.sub(HIDDEN, _NAMED.sub(rf"\1{HIDDEN}", text)))
    for home in {os.path.expanduser("~"), str(Path(os.path.expanduser("~")).resolve())}:
        if home not in ("/", "~", ""):
            text = re.sub(rf"{re.escape(home.rstrip('/'))}(?=/|$|[\s\"',:;)\]])", "~", text)
    return text


def redact_command(words: Sequence[str]) -> list[str]:
    """The words of a command line: its program by name, paths below the working directory relative to it."""
    shown = [Path(words[0]).name] if words else []
    for last, word in pairwise(words):
        flag, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        if _FLAG.fullmatch(last):
            value = HIDDEN
        shown.append(redact_text(f"{flag}{equals}{_relative_path(value)}"))
    return shown


def _relative_path(word: str) -> str:
    try:
        path = Path(word)
        here = path.is_absolute() and path.is_relative_to(Path.cwd())
    except (OSError, ValueError):
        return word
    return str(path.relative_to(Path.cwd())) if here else word
