"""Makes commands and settings fit for others to see: paths of home directories and whatever looks like a key are
removed.

Keys are guessed by their form: behind a name such as ``token``, by the prefix of a known service, as the user and
password of an address. That is no substitute for keeping them in the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

HIDDEN = "[hidden]"
# Not "tokens", which is a count.
_SECRET_NAME = (
    r"[\w.-]*(?:token|(?:secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization)s?)"
)
_NAMED_SECRET = re.compile(  # token=…, "api_key": "two words", Authorization: Bearer …
    rf"""(?ix)
    \b ({_SECRET_NAME} (?:\\?["'])? \s*[=:]\s*)         # the name, which stays
    (?: (\\?["']) (?!{re.escape(HIDDEN)}) .+? (\2|$)     # a value in quotes, with its spaces
      | (?!["'\\]|{re.escape(HIDDEN)})
        (?:(?:bearer|basic|digest|token)\s+)? [^\s,;&"']+ # one word, behind the name of a scheme
    )""",
    re.MULTILINE,
)
_SECRET_FLAG = re.compile(rf"(?i)-{{1,2}}{_SECRET_NAME}")  # --token
_KEY = re.compile(
    r"\b(?:hf_|sk-|pk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|ya29\.|wandb_v1_)[\w.-]{12,}"
    r"|(?i:\bbearer)\s+[\w.~+/=-]{8,}"
    r"|(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])"  # a key of wandb; hashes of weights are longer
)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")  # https://user:password@


def redact_text(text: str) -> str:
    """A text without keys, and with ``~`` for the home directory."""
    text = _NAMED_SECRET.sub(rf"\1\2{HIDDEN}\3", text)
    text = _KEY.sub(HIDDEN, text)
    text = _LOGIN.sub(f"{HIDDEN}@", text)
    home = os.path.expanduser("~")
    for folder in {home, str(Path(home).resolve())}:
        if folder not in ("/", "~", ""):
            text = re.sub(rf"{re.escape(folder.rstrip('/'))}(?=/|$|[\s\"',:;)\]])", "~", text)
    return text


def redact_command(words: Sequence[str]) -> list[str]:
    """The words of a command line without keys: the program by its name, paths below the working directory relative to
    it."""
    shown = [Path(words[0]).name] if words else []
    for previous, word in pairwise(words):
        flag, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        if _SECRET_FLAG.fullmatch(previous):
            value = HIDDEN
        shown.append(redact_text(f"{flag}{equals}{_relative_path(value)}"))
    return shown


def _relative_path(word: str) -> str:
    """A path below the working directory, relative to it; any other word as it is."""
    try:
        path = Path(word)
        is_below = path.is_absolute() and path.is_relative_to(Path.cwd())
    except (OSError, ValueError):
        return word
    return str(path.relative_to(Path.cwd())) if is_below else word
