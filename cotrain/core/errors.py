"""Errors that a user can act on: what was expected, what was found, where, and what to change.

``UserError`` and its children end a command with one line and exit code 2; anything else is a bug and keeps its
traceback. Each also subclasses the standard error that fits, so that library users can catch the usual types.

Each error also has a code, such as ``E_GROUP_TOO_SMALL``, for programs and tests. It is where the error is raised::

    raise ConfigError(f"clip_norm is {norm}, expected a norm above 0", code="E_CLIP_NORM")

A sentence may be rewritten at any time; the code stays. One code means one thing, wherever that is found, and belongs
to one class. An error that is raised again with other words, or with a place in front, keeps the code of its cause.
Left out: a table of all codes, which would be far from the lines that raise them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cotrain.core.nearest_names import current_name, nearest_name


def install_extra(extra: str) -> str:
    """How an optional part of the package is installed: from its source, since no package index has it."""
    return f"pip install -e '.[{extra}]' in the source of cotrain"


class CotrainError(Exception):
    """Base of every error that cotrain raises on purpose."""

    code = "E_COTRAIN"  # what an error of this class has that is raised without a code, as by a user's own recipe

    def __init__(self, *parts: object, code: str | None = None) -> None:
        super().__init__(*parts)
        if code is not None:
            self.code = code


class UserError(CotrainError):
    """Bad input: the message is one line that says what is wrong, where, and what to do."""

    code = "E_INPUT"


class ConfigError(UserError, ValueError):
    """A recipe, flag or ``--set`` value that makes no sense."""

    code = "E_CONFIG"


class TooLong(ConfigError):
    """A prompt that does not fit into its model's context together with the tokens of its answer."""

    code = "E_PROMPT_TOO_LONG"


class UnknownName(UserError, LookupError):
    """A name that is not in a list; says which names there are and which is nearest. Its code is made of the kind:
    ``E_UNKNOWN_ROLE`` for a "role", and for a "role of suite 'gsm8k'" too."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, code: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self.known = sorted(known)
        super().__init__(unknown_message(kind, name, self.known), code=code or unknown_code(kind))

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]], dict[str, str]]:
        return (UnknownName, (self.kind, self.name, self.known), {"code": self.code})


class DataError(UserError, ValueError):
    """A data file that cannot be read: file, row and column, what was expected."""

    code = "E_DATA"


class RowError(DataError):
    """One row of a data file that cannot be read, where the others may be."""

    code = "E_ROW"


class ModelError(UserError, ValueError):
    """A model directory or Hub name that cannot be used."""

    code = "E_MODEL"


class RunDirectoryError(UserError, FileExistsError):
    """A run directory that is in use, is not one, or does not belong to this recipe."""

    code = "E_RUN_DIRECTORY"


class StateError(CotrainError, ValueError):
    """Saved state that does not fit: missing or unknown fields, or a hash that does not match."""

    code = "E_STATE"


class TooManyFailures(CotrainError):
    """Most episodes of a step failed: something is wrong that training on the rest would hide."""

    code = "E_TOO_MANY_FAILURES"


class ServerSilent(TooManyFailures):
    """Most of what a server was asked had no answer: nothing is wrong with the run, which goes on when it answers."""

    code = "E_SERVER_SILENT"


class ProcessLost(CotrainError):
    """A process that the run counts on is gone or silent: killed, out of memory, or past its deadline. What it held is
    lost; the step can be made again from the newest checkpoint."""

    code = "E_PROCESS_LOST"


class EngineLost(ProcessLost):
    """The process of an engine is lost. It held nothing but copies of weights: the rollouts can be sampled again at
    once."""

    code = "E_ENGINE_LOST"


class RankShort(ProcessLost):
    """A rank had too little memory for a pass, in which the others wait for it: all begin again with smaller ones."""

    code = "E_RANK_MEMORY"

    def __init__(self, rank: int, world: int, micro_tokens: int, policy: str = "") -> None:
        """``micro_tokens``: of a pass from now on; ``policy``: whose passes, "" where it is not known yet."""
        super().__init__(rank, world, micro_tokens, policy)
        self.rank = rank
        self.world = world
        self.micro_tokens = micro_tokens
        self.policy = policy

    def __str__(self) -> str:
        return (
            f"rank {self.rank} of {self.world} had too little memory for a pass of policy {self.policy!r}; all go on "
            f"with passes of {self.micro_tokens} tokens"
        )


def error_text(error: BaseException) -> str:
    """Return an error's message in one line: the words alone of an error that cotrain raised, else ``KeyError:
    'vote'``. Errors without words, or whose words cannot be read, have a line, too."""
    try:
        words = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  an exception of a user's own may be anything
        words = "its text cannot be had"
    if isinstance(error, CotrainError) and words:
        return words
    return f"{type(error).__name__}: {words or 'without a message'}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class name where the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].strip()


SHOWN = 100  # names that a message lists before it only counts them


def unknown_message(kind: str, name: str, known: Iterable[str]) -> str:
    """``unknown recipe 'tanog'; did you mean 'tango'? (there are: grpo, tango)``"""
    names = sorted(set(known))
    near = nearest_name(name, names)
    hint = f"; did you mean {near!r}?" if near else ""
    if near and near == current_name(name, names):
        hint = f"; it is called {near!r} now"
    more = f" … and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"unknown {kind} {name!r}{hint} (there are: {', '.join(names[:SHOWN]) or 'none'}{more})"


def unknown_code(kind: str) -> str:
    """The code of an unknown name: of the first words of its kind, up to where it is said of what or in what."""
    head = re.split(r" of | in | on | that | \(|[:=]|, ", kind)[0]
    words = re.findall(r"[a-z]+", head.lower())
    return "_".join(["E_UNKNOWN", *(word.upper() for word in words)])
